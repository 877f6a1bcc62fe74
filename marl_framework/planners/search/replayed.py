"""Searches on a GPU: recorded once as a CUDA graph, then replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from marl_framework.algorithms.graphs import Graphs
from marl_framework.planners.search.problem import Plan, Problem

Search = Callable[[Problem], Plan]


class ReplayedSearch:
    """A search that is recorded for each shape of its problems; see `Graphs`.

    A search starts a hundred short kernels for each move that it looks ahead, so launching them
    one by one takes most of its time. The search must always look equally far ahead.
    """

    def __init__(self, search: Search, graphs: Graphs) -> None:
        self._search, self._graphs = search, graphs
        self._problems: dict[tuple[torch.Size, ...], Problem] = {}

    def __call__(self, problem: Problem) -> Plan:
        """Return the plan; the next call overwrites its `left` and `gains`."""
        given = problem[:-1]  # all tensors
        key = tuple(tensor.shape for tensor in given)
        if key not in self._problems:
            copies = (tensor.contiguous().clone() for tensor in given)
            self._problems[key] = Problem._make((*copies, problem.max_horizon))
        kept = self._problems[key]
        for copy, tensor in zip(kept[:-1], given, strict=True):
            copy.copy_(tensor)
        plan = self._graphs.run(key, self, lambda _: self._search(kept), 0.0, None)
        return plan._replace(action=plan.action.clone())
