"""Sensor readings and their fusion into beliefs, with the kernels in `kernels.windows`."""

from __future__ import annotations

from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.kernels import windows
from marl_framework.kernels.versions import Version, version_for
from marl_framework.kernels.windows import Maps, View
from marl_framework.mission.camera import Camera
from marl_framework.mission.reward import Utility, utility
from marl_framework.mission.state import MissionState


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
        self, state: MissionState, bits: Tensor, running: Tensor, blank: bool = False
    ) -> Utility:
        """Take and fuse the readings of a step; return the information gained.

        Args:
            state: missions with current positions and `heard`; readings, beliefs, pooled maps and
                information sums are updated in place.
            bits: sensor noise, see `windows.read`.
            running: missions to update, [E] bool; other missions do not change.
            blank: whether to reset beliefs to the prior; the caller resets pooled maps and sums.
        """
        view, prior = self.view(state, running), self._prior if blank else None
        self.read(state, view, bits)
        gain = self.fuse_global(state, view, prior)
        self.fuse_own(state, view, prior=prior)
        return gain

    def view(self, state: MissionState, running: Tensor) -> View:
        """Return the UAVs' footprints and odds, and the missions to update, for the kernels."""
        boxes = self._camera.team_boxes(state.positions, state.active)
        odds = self._camera.optics.odds[state.positions[..., 2]]
        return View(self._camera.optics, state.positions, boxes, odds, running)

    def read(self, state: MissionState, view: View, bits: Tensor) -> None:
        """Take a reading with each UAV; see `windows.read`."""
        windows.read(self.version, view, state.truth, bits, state.readings, state.pooled_readings)

    def fuse_own(
        self,
        state: MissionState,
        view: View,
        takes_own: bool = True,
        takes_heard: bool = True,
        prior: float | None = None,
    ) -> None:
        """Fuse readings into own beliefs; see `windows.fuse_own`."""
        own = state.beliefs, state.pooled_beliefs, state.pooled_uncertainty
        maps, flags = Maps(*own, self.tracks_uncertainty, prior), (takes_own, takes_heard)
        windows.fuse_own(self.version, view, state.readings, state.heard, maps, *flags)

    def fuse_global(self, state: MissionState, view: View, prior: float | None = None) -> Utility:
        """Fuse readings into the global belief; return the gain. See `windows.fuse_global`."""
        shared = state.global_belief, state.pooled_global, state.pooled_global_uncertainty
        maps = Maps(*shared, self.tracks_uncertainty, prior)
        sums = windows.fuse_global(self.version, view, state.readings, maps)
        return utility(sums, state, self._cells)
