"""Pictures that are like a picture: what diffusion adds to similarity, in a table and a drawing.

python examples/images.py                                   # 8 x 8 digits, in the package
python examples/images.py --fashion FOLDER --picture new.png  # the four IDX files of the set
"""

import argparse
from pathlib import Path

import numpy as np

import hybrid_gpu as hg
from hybrid_gpu import datasets, evaluation
from hybrid_gpu.lab import plots

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--fashion", metavar="FOLDER", help="take Fashion-MNIST from there")
parser.add_argument("--queries", type=int, default=200)
parser.add_argument("--picture", type=Path, default=Path("images.png"), metavar="FILE")
options = parser.parse_args()
if options.picture.exists():
    parser.error(f"{options.picture} is there already: pass --picture with another name")

if options.fashion is None:
    split = datasets.split_queries(datasets.digits(), options.queries, seed=7)
else:
    split = datasets.fashion_mnist(options.fashion)
items, shape = split.database, split.database.image_shape
queries = split.queries.descriptors[: options.queries]
query_labels = split.queries.labels[: options.queries]

index = hg.build_index(items.descriptors)  # the number of neighbors is chosen from the data
print(index)
print(f"{'method':<10}{'mAP %':>8}{'right in the first 12':>24}")
best = {}
for method in ("nn", "alpha-qe", "hybrid"):
    ids = index.search(queries, k=index.n, method=method).ids
    precision = evaluation.mean_average_precision(ids, items.labels, query_labels)
    right = np.mean(items.labels[ids[:, :12]] == query_labels[:, None])
    best[method] = ids[:, :12]
    print(f"{method:<10}{100 * precision:>8.1f}{12 * right:>24.1f}")

# The queries that diffusion changed most, for better or worse.
hits = [
    np.sum(items.labels[best[name]] == query_labels[:, None], axis=1) for name in ("nn", "hybrid")
]
shown = np.argsort(-np.abs(hits[1] - hits[0]), kind="stable")[:4]
plots.ranking_grid(
    items.descriptors.reshape(-1, *shape),
    queries[shown].reshape(-1, *shape),
    before_ids=best["nn"][shown],
    after_ids=best["hybrid"][shown],
    labels=items.labels,
    query_labels=query_labels[shown],
    path=options.picture,
    title="The queries that diffusion changed most",
)
print(options.picture)
