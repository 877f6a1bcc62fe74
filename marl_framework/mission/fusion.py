"""Updates of beliefs in footprint windows: nothing here passes over a whole map.

Each update exists three times: in plain PyTorch operators, for every device and for
`torch.compile`, in compiled loops for the CPU, and in Triton kernels for GPUs. All keep the pooled
maps and the information sums of the state up to date; tests compare them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.device import Lack, triton_lacks
from marl_framework.mission.area import area_pool
from marl_framework.mission.belief import bayes_update, uncertainty
from marl_framework.mission.camera import Camera, Footprint
from marl_framework.mission.kernels.cpu import WindowLoops
from marl_framework.mission.reward import Utility, changes, utility
from marl_framework.mission.state import MissionState, fill


class WindowFusion:
    """Takes readings and puts them into beliefs.

    Every method but `begin` takes `flown`, the missions to update, [E] bool; the others do not
    change.

    Args:
        config: the mission.
        camera: its camera.

    Attributes:
        tracks_uncertainty: whether pooled uncertainties are kept up to date.
        draws_bits: whether it takes a key for each mission in place of the sensor's bits.
    """

    draws_bits = False

    def __init__(self, config: Config, camera: Camera) -> None:
        self.tracks_uncertainty = config.observation.sees_uncertainty
        self._camera = camera
        self._prior = config.mapping.prior
        self._cells = camera.shape[0] * camera.shape[1]
        self._has_inactive = config.missions.has_inactive

    def _boxes(self, state: MissionState) -> Tensor:
        """Return the footprints, see `Camera.team_boxes`."""
        return self._camera.team_boxes(state.positions, state.active)

    def _footprint(self, state: MissionState) -> Footprint:
        """Return the same as a Footprint."""
        return Footprint(*self._boxes(state).unbind(-1))

    def update(self, state: MissionState, bits: Tensor, flown: Tensor) -> Utility:
        """Take a reading at each UAV and put it into all beliefs that learn of it.

        `measure`, `fuse_global` and `fuse_heard` in one.

        Args:
            state: positions and `heard` are up to date; readings, beliefs, their pooled maps and
                the information sums are written.
            bits: [E, N, K_x, K_y] int16, uniform over all 16-bit integers.
            flown: [E] bool.

        Returns:
            The information these readings gained.
        """
        self.measure(state, bits, flown)
        gained = self.fuse_global(state, flown)
        self.fuse_heard(state, flown)
        return gained

    def begin(self, state: MissionState, bits: Tensor, mask: Tensor | None) -> None:
        """Blank the beliefs of missions that start, and `update` them with their first readings.

        Args:
            state: as for `update`; pooled maps and information sums are those of blank beliefs.
            bits: as for `update`.
            mask: missions that start, [E] bool; all without it.
        """
        for belief in (state.beliefs, state.global_belief):
            fill(belief, self._prior, mask)
        self.update(state, bits, _started(state, mask))

    def measure(self, state: MissionState, bits: Tensor, flown: Tensor) -> None:
        """Take a reading at each UAV and put it into the UAV's own belief.

        Args:
            state: readings, own beliefs and their pooled maps are written.
            bits: [E, N, K_x, K_y] int16, uniform over all 16-bit integers.
            flown: [E] bool.
        """
        readings = self._camera.measure(state.truth, state.positions, bits)
        if self._has_inactive:
            readings = readings * state.active.unsqueeze(-1).unsqueeze(-1)
        chosen = torch.where(flown.view(-1, 1, 1, 1), readings, state.readings)
        state.readings.copy_(chosen)
        self.pool_readings(state)
        footprint = self._footprint(state)
        odds = self._camera.odds[state.positions[..., 2]].unsqueeze(-2)
        index = self._camera.window_index(footprint)
        signs = state.readings.flatten(2) * flown.view(-1, 1, 1)
        own = state.beliefs.flatten(2)
        before = own.gather(2, index)
        after = bayes_update(before, signs, odds, self._prior)
        own.scatter_(2, index, after)
        rows, cols = self._camera.map_weights(state.positions)
        self._pool_own(state, before, after, rows, cols)

    def pool_readings(self, state: MissionState) -> None:
        """Recompute the area means of the latest readings."""
        signs = state.readings.to(state.pooled_readings.dtype)
        state.pooled_readings.copy_(area_pool(signs, *self._camera.tile_weights(state.positions)))

    def fuse_heard(self, state: MissionState, flown: Tensor) -> None:
        """Update own beliefs with the latest readings of the UAVs heard, in the order of ids.

        A UAV's own reading is in its belief already. Where beliefs are clamped the order of the
        senders matters: they come one by one, for all missions and receivers at once.
        """
        n = state.heard.shape[1]
        index = self._camera.window_index(self._footprint(state))
        rows, cols = self._camera.map_weights(state.positions)
        odds = self._camera.odds[state.positions[..., 2]]
        beliefs = state.beliefs.flatten(2)
        listens = _listens(state, flown)
        for j in range(n):
            at = index[:, j : j + 1].expand(-1, n, -1)
            before = beliefs.gather(2, at)
            signs = state.readings[:, j : j + 1].flatten(2) * listens[:, :, j : j + 1]
            after = bayes_update(before, signs, odds[:, j].view(-1, 1, 1, 2), self._prior)
            beliefs.scatter_(2, at, after)
            self._pool_own(state, before, after, rows[:, j : j + 1], cols[:, j : j + 1])

    def _pool_own(
        self, state: MissionState, before: Tensor, after: Tensor, rows: Tensor, cols: Tensor
    ) -> None:
        """Add what changed in windows of own beliefs, [E, N, K] each, to their pooled maps."""
        window = self._camera.window
        change = (after - before).unflatten(2, window)
        state.pooled_beliefs.add_(area_pool(change, rows, cols))
        if self.tracks_uncertainty:
            change = (uncertainty(after) - uncertainty(before)).unflatten(2, window)
            state.pooled_uncertainty.add_(area_pool(change, rows, cols))

    def fuse_global(self, state: MissionState, flown: Tensor) -> Utility:
        """Update the global belief with the latest readings of all UAVs, in the order of ids.

        Returns:
            The information these readings gained.
        """
        footprint = self._footprint(state)
        index = self._camera.window_index(footprint)
        signs = state.readings.flatten(2) * flown.view(-1, 1, 1)
        odds = self._camera.odds[state.positions[..., 2]].unsqueeze(-2)
        belief = state.global_belief.flatten(1)
        before = belief.gather(1, index.flatten(1)).view_as(signs)
        for j in range(signs.shape[1]):
            p = belief.gather(1, index[:, j])
            belief.scatter_(1, index[:, j], bayes_update(p, signs[:, j], odds[:, j], self._prior))
        after = belief.gather(1, index.flatten(1)).view_as(signs)
        counted = self._first_seen_by(footprint)
        sums = changes(before, after, counted.flatten(2))
        rows, cols = self._camera.map_weights(state.positions)
        change = (after - before).view_as(counted) * counted
        state.pooled_global.add_(area_pool(change, rows, cols).sum(1))
        if self.tracks_uncertainty:
            change = (uncertainty(after) - uncertainty(before)).view_as(counted) * counted
            state.pooled_global_uncertainty.add_(area_pool(change, rows, cols).sum(1))
        return utility(sums, state, self._cells)

    def _first_seen_by(self, footprint: Footprint) -> Tensor:
        """Return the window cells that no UAV of a lower id sees too, [E, N, K_x, K_y] bool."""
        window = Footprint(*(field.unsqueeze(2) for field in footprint))
        others = Footprint(*(field.unsqueeze(1) for field in footprint))
        rows, cols = self._camera.inside(window, others)  # [E, N window, N footprint, K]
        n = rows.shape[1]
        earlier = torch.ones(n, n, device=rows.device).tril(-1)
        covered = (rows * earlier.unsqueeze(-1)).mT @ cols.float()
        own_rows, own_cols = self._camera.inside(footprint, footprint)
        return (covered == 0) & own_rows.unsqueeze(-1) & own_cols.unsqueeze(-2)


class CompiledFusion(WindowFusion):
    """The same in compiled loops on the CPU; inside `torch.compile` in plain operators."""

    def __init__(self, config: Config, camera: Camera) -> None:
        super().__init__(config, camera)
        shape = config.geometry.lattice_shape[:2]
        self._loops = WindowLoops(camera.shape, shape, camera.sides, self.tracks_uncertainty)
        self._odds = camera.odds * ((1 - self._prior) / self._prior)

    def measure(self, state: MissionState, bits: Tensor, flown: Tensor) -> None:
        """See `WindowFusion.measure`."""
        if torch.compiler.is_compiling():
            return super().measure(state, bits, flown)
        levels = state.positions[..., 2].contiguous()
        self._loops.measure(
            state.truth,
            bits,
            self._camera.flip_below[levels],
            self._boxes(state),
            flown,
            self._odds[levels],
            levels,
            state.readings,
            state.pooled_readings,
            state.beliefs,
            state.pooled_beliefs,
            state.pooled_uncertainty,
        )
        if not self._loops.pools_readings:
            self.pool_readings(state)
        return None

    def fuse_heard(self, state: MissionState, flown: Tensor) -> None:
        """See `WindowFusion.fuse_heard`."""
        if torch.compiler.is_compiling():
            return super().fuse_heard(state, flown)
        self._loops.fuse_heard(
            state.readings,
            _listens(state, flown),
            self._boxes(state),
            self._odds[state.positions[..., 2]],
            state.beliefs,
            state.pooled_beliefs,
            state.pooled_uncertainty,
        )
        return None

    def fuse_global(self, state: MissionState, flown: Tensor) -> Utility:
        """See `WindowFusion.fuse_global`."""
        if torch.compiler.is_compiling():
            return super().fuse_global(state, flown)
        sums = self._loops.fuse_global(
            state.readings,
            self._boxes(state),
            flown,
            self._odds[state.positions[..., 2]],
            state.global_belief,
            state.pooled_global,
            state.pooled_global_uncertainty,
        )
        return utility(sums, state, self._cells)


class TritonFusion(WindowFusion):
    """The same on a GPU in Triton kernels, as operators that `torch.compile` sees whole.

    `update` touches each belief once. Bits are drawn where they are needed.
    """

    draws_bits = True

    def __init__(self, config: Config, camera: Camera) -> None:
        super().__init__(config, camera)
        # Triton takes a while to import, and many machines do without it.
        from marl_framework.mission.kernels import window_operators

        self._operators = window_operators
        self._odds = camera.odds * ((1 - self._prior) / self._prior)
        self._sides = torch.tensor(camera.sides).T.contiguous().to(camera.odds.device)

    @staticmethod
    def available(device: torch.device) -> bool:
        """Return whether Triton compiles for a device."""
        return triton_lacks(device) is None

    def begin(self, state: MissionState, bits: Tensor, mask: Tensor | None) -> None:
        """See `WindowFusion.begin`."""
        self._update(state, bits, _started(state, mask), prior=self._prior)

    def update(self, state: MissionState, bits: Tensor, flown: Tensor) -> Utility:
        """See `WindowFusion.update`."""
        return self._update(state, bits, flown)

    def _update(
        self, state: MissionState, bits: Tensor, flown: Tensor, prior: float | None = None
    ) -> Utility:
        """Do what `update` does, to beliefs that are blank where there is a `prior`."""
        boxes, odds = self._look_up(state)
        self._read(state, bits, flown, boxes)
        gained = self._fuse_team(state, flown, boxes, odds, prior)
        self._fuse_own(state, flown, boxes, odds, takes_own=True, takes_heard=True, prior=prior)
        return gained

    def measure(self, state: MissionState, bits: Tensor, flown: Tensor) -> None:
        """See `WindowFusion.measure`."""
        boxes, odds = self._look_up(state)
        self._read(state, bits, flown, boxes)
        self._fuse_own(state, flown, boxes, odds, takes_own=True, takes_heard=False)

    def fuse_heard(self, state: MissionState, flown: Tensor) -> None:
        """See `WindowFusion.fuse_heard`."""
        boxes, odds = self._look_up(state)
        self._fuse_own(state, flown, boxes, odds, takes_own=False, takes_heard=True)

    def fuse_global(self, state: MissionState, flown: Tensor) -> Utility:
        """See `WindowFusion.fuse_global`."""
        return self._fuse_team(state, flown, *self._look_up(state))

    def _look_up(self, state: MissionState) -> tuple[Tensor, Tensor]:
        """Return footprints [E, N, 8] and what readings multiply odds with, [E, N, 2]."""
        return self._boxes(state), self._odds[state.positions[..., 2]]

    def _read(self, state: MissionState, bits: Tensor, flown: Tensor, boxes: Tensor) -> None:
        """Take a reading at each UAV."""
        levels = state.positions[..., 2]
        self._operators.read_windows(
            state.truth,
            bits,
            self._camera.flip_below[levels],
            boxes,
            self._sides[levels],
            flown,
            state.readings,
            state.pooled_readings,
        )

    def _fuse_team(
        self,
        state: MissionState,
        flown: Tensor,
        boxes: Tensor,
        odds: Tensor,
        prior: float | None = None,
    ) -> Utility:
        """Put all readings into the global belief."""
        sums = self._operators.fuse_global(
            state.readings,
            boxes,
            odds,
            flown,
            state.global_belief,
            state.pooled_global,
            state.pooled_global_uncertainty,
            self.tracks_uncertainty,
            prior,
        )
        return utility(sums, state, self._cells)

    def _fuse_own(
        self,
        state: MissionState,
        flown: Tensor,
        boxes: Tensor,
        odds: Tensor,
        takes_own: bool,
        takes_heard: bool,
        prior: float | None = None,
    ) -> None:
        """Put readings into own beliefs."""
        self._operators.fuse_own(
            state.readings,
            state.heard,
            boxes,
            odds,
            flown,
            state.beliefs,
            state.pooled_beliefs,
            state.pooled_uncertainty,
            takes_own,
            takes_heard,
            self.tracks_uncertainty,
            prior,
        )


def fusion_type(config: Config, device: torch.device) -> type[WindowFusion]:
    """Return the fastest fusion for a device; plain PyTorch where `compute.compile` is off."""
    if config.compute.compile and device.type == "cpu" and WindowLoops.available():
        return CompiledFusion
    if config.compute.compile and TritonFusion.available(device):
        return TritonFusion
    return WindowFusion


_NAMES = {
    CompiledFusion: "compiled loops",
    TritonFusion: "Triton",
    WindowFusion: "plain operators",
}


def window_kernels(config: Config, device: torch.device) -> tuple[str, Lack | None]:
    """Return what `make_fusion` takes for a device, in words, and why a GPU gets no Triton."""
    name = _NAMES[fusion_type(config, device)]
    if device.type == "cpu":
        return name, None
    if not config.compute.compile:
        return name, Lack("compute.compile is false", "set compute.compile: true")
    return name, triton_lacks(device)


def make_fusion(config: Config, camera: Camera, device: torch.device) -> WindowFusion:
    """Make the fusion of `fusion_type`."""
    return fusion_type(config, device)(config, camera)


def _started(state: MissionState, mask: Tensor | None) -> Tensor:
    """Return a mask of missions, [E] bool, that of all where there is none."""
    return torch.ones_like(state.t, dtype=torch.bool) if mask is None else mask


def _listens(state: MissionState, flown: Tensor) -> Tensor:
    """Return whose readings each UAV has yet to fuse, [E, N, N] bool."""
    n = state.heard.shape[1]
    itself = torch.eye(n, dtype=torch.bool, device=state.heard.device)
    return state.heard & ~itself & flown.view(-1, 1, 1)
