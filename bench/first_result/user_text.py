"""Texts with names: the pages of scipy.special, by TF-IDF."""

import scipy.special

texts = {
    name: value.__doc__
    for name, value in vars(scipy.special).items()
    if not name.startswith("_") and value.__doc__ and len(value.__doc__) > 200
}
question = "zeros of Bessel functions of integer order"
# glue
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import hybrid_gpu as hg

model = make_pipeline(TfidfVectorizer(), TruncatedSVD(50, random_state=7))
index = hg.build_index(model.fit_transform(list(texts.values())), keys=list(texts))
keys, scores = index.search(model.transform([question]), k=5)
# shown
print(keys[0].tolist())
