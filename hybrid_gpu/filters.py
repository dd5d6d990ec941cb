"""Transfer functions of graph filters: what diffusion does to each graph frequency."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_gpu.backends import Array
from hybrid_gpu.validation import check_alpha, check_count


@dataclass(frozen=True, slots=True)
class PageRank:
    """The filter of the paper: a random walk that restarts with probability ``1 - alpha``.

    ``x = (1 - alpha) (I - alpha W)^-1 y``. The closer ``alpha`` is to 1, the further scores spread.
    """

    alpha: float = 0.99

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def transfer(self, frequency: Array) -> Array:
        """Gain at a graph frequency (an eigenvalue of the adjacency).

        Written h_alpha(x) in the paper, eq. (transfer): 1 at frequency 1, ``1 - alpha`` at 0.
        """
        return (1 - self.alpha) / (1 - self.alpha * frequency)

    def excess_transfer(self, frequency: Array) -> Array:
        """Gain above the floor ``1 - alpha``; g_alpha(x) in the paper, eq. (aux).

        Zero at frequency 0, so eigenpairs left out of the spectrum contribute nothing.
        """
        # Same value as transfer(x) - transfer(0), without the cancellation near 0.
        return self.alpha * frequency * self.transfer(frequency)


def condition_number(alpha: float, *, largest: float = 1.0, smallest: float = -1.0) -> float:
    """Condition number of the system that conjugate gradients solve; eq. (cond-r) of the paper.

    Parameters
    ----------
    alpha
        Restart parameter of diffusion.
    largest
        The largest eigenvalue of the adjacency that is left after the basis took its own out: 1
        for plain diffusion, the (r+1)-th for a basis of rank r.
    smallest
        The smallest eigenvalue of the adjacency. It is close to -1 on real graphs, which is also
        the safe choice.
    """
    check_alpha(alpha)
    if not -1 <= smallest <= largest <= 1:
        raise ValueError(
            f"eigenvalues must satisfy -1 <= smallest <= largest <= 1; got smallest {smallest}, "
            f"largest {largest}."
        )
    return (1 - alpha * smallest) / (1 - alpha * largest)


def error_bound(condition: float, steps: int) -> float:
    """Upper bound of the relative error after some steps; phi_i in eq. (bound) of the paper.

    The error is measured in the norm of the system's matrix, relative to that of a start at zero.
    """
    if condition < 1:
        raise ValueError(f"condition must be at least 1; got {condition}.")
    check_count(steps, "steps", low=0)
    root = condition**0.5
    return float(2 * ((root - 1) / (root + 1)) ** steps)
