"""A vector database with ids of its own: Qdrant."""

import numpy as np
from qdrant_client import QdrantClient, models
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
client = QdrantClient(":memory:")
cosine = models.Distance.COSINE
client.create_collection("digits", models.VectorParams(size=64, distance=cosine))
names = 5_000_000_000 + np.arange(len(vectors))
client.upload_collection("digits", vectors=vectors, ids=names.tolist())
asked = [models.QueryRequest(query=query, limit=20) for query in queries.tolist()]
found = [answer.points for answer in client.query_batch_points("digits", asked)]
# glue
import hybrid_gpu as hg

index = hg.build_index(vectors, keys=names)
results = [{point.id: point.score for point in points} for points in found]
keys, scores = index.rerank(results, k=5)
# shown
print(keys[0])
