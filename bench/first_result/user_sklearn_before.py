"""An estimator of scikit-learn in a pipeline."""

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from hybrid_gpu import datasets

split = datasets.split_queries(datasets.digits(), 50, seed=7)
vectors, queries = split.database.descriptors, split.queries.descriptors
# glue
import scipy.sparse
from sklearn.base import BaseEstimator, TransformerMixin

import hybrid_gpu as hg


class Neighbors(TransformerMixin, BaseEstimator):
    def __init__(self, n_neighbors=5):
        self.n_neighbors = n_neighbors

    def fit(self, X, y=None):
        self.index_ = hg.build_index(X)
        return self

    def transform(self, X):
        count = self.n_neighbors + 1  # as KNeighborsTransformer counts
        ranking = self.index_.search(X, k=count)
        rows = np.repeat(np.arange(len(X)), count)
        values = (1 - ranking.scores).ravel()
        places = (rows, ranking.ids.ravel())
        return scipy.sparse.csr_array((values, places), shape=(len(X), self.index_.n))


model = make_pipeline(StandardScaler(with_std=False), Neighbors(n_neighbors=5))
graph = model.fit(vectors).transform(queries)
# shown
print(np.sort(graph[[0]].indices))
