"""Greedy information gain: each UAV flies where its next reading is expected to gain most."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from marl_framework.algorithms.policy import best_actions
from marl_framework.kernels.cells import bayes_update, entropy, interest_weight
from marl_framework.kernels.gains import footprint_gains
from marl_framework.kernels.versions import Version
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.sensor import entropy_left
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision

# Window cells processed at once. Plain operators on a CPU need few enough for its caches.
_CACHED_CELLS = 2**18
_MOST_CELLS = 2**24


def expected_gain(belief: Tensor, rates: Tensor, odds: Tensor) -> Tensor:
    """Return the weighted entropy that one more reading of a cell is expected to remove [bit].

    The gain is E_z[w(p_z)·(H(p) − H(p_z))], where p_z is the belief after reading z (Westheider et
    al. 2023, section III-C, before the reading is known). Belief p and the sensor determine the
    probabilities of both readings z.

    `rates` are the probabilities of a miss and a false alarm, [..., 2]; `odds` are those of a
    positive and a negative reading, divided by the prior odds, [..., 2]. Without the last
    dimension both must broadcast to the belief.
    """
    before = entropy(belief)
    miss, false_alarm = rates.unbind(-1)
    positive = false_alarm + belief * (1 - (miss + false_alarm))
    total = torch.zeros_like(belief)
    for sign, probability in ((1, positive), (-1, 1 - positive)):
        after = bayes_update(belief, torch.full_like(belief, sign), odds)
        total += probability * interest_weight(after) * (before - entropy(after))
    return total


class InformationGainPlanner:
    """Scores each allowed action by the expected gain over the footprint at its destination.

    Each UAV uses its own belief. If it hears a UAV that chose earlier, the gain of cells in that
    UAV's next footprint is multiplied by the share of an undecided cell's entropy that a reading
    leaves. Without `communication` all cells count fully. `version` is the kernel version; there
    are no Triton kernels, so GPUs use plain operators.
    """

    name = "information_gain"

    def __init__(
        self,
        lattice: Lattice,
        camera: Camera,
        communication: bool = True,
        version: Version = Version.PLAIN,
    ) -> None:
        self._lattice, self._camera, self._version = lattice, camera, version
        self._communication = communication
        in_cache = version is Version.PLAIN and not lattice.offsets.is_cuda
        cells = _CACHED_CELLS if in_cache else _MOST_CELLS
        self.chunk = max(1, cells // math.prod(camera.window))

    @torch.no_grad()
    def act(self, state: MissionState, generator: torch.Generator) -> Decision:
        """Choose an action for each UAV; see `Planner`."""
        firsts = range(0, len(state.positions), self.chunk)
        parts = [self._act(state[first : first + self.chunk]) for first in firsts]
        actions, masks, scores = map(torch.cat, zip(*parts, strict=True))
        return Decision(actions, masks, scores=scores)

    def _act(self, state: MissionState) -> tuple[Tensor, Tensor, Tensor]:
        # Masked actions may lead off the lattice; clamp their destinations to the lattice.
        goals = self._lattice.nearest_destinations(state.positions)
        chosen: list[Tensor] = []
        scores: list[Tensor] = []

        def choose(i: int, mask: Tensor) -> Tensor:
            # Rounding makes near-equal scores equal; argmax then takes the first action.
            score = self.scores(state, i, goals[:, i], chosen, mask).round(decimals=2)
            action = best_actions(score, mask)
            index = action.view(-1, 1, 1).expand(-1, 1, 3)
            chosen.append(goals[:, i].gather(1, index).squeeze(1))
            scores.append(score)
            return action

        actions, masks = self._lattice.choose_in_missions(state, choose)
        return actions, masks, torch.stack(scores, dim=1)

    def scores(
        self, state: MissionState, i: int, goals: Tensor, chosen: list[Tensor], allowed: Tensor
    ) -> Tensor:
        """Return the expected gain of UAV i at `goals` [E, A, 3] in bit, summed over cells, [E, A].

        `chosen` holds the next positions of UAVs 0 … i − 1, [E, 3] each. The gain is 0 at goals
        that are not `allowed`, [E, A] bool.
        """
        others = torch.stack([goals[:, 0], *chosen], dim=1)[:, 1:]
        known = state.heard[:, i, :i] & state.active[:, :i] & self._communication
        others_rates = self._camera.rates(others[..., 2], state.caution[:, :i])
        kept = entropy_left(others_rates).where(known, 1.0)
        z, caution = goals[..., 2], state.caution[:, i : i + 1]
        rates, odds = self._camera.rates(z, caution), self._camera.relative_odds(z, caution)
        if self._version is Version.LOOPS:
            boxes, other_boxes = self._camera.boxes(goals), self._camera.boxes(others)
            return footprint_gains(state.beliefs, i, allowed, boxes, rates, odds, other_boxes, kept)
        belief, removed = state.beliefs[:, i].flatten(1), (1 - kept[..., None, None]).unbind(1)
        scores = []
        for a, goal in enumerate(goals.unbind(1)):
            footprint = self._camera.footprint(goal)
            cells = belief.gather(1, self._camera.window_index(footprint))
            gain = expected_gain(cells, rates[:, a : a + 1], odds[:, a : a + 1])
            gain = gain.unflatten(1, self._camera.window)
            for other, share in zip(others.unbind(1), removed, strict=True):
                rows, cols = self._camera.inside(footprint, self._camera.footprint(other))
                gain *= 1 - (_as_column(rows) * share) * _as_column(cols).mT
            rows, cols = self._camera.inside(footprint, footprint)
            scores.append((_as_column(rows).mT @ gain @ _as_column(cols)).flatten())
        return torch.stack(scores, dim=1) * allowed


def make(environment: MissionEnvironment) -> InformationGainPlanner:
    """Create the planner for an environment."""
    communication = environment.config.experiment.baselines.information_gain.communication
    version = environment.fusion.version
    return InformationGainPlanner(environment.lattice, environment.camera, communication, version)


def _as_column(inside: Tensor) -> Tensor:
    return inside.to(torch.float32).unsqueeze(-1)
