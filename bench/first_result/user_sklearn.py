"""An estimator of scikit-learn in a pipeline."""

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
# glue
from hybrid_gpu.sklearn import DiffusionNeighbors

model = make_pipeline(StandardScaler(with_std=False), DiffusionNeighbors(n_neighbors=5))
graph = model.fit(vectors).transform(queries)
# shown
print(np.sort(graph[[0]].indices))
