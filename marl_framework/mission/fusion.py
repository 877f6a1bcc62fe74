"""Sensor readings and their fusion into beliefs, with the kernels in `kernels.windows`."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels import windows
from marl_framework.kernels.versions import Version, version_for
from marl_framework.kernels.windows import Maps, View
from marl_framework.mission.camera import Camera
from marl_framework.mission.camera_noise import SUMS, CameraNoise
from marl_framework.mission.reward import Utility, utility
from marl_framework.mission.state import MissionState, empty_fields

CAUTION_STEPS = 5
"""Learned caution is a multiple of 1 / `CAUTION_STEPS`, at least one."""


class Fusion:
    """Takes readings, fuses them into beliefs, and updates pooled maps and information sums.

    Attributes:
        version: kernel version; by default the fastest for the camera's device.
        tracks_uncertainty: whether pooled uncertainties are kept up to date.
        draws_bits: whether the kernel draws sensor noise itself, from one key per mission.
    """

    def __init__(self, config: Config, camera: Camera, version: Version | None = None) -> None:
        self.version = version or version_for(config.compute, camera.odds.device)
        self.tracks_uncertainty = config.observation.sees_uncertainty
        self.draws_bits = self.version is Version.TRITON
        self._camera = camera
        self._prior = config.mapping.prior
        self._cells = camera.shape[0] * camera.shape[1]

    def update(
        self,
        state: MissionState,
        bits: Tensor,
        running: Tensor,
        blank: bool = False,
        frames: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Utility:
        """Take and fuse the readings of a step; return the information gained.

        Args:
            state: missions with current positions and `heard`; readings, beliefs, pooled maps and
                information sums are updated in place.
            bits: sensor noise, see `windows.read`.
            running: missions to update, [E] bool; other missions do not change.
            blank: whether to reset beliefs to the prior; the caller resets pooled maps and sums.
            frames: UAVs that get a frame, [E, N] bool; None for all.
            shift: see `windows.read`.
        """
        view, prior = self.view(state, running, frames), self._prior if blank else None
        self.read(state, view, bits, shift)
        if self._camera.adapts:
            taken = state.active & running.unsqueeze(1)
            self.learn(state, taken if frames is None else taken & frames)
            odds = self._camera.relative_odds(state.positions[..., 2], state.caution)
            view = view._replace(odds=odds)
        gain = self.fuse_global(state, view, prior)
        self.fuse_own(state, view, prior=prior)
        return gain

    def view(self, state: MissionState, running: Tensor, frames: Tensor | None = None) -> View:
        """Return the UAVs' footprints and odds, and the missions to update, for the kernels."""
        boxes = self._camera.team_boxes(state.positions, state.active)
        return self._view(state.positions, boxes, running, frames, state.caution)

    def _view(
        self,
        positions: Tensor,
        boxes: Tensor,
        running: Tensor,
        frames: Tensor | None,
        caution: Tensor,
    ) -> View:
        if frames is not None:  # a lost frame has no rows
            first, end, rest = boxes.split((1, 1, 6), dim=-1)
            boxes = torch.cat((first, end.where(frames.unsqueeze(-1), first), rest), dim=-1)
        odds = self._camera.relative_odds(positions[..., 2], caution)
        return View(self._camera.optics, positions, boxes, odds, running)

    def learn(self, state: MissionState, taken: Tensor) -> None:
        """Learn from the readings of the UAVs that took one, [E, N] bool; see `CameraNoise`.

        The caution is rounded: if it changed with each reading, readings for and against a cell
        would not cancel out, which lowers F1 even if the camera errs as assumed.
        """
        noise = CameraNoise(self._camera, sums=state.noise)
        noise.add(state, taken)
        steps = (noise.caution() * CAUTION_STEPS).round().clamp(min=1)
        state.caution.copy_(steps / CAUTION_STEPS)

    def empty_state(self, num_envs: int, n_agents: int) -> dict[str, Tensor]:
        """Return the fields of `MissionState` for `learn`, empty without `sensor.model.adapt`."""
        levels, on = len(self._camera.odds), self._camera.adapts
        shapes = {
            "noise": (on, (n_agents, levels, *SUMS), torch.float64),
            "caution": (on, (n_agents,), torch.float32),
        }
        return empty_fields(shapes, num_envs, self._camera.odds.device)

    def read(
        self, state: MissionState, view: View, bits: Tensor, shift: Tensor | None = None
    ) -> None:
        """Take a reading with each UAV; see `windows.read`."""
        z, limits = state.positions[..., 2], state.flip_below
        if limits.numel():  # real error rates of each mission
            limits = limits.gather(1, z.unsqueeze(2).expand(-1, -1, 2))
        else:
            limits = self._camera.optics.flip_below[z]
        taken = state.readings, state.pooled_readings
        inside = state.inside if state.inside.numel() else None
        windows.read(self.version, view, state.truth, bits, limits, shift, *taken, inside)

    def fuse_own(
        self,
        state: MissionState,
        view: View,
        takes_own: bool = True,
        takes_heard: bool = True,
        prior: float | None = None,
    ) -> None:
        """Fuse readings into own beliefs; see `windows.fuse_own`."""
        maps, flags = self._own_maps(state, prior), (takes_own, takes_heard)
        windows.fuse_own(self.version, view, state.readings, state.heard, maps, *flags)

    def fuse_late(
        self,
        state: MissionState,
        positions: Tensor,
        readings: Tensor,
        caution: Tensor,
        arrives: Tensor,
        running: Tensor,
    ) -> None:
        """Fuse readings of an earlier step into own beliefs.

        Args:
            state: missions, updated in place.
            positions: positions of the readings, [E, N, 3] int64.
            readings: see `windows.read`.
            caution: caution of the readings, [E, N]; of size 0 without `sensor.model.adapt`.
            arrives: whether UAV i gets the reading of UAV j now, [E, N, N] bool.
            running: missions to update, [E] bool.
        """
        taken = readings.flatten(2).any(-1)
        view = self._view(positions, self._camera.boxes(positions), running, taken, caution)
        maps = self._own_maps(state, None)
        windows.fuse_own(self.version, view, readings.contiguous(), arrives, maps, False)

    def _own_maps(self, state: MissionState, prior: float | None) -> Maps:
        own = state.beliefs, state.pooled_beliefs, state.pooled_uncertainty
        return Maps(*own, self.tracks_uncertainty, prior)

    def fuse_global(self, state: MissionState, view: View, prior: float | None = None) -> Utility:
        """Fuse readings into the global belief; return the gain. See `windows.fuse_global`."""
        shared = state.global_belief, state.pooled_global, state.pooled_global_uncertainty
        maps = Maps(*shared, self.tracks_uncertainty, prior)
        sums = windows.fuse_global(self.version, view, state.readings, maps)
        return utility(sums, state, state.counted if state.counted.numel() else self._cells)
