"""A laptop and two arrays."""

from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
# glue
import hybrid_gpu as hg

ids = hg.build_index(vectors).search(queries, k=5).ids
# shown
print(ids[0])
