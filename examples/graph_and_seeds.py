"""Personalized PageRank for retrieval-augmented generation: all questions in one call.

    python examples/graph_and_seeds.py [--passages 4000] [--questions 100]

Such a pipeline (HippoRAG and its kin) joins passages to the phrases in them, seeds what a question
resembles, and calls igraph once per question. Here the graph is indexed once, and one call ranks
for all questions. To compare: pip install igraph
"""

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

import hybrid_gpu as hg

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--passages", type=int, default=4000)
parser.add_argument("--questions", type=int, default=100)
options = parser.parse_args()

# Made up: each passage holds 8 phrases, some of them common; some phrases are synonyms.
rng = np.random.default_rng(7)
passages, n = options.passages, 3 * options.passages
phrases = passages + (2 * passages * rng.random((passages, 8)) ** 3).astype(int)
held = np.stack([np.repeat(np.arange(passages), 8), phrases.ravel()], axis=1)
edges = np.concatenate([held, rng.permutation(np.arange(passages, n)).reshape(-1, 2)])
weights = np.where(np.arange(len(edges)) < 8 * passages, 1.0, 0.8)
# A question resembles five nodes, and four more a little.
seeds = [rng.choice(n, 9, replace=False) for _ in range(options.questions)]
likeness = [[1.0] * 5 + [0.05] * 4] * options.questions

start = time.perf_counter()
index = hg.build_index_from_graph(edges, weights=weights, n=n, alpha=0.5)
built = time.perf_counter()
walk = {"normalization": "random-walk", "accuracy": 1e-5, "allowed": np.arange(n) < passages}
ranking = index.search_items(seeds, weights=likeness, k=20, **walk)
ours = time.perf_counter() - built
print(index)
print(f"{'way':<30}{'s to build':>12}{'ms per question':>18}")
print(f"{'hybrid_gpu, one call':<30}{built - start:>12.2f}{1e3 * ours / len(seeds):>18.1f}")

import igraph  # noqa: E402  (all of the above does without it)

start = time.perf_counter()
graph = igraph.Graph(n=n, edges=edges.tolist(), edge_attrs={"weight": weights.tolist()})
built, same = time.perf_counter(), 0
with threadpool_limits(1, user_api="openmp"):  # more threads than idle cores make igraph slow
    for items, values, found in zip(seeds, likeness, ranking.ids, strict=True):
        reset = np.bincount(items, weights=values, minlength=n).tolist()
        scores = graph.personalized_pagerank(damping=0.5, reset=reset, weights="weight")
        exact = np.array(scores[:passages])
        same += np.allclose(exact[found], -np.sort(-exact)[:20], rtol=1e-3)
theirs = time.perf_counter() - built
print(
    f"{'igraph, one after the other':<30}{built - start:>12.2f}{1e3 * theirs / len(seeds):>18.1f}"
)
print(f"the same 20 passages in the same order: {same} of {len(seeds)} questions")
