"""Sensor readings and their fusion into beliefs, with the kernels in `kernels.windows`."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels import windows
from marl_framework.kernels.versions import Version, version_for
from marl_framework.kernels.windows import Maps, View
from marl_framework.mission.camera import Camera
from marl_framework.mission.reward import Utility, utility
from marl_framework.mission.sensor import estimated_rates, reading_odds
from marl_framework.mission.state import MissionState, assign, empty_fields

_ASSUMED_CELLS = 500.0
"""Weight of the assumed error rates in the estimates, as a number of cells read twice."""


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
        self.adapts = config.sensor.model.adapt
        rates = camera.error_rates
        trusted = torch.stack((rates, torch.ones_like(rates), torch.ones_like(rates)), -1)
        self._assumed_counts = _ASSUMED_CELLS * trusted

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
        if self.adapts:
            self._estimate(state, view, blank)
            view = self._view(state, state.positions, view.boxes, running)
        gain = self.fuse_global(state, view, prior)
        self.fuse_own(state, view, prior=prior)
        return gain

    def view(self, state: MissionState, running: Tensor, frames: Tensor | None = None) -> View:
        """Return the UAVs' footprints and odds, and the missions to update, for the kernels."""
        boxes = self._camera.team_boxes(state.positions, state.active)
        return self._view(state, state.positions, boxes, running, frames)

    def _view(
        self,
        state: MissionState,
        positions: Tensor,
        boxes: Tensor,
        running: Tensor,
        frames: Tensor | None = None,
    ) -> View:
        if frames is not None:  # a lost frame has no rows
            first, end, rest = boxes.split((1, 1, 6), dim=-1)
            boxes = torch.cat((first, end.where(frames.unsqueeze(-1), first), rest), dim=-1)
        odds = at_altitudes(state.odds, self._camera.optics.odds, positions)
        return View(self._camera.optics, positions, boxes, odds, running)

    def _estimate(self, state: MissionState, view: View, blank: bool) -> None:
        """Estimate error rates from readings that contradict own beliefs; set `state.odds`."""
        if blank:
            counts = self._assumed_counts.expand_as(state.counts)
        else:
            found = windows.contradictions(self.version, view, state.readings, state.beliefs)
            levels = torch.arange(state.counts.shape[1], device=found.device)
            at = (state.positions[..., 2:] == levels).to(found.dtype)
            counts = state.counts + torch.einsum("enz,enst->ezst", at, found)
        assign(state.counts, counts, view.active)
        odds = reading_odds(estimated_rates(state.counts)) * ((1 - self._prior) / self._prior)
        assign(state.odds, odds, view.active)

    def empty_state(self, num_envs: int) -> dict[str, Tensor]:
        """Return the fields of `MissionState` for estimated rates, empty if there are none."""
        counts = self._assumed_counts.shape
        shapes = {
            "counts": (self.adapts, tuple(counts), torch.float32),
            "odds": (self.adapts, (counts[0], 2), torch.float32),
        }
        return empty_fields(shapes, num_envs, self._assumed_counts.device)

    def read(
        self, state: MissionState, view: View, bits: Tensor, shift: Tensor | None = None
    ) -> None:
        """Take a reading with each UAV; see `windows.read`."""
        table = self._camera.optics.flip_below
        limits = at_altitudes(state.flip_below, table, state.positions)
        taken = state.readings, state.pooled_readings
        windows.read(self.version, view, state.truth, bits, limits, shift, *taken)

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
        arrives: Tensor,
        running: Tensor,
    ) -> None:
        """Fuse readings of an earlier step into own beliefs.

        Args:
            state: missions, updated in place.
            positions: positions of the readings, [E, N, 3] int64.
            readings: see `windows.read`.
            arrives: whether UAV i gets the reading of UAV j now, [E, N, N] bool.
            running: missions to update, [E] bool.
        """
        taken = readings.flatten(2).any(-1)
        view = self._view(state, positions, self._camera.boxes(positions), running, taken)
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
        return utility(sums, state, self._cells)


def at_altitudes(own: Tensor, shared: Tensor, positions: Tensor) -> Tensor:
    """Look up a table at the UAVs' altitudes, [E, N, 2].

    Args:
        own: table of each mission, [E, Z, 2]; size 0 if all missions share a table.
        shared: table of all missions, [Z, 2].
        positions: lattice indices, [E, N, 3].
    """
    z = positions[..., 2]
    return own.gather(1, z.unsqueeze(2).expand(-1, -1, 2)) if own.numel() else shared[z]
