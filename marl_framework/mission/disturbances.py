"""Disturbances: differences between a mission and what its UAVs assume.

Each disturbance is off by default; then it draws nothing and its part of the state is empty.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.config.types import choices, spans
from marl_framework.mission.camera import Camera, flip_thresholds
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState, ResetDraws, StepDraws, assign, empty_fields

NUMBERS = 3
"""Draws of a UAV for each reading: error along x, error along y, loss of the frame."""
_TAIL = 1e-6  # uniform draws closer to 0 or 1 are clamped, so that normal draws are finite


class Disturbances:
    """Position errors, camera errors, lost frames, and wind; `Radio` has those of messages.

    Attributes:
        shifts: whether footprints lie beside the assumed positions.
        errs: whether error rates of the camera differ from the assumed ones.
        loses_frames: whether frames are lost.
        has_wind: whether costs depend on the wind.
        needs_numbers: whether each reading needs draws, `StepDraws.numbers`.
    """

    def __init__(self, config: Config, camera: Camera, lattice: Lattice) -> None:
        device = lattice.offsets.device
        uav, reality = config.experiment.uav, config.sensor.reality
        cost = config.experiment.constraints.cost
        spreads: dict[str, Any] = {
            "bias": uav.position_error.bias,
            "jitter": uav.position_error.jitter,
            "factor": reality.factor,
            "miss": reality.miss,
            "false_alarm": reality.false_alarm,
            "lost_frames": reality.lost_frames,
            "burst": uav.failure_burst or 0.0,
            "wind": cost.wind,
        }
        ends = {name: torch.tensor(spans(spread)) for name, spread in spreads.items()}
        calm = {"factor": 1.0}
        on = {name: bool((pairs != calm.get(name, 0.0)).any()) for name, pairs in ends.items()}
        self._ends = {name: pairs.to(device) for name, pairs in ends.items() if on[name]}
        self.shifts = on["bias"] or on["jitter"]
        self.errs = on["factor"] or on["miss"] or on["false_alarm"]
        self.loses_frames, self.has_wind = on["lost_frames"], on["wind"]
        self.needs_numbers = self.shifts or self.loses_frames
        self._camera, self._lattice = camera, lattice
        self._cell_size = torch.tensor(config.geometry.cell_size, device=device)
        _check(config, ends)

    def draw(self, uniform: Any, num_envs: int, n_agents: int) -> dict[str, Tensor]:
        """Draw what `begin` needs, as keywords of `ResetDraws`; `uniform(*shape)` draws numbers."""
        drawn = {}
        if self._ends:
            drawn["spreads"] = uniform(num_envs, len(self._ends) + 1)
        if self.shifts:
            drawn["bias"] = uniform(num_envs, n_agents, 2)
        return drawn

    def empty_state(self, num_envs: int, n_agents: int) -> dict[str, Tensor]:
        """Return the disturbances' fields of `MissionState`, empty if they are off."""
        levels, actions = self._lattice.shape[2], self._lattice.num_actions
        shapes: dict[str, tuple[bool, tuple[int, ...], torch.dtype]] = {
            "position_bias": (self.shifts, (n_agents, 2), torch.float32),
            "position_jitter": (self.shifts, (), torch.float32),
            "flip_below": (self.errs, (levels, 2), torch.int16),
            "lost_frames": (self.loses_frames, (), torch.float32),
            "burst": ("burst" in self._ends, (), torch.float32),
            "costs": (self.has_wind, (actions,), torch.float64),
        }
        return empty_fields(shapes, num_envs, self._cell_size.device)

    def begin(self, state: MissionState, draws: ResetDraws, mask: Tensor | None) -> None:
        """Set the disturbances of new missions; see `MissionEnvironment.reset`."""
        if draws.spreads is None:
            return
        values = dict(zip(self._ends, self._spread(draws.spreads), strict=True))
        zero = torch.zeros_like(draws.spreads[:, 0])
        if self.shifts:
            assert draws.bias is not None
            bias = values.get("bias", zero).view(-1, 1, 1) * _normal(draws.bias)
            assign(state.position_bias, bias, mask)
            assign(state.position_jitter, values.get("jitter", zero), mask)
        if self.errs:
            added = torch.stack((values.get("miss", zero), values.get("false_alarm", zero)), -1)
            rates = self._camera.model_rates * values.get("factor", zero + 1).view(-1, 1, 1)
            assign(state.flip_below, flip_thresholds(rates + added.unsqueeze(1)), mask)
        if self.loses_frames:
            assign(state.lost_frames, values["lost_frames"], mask)
        if "burst" in values:
            assign(state.burst, values["burst"], mask)
        if self.has_wind:
            angle = 2 * math.pi * draws.spreads[:, -1].double()
            wind = values["wind"].double().unsqueeze(1)
            assign(state.costs, self._lattice.costs_in_wind(wind, angle.unsqueeze(1)), mask)

    def _spread(self, uniform: Tensor) -> list[Tensor]:
        """Return a value of each disturbance for each mission, [E]; `uniform` is [E, K + 1]."""
        values = []
        for ends, draw in zip(self._ends.values(), uniform.unbind(1), strict=False):
            place = draw * len(ends)
            low, high = ends[place.long().clamp(max=len(ends) - 1)].unbind(-1)
            values.append(low + (high - low) * place.frac())
        return values

    def shift(self, state: MissionState, draws: StepDraws) -> Tensor | None:
        """Return cells between the assumed and the real footprints, [E, N, 2] int64, if any."""
        if not self.shifts:
            return None
        assert draws.numbers is not None
        jitter = state.position_jitter.view(-1, 1, 1) * _normal(draws.numbers[..., :2])
        return ((state.position_bias + jitter) / self._cell_size).round().long()

    def frames(self, state: MissionState, draws: StepDraws) -> Tensor | None:
        """Return which UAVs get a frame, [E, N] bool; None if no frames are lost."""
        if not self.loses_frames:
            return None
        assert draws.numbers is not None
        return draws.numbers[..., 2] >= state.lost_frames.unsqueeze(1)


def _normal(uniform: Tensor) -> Tensor:
    """Convert uniform to normal draws."""
    return torch.special.ndtri(uniform.clamp(_TAIL, 1 - _TAIL))


def _check(config: Config, ends: dict[str, Tensor]) -> None:
    """Raise a ConfigError if disturbances contradict other keys."""
    most = max(choices(config.experiment.uav.failure_rate))
    shortest = float(ends["burst"].min())
    if shortest and most > shortest / (1 + shortest):
        raise ConfigError(
            f"experiment.uav.failure_burst: {shortest:g} is too short for a failure_rate of "
            f"{most:g}; use at least failure_rate / (1 - failure_rate)"
        )
    if ends["wind"].any() and not config.missions.has_cost:
        raise ConfigError(
            "experiment.constraints.cost.wind: requires experiment.constraints.cost.limit"
        )
