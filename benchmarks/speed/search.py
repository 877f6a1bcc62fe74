"""Measure the speed-up of batched tree search: `python -m benchmarks.speed.search [--quick]`.

The planner `search` decides the first move of all UAVs of many missions, the longest search of a
mission, with many leaves of each tree at once. Its two parts are timed apart: the network predicts
from the beliefs, then the trees grow. A simulation counts if it finds a leaf. Other rows are the
beam search, and one process that searches one mission and one leaf at a time, with numpy
(`benchmarks.reference.plain_tree`). The network is untrained, which takes the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.helpers import harness
from benchmarks.helpers.command_line import Job, Parser, with_overrides
from benchmarks.helpers.harness import Timing
from benchmarks.helpers.text import duration_text, number_text, table_text
from benchmarks.reference.plain_tree import PlainLattice, PlainTree
from marl_framework.config.mission import SearchConfig
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.greedy import Problem
from marl_framework.planners.search.models import PredictedMap
from marl_framework.planners.search.planner import SearchPlanner
from marl_framework.planners.search.tree import Tree, TreeSearch
from marl_framework.planners.search.windows import PathSearch

MISSIONS, LEAVES = (1, 64, 1024), (1, 8, 32)
QUICK_MISSIONS, QUICK_LEAVES, QUICK_SIMULATIONS = (1, 64), (1, 8, 32), 64
PLAIN, BEAM, TREE = "one at a time", "beam", "tree"


class CountedTree(TreeSearch):
    """Tree search that counts the leaves found."""

    leaf_count = 0

    def grow(self, problem: Problem) -> Tree:
        """Return the trees; see `TreeSearch`."""
        tree = super().grow(problem)
        self.leaf_count += int(tree.children.count_nonzero())
        return tree


class Move:
    """The first move of E missions.

    Args:
        config: the missions, the predictor's size and the search.
        missions: E.
        device: where everything lives.
    """

    def __init__(self, config: Config, missions: int, device: torch.device) -> None:
        self._environment = environment = MissionEnvironment(config, missions, device)
        self._state = environment.reset(environment.draw_reset())
        self.view = LatticeView(config, environment.lattice, PARTS)
        network = MapPredictor(config.prediction.width).to(device).eval()
        self._model = PredictedMap(self.view, network, config.compute.precision)
        self._left = self.predict()

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Return the map predicted for each UAV, [E, N, X, Y]."""
        return self._model.left(self._state)

    def decide(self, search: PathSearch) -> None:
        """Decide the move of all UAVs from the predicted maps."""
        # The network is timed apart.
        known: Any = SimpleNamespace(
            knows_all_plans=False, left=lambda state: self._left[: len(state.positions)]
        )
        planner = SearchPlanner("search", self.view, known, search)
        planner.act(self._state, self._environment.generator)

    def decide_plainly(self, settings: SearchConfig) -> int:
        """Search for each UAV of the first mission in turn; return the number of leaves found."""
        tree = PlainTree(PlainLattice.of(self.view), settings.simulations, settings.depth, 1)
        masks = self.view.lattice.boundary_mask(self._state.positions)[0].cpu()
        leaf_count = 0
        for position, mask, left in zip(
            self._state.positions[0].tolist(), masks, self._left[0].cpu().numpy(), strict=True
        ):
            allowed = mask.nonzero().flatten().tolist()
            tree.search(tuple(position), allowed, left, self.view.moves)
            leaf_count += tree.found
        return leaf_count


def tree_row(
    move: Move, missions: int, leaves: int, settings: SearchConfig, seconds: float
) -> dict[str, Any]:
    """Time tree search with many leaves at once; see `measure`."""

    def search(simulations: int) -> CountedTree:
        return CountedTree(move.view, simulations, settings.depth, leaves)

    device = move.predict().device
    move.decide(search(2 * leaves))  # warms up
    counted = search(settings.simulations)
    move.decide(counted)
    plain = TreeSearch(move.view, settings.simulations, settings.depth, leaves)
    spent = _time(lambda: move.decide(plain), seconds, device)
    return _row(TREE, missions, leaves, spent, counted.leaf_count)


