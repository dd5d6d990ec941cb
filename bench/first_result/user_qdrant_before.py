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

index = hg.build_index(vectors)
place = {name: number for number, name in enumerate(names.tolist())}
ids = np.full((len(found), 20), -1)
similarities = np.zeros((len(found), 20), np.float32)
for row, points in enumerate(found):
    ids[row, : len(points)] = [place[point.id] for point in points]
    similarities[row, : len(points)] = [point.score for point in points]
ranking = index.rerank(ids, similarities.clip(-1, 1), k=5)
keys = names[ranking.ids]
# shown
print(keys[0])
