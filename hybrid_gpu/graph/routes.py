"""The best routes through a graph: chains of edges whose product of weights is the largest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.protocol import HostArray


@dataclass(frozen=True, slots=True, eq=False)
class HostEdges:
    """The edges of a graph on the host, in compressed rows.

    Attributes
    ----------
    weights, columns, bounds : arrays
        The entries of the normalized adjacency, their columns, and where each row begins.
    names : int64 array of shape (n,)
        The user's id of each place, by which ties are decided.
    """

    weights: HostArray
    columns: HostArray
    bounds: HostArray
    names: NDArray[np.int64]

    def row(self, place: int) -> tuple[HostArray, HostArray]:
        """The neighbors of an item, and the weights of the edges to them."""
        entries = slice(int(self.bounds[place]), int(self.bounds[place + 1]))
        return self.columns[entries], self.weights[entries]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A chain of edges from a start to the goal.

    Attributes
    ----------
    places : tuple of int
        The items on it, the start first and the goal last; one item if the goal is a start.
    weights : tuple of float
        The weights of its edges.
    value : float
        The weight of its start, times ``step`` and the weight of each edge.
    """

    places: tuple[int, ...]
    weights: tuple[float, ...]
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The best routes from different starts, the best first.

    Attributes
    ----------
    found : tuple of Route
    visited : int
        Items whose edges were looked at.
    cut : bool
        Whether the search ended at the most visits: further routes may exist, and those found may
        not be the best.
    """

    found: tuple[Route, ...]
    visited: int
    cut: bool


def best_routes(
    edges: HostEdges,
    starts: Mapping[int, float],
    goal: int,
    *,
    step: float,
    count: int = 1,
    most_visits: int,
    limits: NDArray[np.float64] | None = None,
) -> Routes:
    """The routes of the largest value to a goal, each from another start.

    The search goes backward from the goal and takes the most promising item first (A*). Every
    factor ``step * weight`` is below 1, so that a best route exists and visits no item twice. Of
    routes of the same value, those through lower ids come first.

    Parameters
    ----------
    starts
        Places, and their positive weights. To look for one that no edges lead to takes a visit of
        every item that the goal is joined to.
    step
        The factor of every edge beside its weight; from 0 to below 1.
    count
        Routes wanted.
    most_visits
        The most items whose edges are looked at.
    limits : float64 array of shape (n,), optional
        For each place, what no route from a start to it exceeds in value: the tighter, the fewer
        items are visited. The routes do not depend on it.
    """
    search = _Search(edges, starts, step, limits)
    # With none left to find, the search would go through all that the goal is joined to.
    count = min(count, sum(weight > 0 for weight in starts.values()))
    search.reach(goal, 0.0, None)
    found: list[int] = []
    while search.waiting and len(found) < count:
        cost, is_start, _, place = heapq.heappop(search.waiting)
        if is_start:
            if place not in found:
                found.append(place)
        elif cost <= search.costs[place] + search.ahead(place):
            if search.visited == most_visits:
                found.extend(start for start in search.known_starts() if start not in found)
                routes = tuple(map(search.route, found[:count]))
                return Routes(routes, search.visited, cut=True)
            search.visit(place)
    return Routes(tuple(map(search.route, found)), search.visited, cut=False)


class _Search:
    """What is known so far on the way from the goal to the starts; costs are negative logarithms.

    Attributes
    ----------
    waiting : list
        A heap: the least total cost by way of an item, whether the item is taken as a start, its
        id and its place. At the same cost, items are visited before a route is taken as found, so
        that all routes of that cost are known.
    costs : dict
        The least cost found between each item and the goal.
    """

    def __init__(
        self,
        edges: HostEdges,
        starts: Mapping[int, float],
        step: float,
        limits: NDArray[np.float64] | None,
    ) -> None:
        self.waiting: list[tuple[float, bool, int, int]] = []
        self.costs: dict[int, float] = {}
        self.visited = 0
        self._edges, self._starts, self._step, self._limits = edges, starts, step, limits
        self._toward_goal: dict[int, int | None] = {}
        self._largest = max(starts.values(), default=0.0)

    def ahead(self, place: int) -> float:
        """What a route costs at least between an item and a start, the start's own cost too."""
        limit = self._largest
        if self._limits is not None:
            limit = min(limit, float(self._limits[place]))
        return -math.log(limit) if limit > 0 else math.inf

    def reach(self, place: int, cost: float, source: int | None) -> None:
        """Note a way of some cost from an item to the goal, by way of another item."""
        known = self.costs.get(place, math.inf)
        if cost > known:
            return
        if cost == known:
            other = self._toward_goal[place]
            if source is not None and other is not None:
                names = self._edges.names
                if names[source] < names[other]:
                    self._toward_goal[place] = source
            return
        self.costs[place], self._toward_goal[place] = cost, source
        ahead, name = self.ahead(place), int(self._edges.names[place])
        if ahead < math.inf:
            heapq.heappush(self.waiting, (cost + ahead, False, name, place))
        if self._starts.get(place, 0.0) > 0:
            total = cost - math.log(self._starts[place])
            heapq.heappush(self.waiting, (total, True, name, place))

    def visit(self, place: int) -> None:
        """Look at the edges of an item."""
        self.visited += 1
        columns, weights = self._edges.row(place)
        known = self.costs[place]
        for column, weight in zip(columns.tolist(), weights.tolist(), strict=True):
            factor = self._step * weight
            if factor > 0:  # none with a step of 0, by which nothing is carried
                self.reach(column, known - math.log(factor), place)

    def known_starts(self) -> list[int]:
        """The starts that some way leads from, the cheapest first."""
        ends = [entry for entry in self.waiting if entry[1]]
        return [place for _, _, _, place in sorted(ends)]

    def route(self, start: int) -> Route:
        """The best way from a start to the goal."""
        places, place = [start], self._toward_goal[start]
        while place is not None:
            places.append(place)
            place = self._toward_goal[place]
        weights = tuple(self._weight(one, other) for one, other in pairwise(places))
        value = self._starts[start] * math.prod(self._step * weight for weight in weights)
        return Route(tuple(places), weights, value)

    def _weight(self, one: int, other: int) -> float:
        columns, weights = self._edges.row(other)
        return float(weights[int(np.flatnonzero(columns == one)[0])])
