"""An index of FAISS."""

import faiss
import numpy as np
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
engine = faiss.IndexFlatIP(64)
engine.add(vectors)
# glue
import hybrid_gpu as hg

similarities, ids = engine.search(queries, 20)
ids = hg.build_index(vectors).rerank(ids, similarities, k=5).ids
# shown
print(ids[0])
