"""The order of result lists: best first, wherever an engine left it to chance."""

from __future__ import annotations

from typing import Any

from hybrid_gpu.backends.protocol import Array

# When lists count as worst first; see check_best_first.
_LEAST_RISE, _RISES_TOGETHER, _RISES_OF_ONE_LIST = 1e-3, 2, 9
# Lists that are looked at together: what this takes beside a million of them shall not matter.
_ROWS_AT_ONCE = 65_536


def list_tiles(lists: Array) -> list[slice]:
    """The rows of lists, some at a time."""
    count = lists.shape[0]
    starts = range(0, count, _ROWS_AT_ONCE)
    return [slice(start, min(start + _ROWS_AT_ONCE, count)) for start in starts]


def best_first_lists(ids: Array, cosines: Array, xp: Any) -> tuple[Array, Array]:
    """Checked lists (m, k), by their cosines if they were not; equal ones stay in their order."""
    found = ids[:, 1:] >= 0
    if not bool(xp.any(found & (cosines[:, 1:] > cosines[:, :-1]))):
        return ids, cosines
    # What was not found stands at the end already, and stays there.
    keys = xp.where(ids >= 0, cosines, xp.full_like(cosines, -xp.inf))
    order = xp.argsort(keys, axis=1, descending=True, stable=True)
    return xp.take_along_axis(ids, order, axis=1), xp.take_along_axis(cosines, order, axis=1)


def check_best_first(ids: Array, cosines: Array, *, distances: bool, xp: Any) -> None:
    """Refuse lists that run from the worst result to the best, as distances taken for cosines do.

    An engine that returns its results in no order gives lists that rise by chance. So lists are
    refused together: none of those that move by more than 1e-3 falls anywhere, and they rise twice
    or more. A list alone is enough if it rises nine times, which chance does to one in millions.
    """
    moving = rising = steps = 0
    for part in list_tiles(ids):
        # What was not found stands at the end, so that two found results stand side by side.
        found = ids[part, 1:] >= 0
        change = cosines[part, 1:] - cosines[part, :-1]
        change = xp.where(found, change, xp.zeros_like(change))
        up = xp.sum(xp.clip(change, min=0), axis=1)
        down = xp.sum(xp.clip(change, max=0), axis=1)
        only_up = (up > _LEAST_RISE) & (down == 0)
        times = xp.where(only_up, xp.sum(xp.astype(change > 0, xp.int64), axis=1), 0)
        if bool(xp.any(times >= _RISES_OF_ONE_LIST)):
            raise _worst_first(distances)
        moving += int(xp.count_nonzero((up > _LEAST_RISE) | (down < -_LEAST_RISE)))
        rising += int(xp.count_nonzero(only_up))
        steps += int(xp.sum(times))
    if rising == moving and steps >= _RISES_TOGETHER:
        raise _worst_first(distances)


def _worst_first(distances: bool) -> ValueError:
    turn = "turn lists that are worst first with ids[:, ::-1], similarities[:, ::-1]"
    if distances:
        return ValueError(
            f"distances must come best first, smallest first; these lists only fall. Pass cosines "
            f"with metric='cosine', and {turn}."
        )
    return ValueError(
        "similarities must come best first, largest first; these lists only rise. Pass distances "
        "between unit vectors with metric='cosine-distance' (also for hnswlib's, usearch's and "
        "LanceDB's ip, which is 1 - product), 'l2' or 'squared-l2' (FAISS's L2 is squared), and "
        f"{turn}."
    )
