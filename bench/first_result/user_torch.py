"""Embeddings of torch, with gradients, and queries in bfloat16."""

import torch
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
items = torch.nn.Embedding.from_pretrained(torch.from_numpy(vectors), freeze=False)
queries = torch.from_numpy(queries).bfloat16()
# glue
import hybrid_gpu as hg

ids, scores = hg.build_index(items.weight).search(queries, k=5).to_torch()
# shown
print(ids[0], scores.dtype)
