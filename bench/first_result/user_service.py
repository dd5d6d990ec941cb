"""A service over HTTP, asked for one query."""

import json
import subprocess
import time
from urllib.request import Request, urlopen

from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
port = 8731
# glue
import hybrid_gpu as hg

hg.build_index(vectors).save("my-index")
server = subprocess.Popen(["hybrid-gpu", "serve", "my-index", "--port", str(port)])
# shown
body = json.dumps({"queries": queries[:1].tolist(), "k": 5}).encode()
asked = Request(f"http://127.0.0.1:{port}/search", body, {"Content-Type": "application/json"})
try:
    for _ in range(100):
        time.sleep(0.3)
        try:
            with urlopen(asked) as answer:
                print(json.load(answer)["ids"][0])
            break
        except OSError:
            continue
finally:
    server.terminate()