def _time(work: Any, seconds: float, device: torch.device) -> Timing:
    return harness.measure(work, seconds, device, warm_up=0, least=1)


def _row(
    method: str, missions: int, leaves: int | None, spent: Timing, leaf_count: int | None
) -> dict[str, Any]:
    return {
        "method": method,
        "missions": missions,
        "leaves": leaves,
        "seconds_search": spent.median,
        **spent.columns(),
        "simulations_per_s": leaf_count and leaf_count / spent.median,
    }


def measure(job: Job) -> dict[str, Any]:
    """Measure all rows.

    Returns:
        `settings` and `rows`: `method`, `missions` and `leaves` at once; the time of one move of
        all UAVs of all missions in the network and in the search [s]; and simulations per second
        of the search, also relative to those one at a time.
    """
    config, device, quick = job.config, job.device, job.options.quick
    seconds = job.options.seconds_per_row
    if quick:
        simulations = f"experiment.baselines.search.simulations={QUICK_SIMULATIONS}"
        config = with_overrides(config, simulations)
    settings = config.experiment.baselines.search
    first = Move(config, 1, device)
    leaf_count = first.decide_plainly(settings)
    spent = _time(lambda: first.decide_plainly(settings), seconds, harness.CPU)
    shown = {name: getattr(settings, name) for name in ("simulations", "depth", "beams")}
    rows: list[dict[str, Any]] = []
    results = {"settings": {"quick": quick, "seconds_per_row": seconds, **shown}, "rows": rows}

    def add(*made: dict[str, Any], network: float | None) -> None:
        for row in made:
            speed = row["simulations_per_s"]
            times = speed and speed / (rows[0] if rows else row)["simulations_per_s"]
            rows.append({**row, "seconds_network": network, "times_one_at_a_time": times})
        job.save(results)

    add(_row(PLAIN, 1, 1, spent, leaf_count), network=None)
    for missions in QUICK_MISSIONS if quick else MISSIONS:
        move = Move(config, missions, device)
        network = harness.measure(move.predict, seconds, device, least=1).median
        beam = BeamSearch(move.view, settings.beams)
        move.decide(beam)
        spent = _time(lambda move=move, beam=beam: move.decide(beam), seconds, device)
        of_missions = [_row(BEAM, missions, None, spent, None)]
        for leaves in QUICK_LEAVES if quick else LEAVES:
            of_missions.append(tree_row(move, missions, leaves, settings, seconds))
            print(f"{missions} missions, {leaves} leaves", file=sys.stderr, flush=True)
        add(*of_missions, network=network)
    return results


def table(results: Mapping[str, Any]) -> str:
    """Return the results as text."""
    lines = [
        (
            row["method"],
            f"{row['missions']:,}",
            number_text(row["leaves"], "d"),
            duration_text(row["seconds_network"]),
            duration_text(row["seconds_search"]),
            number_text(row["simulations_per_s"], ",.0f"),
            number_text(row["times_one_at_a_time"], ".1f"),
        )
        for row in results["rows"]
    ]
    settings = results["settings"]
    title = (
        f"The first move of all UAVs: {settings['simulations']} simulations of depth "
        f"{settings['depth']} each, or {settings['beams']} beams"
        f"{' (quick)' if settings['quick'] else ''}"
    )
    header = ("", "missions", "leaves", "network", "search", "simulations/s", "times one at a time")
    return table_text(title, header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, or 2 for bad input."""
    description = "Time tree search over missions and leaves."
    parser = Parser("speed.search", description, config="params_fast.yaml")
    parser.add_argument("--quick", action="store_true", help="few missions and simulations")
    return parser.publish(arguments, measure, table)


if __name__ == "__main__":
    sys.exit(main())
