"""A service over HTTP, asked for one query."""

import json
import threading
from urllib.request import Request, urlopen

import numpy as np
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
port = 8732
# glue
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import hybrid_gpu as hg

index = hg.build_index(vectors)


class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            ranking = index.search(np.array(fields["queries"], np.float32), k=fields["k"])
            code, told = 200, {"ids": ranking.ids.tolist(), "scores": ranking.scores.tolist()}
        except (ValueError, KeyError, TypeError) as fault:
            code, told = 400, {"error": str(fault)}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())


server = ThreadingHTTPServer(("127.0.0.1", port), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
# shown
body = json.dumps({"queries": queries[:1].tolist(), "k": 5}).encode()
with urlopen(Request(f"http://127.0.0.1:{port}/search", body)) as answer:
    print(json.load(answer)["ids"][0])
