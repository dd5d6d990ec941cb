"""What the paper's experiments vary, and the trials behind each of its figures and tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybrid_gpu.diffusion.sparsity import THRESHOLDS
from hybrid_gpu.index.build import default_groups
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import PAPER
from hybrid_gpu.lab.comparison import Trial
from hybrid_gpu.validation import check_count


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    """What the experiments vary, and what they hold fixed; the defaults are the paper's.

    Attributes
    ----------
    neighbors, gamma, alpha
        Parameters of the graph and of diffusion, as in ``build_index``.
    rank : int
        Number of eigenvectors of the hybrid methods.
    spectral_rank : int
        Number of eigenvectors of the purely spectral methods; 5,000 in the paper, for a million
        items.
    ranks, steps : tuples of int
        Ranks and numbers of steps in Figures 2 and 3.
    sparsities : tuple of float
        Sparsities in Figure 4; all other figures use the last one for SHybrid.
    shortlists : tuple of float
        Sizes of the shortlist of truncation in Figure 5, as parts of the database; the tables use
        the second one.
    items_per_group : tuple of int
        Sizes of the aggregates of ``hybrid`` in Figures 3 and 5.
    knn, seed
        As in ``build_index``.
    """

    neighbors: int = PAPER["neighbors"]
    gamma: float = PAPER["gamma"]
    alpha: float = PAPER["alpha"]
    rank: int = 400
    spectral_rank: int = 1000
    ranks: tuple[int, ...] = (100, 200, 300, 400, 500)
    steps: tuple[int, ...] = (1, 2, 3, 5, 10, 20)
    sparsities: tuple[float, ...] = (0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
    shortlists: tuple[float, ...] = (0.05, 0.075, 0.1, 0.2, 0.3)
    items_per_group: tuple[int, ...] = (128, 64, 32)
    knn: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("neighbors", "rank", "spectral_rank"):
            check_count(getattr(self, name), name)

    def quick(self) -> ExperimentSettings:
        """The same settings with fewer points on each curve and smaller bases."""
        return replace(
            self,
            rank=min(self.rank, 100),
            spectral_rank=min(self.spectral_rank, 200),
            ranks=(25, 50, 100),
            steps=(1, 3, 5, 20),
            sparsities=(0.9, 0.99),
            shortlists=(0.05, 0.075, 0.2),
            items_per_group=(64, 32),
        )


def trials_of(settings: ExperimentSettings, index: DiffusionIndex) -> dict[str, list[Trial]]:
    """The trials behind each figure and table, in the order of the paper."""
    n, groups = index.n, default_groups(index.state.graph)
    rank, sparsity = settings.rank, settings.sparsities[-1]
    cut = [max(1, round(part * n)) for part in settings.shortlists]

    def paper(rank: int, steps: int) -> Trial:
        return Trial("hybrid-paper", "eigen", rank, steps)

    def sparse(rank: int, steps: int, sparsity: float = sparsity, by: str = "entries") -> Trial:
        return Trial("shybrid", "eigen", rank, steps, sparsity=sparsity, threshold=by)

    def deflated(sparsity: float, by: str) -> Trial:
        return Trial("hybrid", "sparse-eigen", rank, 5, sparsity=sparsity, threshold=by)

    def grouped(steps: int, groups: int = groups) -> Trial:
        return Trial("hybrid", "aggregate", groups, steps)

    temporal = [Trial("temporal", steps=count) for count in settings.steps]
    spectral = [
        Trial(name, "eigen", settings.spectral_rank) for name in ("fsr", "fsrw", "fsr-similarity")
    ]
    truncated = [Trial("truncated", steps=20, shortlist=size) for size in cut]
    few = [count for count in settings.steps if count <= 5]
    smaller = [size for size in settings.ranks if size <= rank]
    groupings = [max(1, n // size) for size in settings.items_per_group]
    full = Trial("temporal", steps=20)
    shown_cut = truncated[min(1, len(truncated) - 1)]
    return {
        "figure-2": [
            *temporal,
            *(paper(rank, count) for count in (0, *settings.steps)),
            *(sparse(rank, count) for count in (0, *settings.steps)),
            *(Trial("hybrid", "eigen", rank, count) for count in (0, *settings.steps)),
            *(grouped(count) for count in (0, *settings.steps)),
            *spectral,
        ],
        "figure-3": [
            *(Trial("temporal", steps=count) for count in few),
            *(paper(size, count) for size in settings.ranks for count in (0, *few)),
            *(grouped(count, size) for size in groupings for count in (0, *few)),
        ],
        "figure-4": [
            paper(rank, 5),
            *(sparse(rank, 5, part, by) for by in THRESHOLDS for part in settings.sparsities),
            *(deflated(part, by) for by in THRESHOLDS for part in settings.sparsities),
        ],
        "figure-5": [
            full,
            *truncated,
            spectral[1],
            *(paper(size, 5) for size in smaller),
            *(sparse(size, 5) for size in smaller),
            *(grouped(5, size) for size in groupings),
        ],
        "table-1": [
            full,
            shown_cut,
            spectral[1],
            sparse(rank, 5),
            Trial("hybrid", "eigen", rank, 5),
            grouped(5),
        ],
        "table-2": [
            Trial("nn"),
            Trial("alpha-qe"),
            Trial("nn", augmented=True),
            full,
            shown_cut,
            *spectral,
            paper(rank, 5),
            *(sparse(rank, 5, by=by) for by in THRESHOLDS),
            Trial("hybrid", "eigen", rank, 5),
            grouped(5),
            grouped(10),
        ],
    }
