"""Chooses what draws observations and actions, and turns transitions: on a GPU few kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from marl_framework.config.learning import PREDICTED_CHANNELS
from marl_framework.config.model import Config
from marl_framework.device import uses_triton
from marl_framework.mission.camera import Camera
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import TritonFusion, fusion_type
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState, Seen
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries

DRAWN_BY_OPERATORS = (
    *PREDICTED_CHANNELS,
    "team_size",
    "radio_range",
    "sector",
    "centred_sector",
)
"""Channels that no kernel draws."""


class TritonBuilder(ObservationBuilder):
    """The same maps: most of the actor's by one kernel, most of the critic's own by another."""

    def __init__(self, config: Config, lattice: Lattice, camera: Camera) -> None:
        super().__init__(config, lattice, camera)
        from marl_framework.mission.kernels import team_operators  # Triton takes a while to import

        self._operators = team_operators

    def actor(self, state: Seen, out: Tensor | None = None) -> Tensor:
        """See `ObservationBuilder.actor`."""
        names, planes = self.actor_channels, self._n_agents if self._heard else 0
        out = self._memory(state, planes + len(names)) if out is None else out
        if planes:
            out[:, :, :planes] = self.heard_uavs(state)
        maps, others = out[:, :, planes:], _drawn_by_operators(names)
        if others:
            _fill(maps, names, self._draw(state, others))
        if len(others) < len(names):
            self._operators.draw_actor_maps(
                state.positions,
                state.t,
                state.heard,
                state.pooled_beliefs,
                state.pooled_readings,
                state.pooled_uncertainty,
                state.open_share,
                self._camera.box_table,
                *self._camera.cover_tables,
                self._camera.shift,
                state.active,
                state.team_size,
                state.budget,
                list(self._camera.shape),
                self._has_inactive,
                self._known(names),
                maps,
            )
        return out

    def critic_only(
        self, state: MissionState, actions: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """See `ObservationBuilder.critic_only`."""
        names = self.critic_channels[len(self.actor_channels) :]
        maps = self._memory(state, len(names)) if out is None else out
        others = _drawn_by_operators(names)
        if others:
            _fill(maps, names, self._draw_own(state, actions, others))
        if len(others) < len(names):
            self._operators.draw_critic_maps(
                state.positions,
                actions,
                state.pooled_global,
                state.pooled_global_uncertainty,
                self._camera.box_table,
                state.active,
                list(self._camera.shape),
                self._has_inactive,
                self._lattice.num_actions,
                self._known(names),
                maps,
            )
        return maps

    def _known(self, names: Sequence[str]) -> str:
        """Return the names that kernels know, each in its place."""
        nothing = self._operators.NOT_DRAWN
        return " ".join(nothing if name in DRAWN_BY_OPERATORS else name for name in names)


def _drawn_by_operators(names: Sequence[str]) -> list[str]:
    """Return those channels that no kernel draws."""
    return [name for name in names if name in DRAWN_BY_OPERATORS]


def _fill(maps: Tensor, names: Sequence[str], drawn: Tensor) -> None:
    """Write channels drawn by operators, [E, N, …, X, Y], into their places among `names`."""
    places = (place for place, name in enumerate(names) if name in DRAWN_BY_OPERATORS)
    for place, plane in zip(places, drawn.unbind(2), strict=True):
        maps[:, :, place] = plane


class ActionKernel:
    """Draws the actions of all UAVs in order of ids, masks included.

    Args:
        lattice: that they move on.
        state: returns the missions as they stand.
    """

    def __init__(self, lattice: Lattice, state: Callable[[], MissionState]) -> None:
        from marl_framework.mission.kernels import team_operators  # Triton takes a while to import

        self._operators = team_operators
        self._lattice = lattice
        self._state = state

    def __call__(
        self,
        logits: Tensor,
        uniform: Tensor,
        epsilon: Tensor,
        actions: Tensor,
        masks: Tensor,
        probabilities: Tensor,
    ) -> None:
        """See `TeamTask.draw_actions`."""
        state = self._state()
        self._operators.choose_actions(
            logits.float().contiguous(),  # those of a network of one's own may be neither
            uniform,
            epsilon,
            state.positions,
            state.moves,
            state.active,
            self._lattice.offsets,
            actions,
            masks,
            probabilities,
        )


def uses_kernels(config: Config, device: torch.device) -> bool:
    """Return whether a device draws observations and actions in kernels, which know no cost."""
    if config.missions.has_cost or fusion_type(config, device) is not TritonFusion:
        return False
    from marl_framework.mission.kernels.team_operators import fits

    return fits(config.geometry.lattice_shape)


def make_builder(
    environment: MissionEnvironment, config: Config | None = None
) -> ObservationBuilder:
    """Return the fastest builder for missions.

    Args:
        environment: the missions.
        config: the same missions, seen through other channels; the environment's by default.
    """
    config = config or environment.config
    made = TritonBuilder if uses_kernels(config, environment.device) else ObservationBuilder
    return made(config, environment.lattice, environment.camera)


def make_symmetries(config: Config, device: torch.device | str) -> Symmetries | None:
    """Return the symmetries that a training run shows its transitions in; None where that is off.

    Raises:
        ConfigError: a flipped mission would not be a mission.
    """
    if not config.learning.symmetries:
        return None
    if not uses_triton(config.compute, torch.device(device)):
        return Symmetries(config, device)
    # Triton takes a while to import, and many machines do without it.
    from marl_framework.observations.turning import TritonSymmetries

    return TritonSymmetries(config, device)
