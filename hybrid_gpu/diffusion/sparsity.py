"""Which entries of eigenvectors are dropped: how many, and by what they are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.filters import Filter, gains
from hybrid_gpu.validation import check_choice, check_sparsity

THRESHOLDS = ("entries", "filtered")


@dataclass(frozen=True, slots=True)
class Sparsity:
    """Which entries of the eigenvectors U_1 are dropped.

    Attributes
    ----------
    fraction : float
        The fraction of all entries that become zero, in [0, 1); 0.99 in the paper.
    threshold : str
        What the smallest entries are the smallest of. ``"entries"``: of U_1, as in the paper.
        ``"filtered"``: of ``U_1 sqrt(g(Lambda_1))``, which weighs every vector as the spectral part
        ``U_1 g(Lambda_1) U_1^T y`` does, so that the slowest vectors keep most of their entries.
        These have many small entries, and are the first that a common threshold empties.
    """

    fraction: float = 0.99
    threshold: str = "entries"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", check_sparsity(self.fraction))
        check_choice(self.threshold, "threshold", THRESHOLDS)

    def weights(self, eigenvalues: HostArray, filter: Filter) -> HostArray | None:
        """What the entries of each vector (r,) are multiplied by to compare them; None: nothing."""
        if self.threshold == "entries":
            return None
        excess = gains(filter, np.minimum(eigenvalues, 1.0)) - gains(filter, 0.0)
        # A filter may weaken a frequency below that of 0: it matters as much.
        return np.asarray(np.sqrt(np.abs(excess)))


PAPER_SPARSITY = Sparsity()
"""What the paper drops: 99 % of all entries, the smallest."""
