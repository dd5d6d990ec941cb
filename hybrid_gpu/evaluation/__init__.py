"""How good a ranking is, by labels, by lists, or by another ranking, and how sure that is.

Everything here takes rankings: lists of ids, best first, -1 where nothing was found, which counts
as a wrong result. `ranked` makes them from scores, by the one rule of this library for ties: of
items with equal scores, the lower id comes first. Arrays of any library are taken, on any device.

- By class labels, ``(ids, labels, query_labels, *, at=, ignore=)``: `mean_average_precision`,
  `precision`, `mean_reciprocal_rank`, `ndcg`, `success`, `cumulative_match`.
- By lists of relevant items, ``(ids, relevant, *, at=, ignore=)``: `recall`, and the others with
  ``_of_lists`` behind their names.
- By another ranking: `agreement`. Revisited Oxford and Paris: `revisited_protocol`.

``ignore`` names items of each query that count neither as right nor as wrong: one item each (the
query itself, if it is in the database), or a list each (junk, such as images of the same person by
the same camera). They are taken out of the ranking before ranks are counted.

Queries without a relevant item are left out. `per_query` gives the value of each query, `bootstrap`
the confidence interval of their mean, and `compare` a paired comparison of two rankings.

Two definitions of average precision are in use. The measures by class labels and by lists of
relevant items average the precision at each relevant item; `revisited_protocol` takes the area
under the precision-recall curve by trapezoids, as the publication of that benchmark does.
"""

from hybrid_gpu.evaluation.averages import per_query
from hybrid_gpu.evaluation.labels import (
    cumulative_match,
    mean_average_precision,
    mean_reciprocal_rank,
    ndcg,
    precision,
    success,
)
from hybrid_gpu.evaluation.overlap import agreement
from hybrid_gpu.evaluation.rankings import ranked
from hybrid_gpu.evaluation.relevance import (
    cumulative_match_of_lists,
    mean_average_precision_of_lists,
    mean_reciprocal_rank_of_lists,
    ndcg_of_lists,
    precision_of_lists,
    recall,
    success_of_lists,
)
from hybrid_gpu.evaluation.revisited import Revisited, Score, revisited_protocol
from hybrid_gpu.evaluation.significance import Comparison, Interval, bootstrap, compare

__all__ = [
    "Comparison",
    "Interval",
    "Revisited",
    "Score",
    "agreement",
    "bootstrap",
    "compare",
    "cumulative_match",
    "cumulative_match_of_lists",
    "mean_average_precision",
    "mean_average_precision_of_lists",
    "mean_reciprocal_rank",
    "mean_reciprocal_rank_of_lists",
    "ndcg",
    "ndcg_of_lists",
    "per_query",
    "precision",
    "precision_of_lists",
    "ranked",
    "recall",
    "revisited_protocol",
    "success",
    "success_of_lists",
]
