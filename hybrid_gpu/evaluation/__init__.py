"""How good a ranking is: average precision, precision, recall, agreement, revisited Oxford/Paris.

Everything here takes rankings: lists of ids, best first, -1 where nothing was found, which counts
as a wrong result. `ranked` makes them from scores, by the one rule of this library for ties: of
items with equal scores, the lower id comes first.

Two definitions of average precision are in use. The measures by class labels and by lists of
relevant items average the precision at each relevant item; `revisited_protocol` takes the area
under the precision-recall curve by trapezoids, as the publication of that benchmark does.
"""

from hybrid_gpu.evaluation.relevance import (
    agreement,
    mean_average_precision,
    mean_average_precision_of_lists,
    precision,
    ranked,
    recall,
)
from hybrid_gpu.evaluation.revisited import Revisited, Score, revisited_protocol

__all__ = [
    "Revisited",
    "Score",
    "agreement",
    "mean_average_precision",
    "mean_average_precision_of_lists",
    "precision",
    "ranked",
    "recall",
    "revisited_protocol",
]
