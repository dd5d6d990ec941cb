"""Embeddings of torch, with gradients, and queries in bfloat16."""

import torch
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
items = torch.nn.Embedding.from_pretrained(torch.from_numpy(vectors), freeze=False)
queries = torch.from_numpy(queries).bfloat16()
# glue
import hybrid_gpu as hg

index = hg.build_index(items.weight.detach().numpy())
ranking = index.search(queries.float().numpy(), k=5)
ids, scores = torch.from_numpy(ranking.ids), torch.from_numpy(ranking.scores)
# shown
print(ids[0], scores.dtype)
