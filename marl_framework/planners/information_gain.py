"""Greedy information gain: each UAV flies where its next reading is expected to gain most."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.algorithms.policy import best_actions
from marl_framework.kernels.cells import bayes_update, entropy, interest_weight
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.sensor import entropy_left, reading_odds
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision

# Window cells processed at once: few enough for a CPU's caches, enough to keep a GPU busy.
_CPU_CELLS = 2**18
_GPU_CELLS = 2**24


def expected_gain(belief: Tensor, rates: Tensor, prior: float) -> Tensor:
    """Return the weighted entropy that one more reading of a cell is expected to remove [bit].

    E_z[w(p_z)·(H(p) − H(p_z))] over both readings z, with their probabilities under the belief p
    and the sensor; p_z is the belief after reading z (Westheider et al. 2023, section III-C,
    before the reading is known).

    `rates` are the probabilities of a miss and of a false alarm, [..., 2], without the last axis
    broadcastable to the belief. `prior` is the belief before any reading.
    """
    before = entropy(belief)
    miss, false_alarm = rates.unbind(-1)
    positive = false_alarm + belief * (1 - (miss + false_alarm))
    odds = reading_odds(rates)
    total = torch.zeros_like(belief)
    for sign, probability in ((1, positive), (-1, 1 - positive)):
        after = bayes_update(belief, torch.full_like(belief, sign), odds, prior)
        total += probability * interest_weight(after) * (before - entropy(after))
    return total


class InformationGainPlanner:
    """Scores every allowed action by the expected gain of the whole footprint at its destination.

    Each UAV uses its own belief. Where it hears a UAV that chose before it, cells that the other
    will see count less: by the share of an undecided cell's entropy that a reading leaves. Without
    `communication` all cells count fully. `prior` is the belief before any reading.
    """

    name = "information_gain"

    def __init__(
        self, lattice: Lattice, camera: Camera, prior: float, communication: bool = True
    ) -> None:
        self._lattice, self._camera = lattice, camera
        self._prior, self._communication = prior, communication
        self._left = entropy_left(camera.error_rates)
        cells = _GPU_CELLS if lattice.offsets.is_cuda else _CPU_CELLS
        self.chunk = max(1, cells // math.prod(camera.window))

    @torch.no_grad()
    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        firsts = range(0, len(state.positions), self.chunk)
        parts = [self._act(state[first : first + self.chunk]) for first in firsts]
        actions, masks, scores = map(torch.cat, zip(*parts, strict=True))
        return Decision(actions, masks, scores=scores)

    def _act(self, state: MissionState) -> tuple[Tensor, Tensor, Tensor]:
        # Masked actions may lead off the lattice; their nearest positions stand in for them.
        goals = self._lattice.nearest_destinations(state.positions)
        chosen: list[Tensor] = []
        scores: list[Tensor] = []

        def choose(i: int, mask: Tensor) -> Tensor:
            # Rounding makes equal actions equal, and the first one is taken.
            score = self.scores(state, i, goals[:, i], chosen).round(decimals=2)
            action = best_actions(score, mask)
            index = action.view(-1, 1, 1).expand(-1, 1, 3)
            chosen.append(goals[:, i].gather(1, index).squeeze(1))
            scores.append(score * mask)
            return action

        actions, masks = self._lattice.choose_in_missions(state, choose)
        return actions, masks, torch.stack(scores, dim=1)

    def scores(self, state: MissionState, i: int, goals: Tensor, chosen: list[Tensor]) -> Tensor:
        """Return the expected gain of UAV i at `goals` [E, A, 3] in bit, summed over cells, [E, A].

        UAVs 0 … i − 1 have `chosen` their next positions, [E, 3] each.
        """
        belief = state.beliefs[:, i].flatten(1)
        scores = []
        for goal in goals.unbind(1):
            footprint = self._camera.footprint(goal)
            cells = belief.gather(1, self._camera.window_index(footprint))
            rates = self._camera.error_rates[goal[:, 2:]]
            gain = expected_gain(cells, rates, self._prior).unflatten(1, self._camera.window)
            if self._communication:
                for j, other in enumerate(chosen):
                    known = state.heard[:, i, j] & state.active[:, j]
                    taken = known * (1 - self._left[other[:, 2]])
                    rows, cols = self._camera.inside(footprint, self._camera.footprint(other))
                    gain *= 1 - (_column(rows) * taken.view(-1, 1, 1)) * _column(cols).mT
            rows, cols = self._camera.inside(footprint, footprint)
            scores.append((_column(rows).mT @ gain @ _column(cols)).flatten())
        return torch.stack(scores, dim=1)


def make(environment: MissionEnvironment) -> InformationGainPlanner:
    """Create the planner for an environment."""
    prior, settings = environment.config.mapping.prior, environment.config.experiment.baselines
    talks = settings.information_gain.communication
    return InformationGainPlanner(environment.lattice, environment.camera, prior, talks)


def _column(inside: Tensor) -> Tensor:
    return inside.to(torch.float32).unsqueeze(-1)
