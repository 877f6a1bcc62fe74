"""What one UAV knows: its belief and observation, by the code of the simulator."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marl_framework.flying.frames import fits, lay
from marl_framework.flying.messages import Place, Reading
from marl_framework.kernels.windows import Footprint
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState

_NEVER_FLIPS = -(2**15)  # see `Optics.flip_below`


class Knowledge:
    """Fuses the readings that a UAV has taken and heard.

    `environment` has one mission; its camera and fusion are used. `state` is what the UAV knows at
    the start.

    Attributes:
        state: what the UAV knows now; beliefs of the other UAVs are NaN.
        fused: number of moves whose readings are fused, with the first reading.
    """

    def __init__(self, uav: int, environment: MissionEnvironment, state: MissionState) -> None:
        self._uav, self._team = uav, environment.n_agents
        self._fusion, self._optics = environment.fusion, environment.camera
        self._prior, self._fields = environment.prior, environment.fields
        levels = (1, environment.lattice.shape[2], 2)
        device = environment.device
        state.flip_below = torch.full(levels, _NEVER_FLIPS, dtype=torch.int16, device=device)
        environment.blank(state)
        self.state, self.fused = state, 0

    def place(self, uav: int) -> Place:
        """Return where a UAV is known to be, lattice indices."""
        x, y, z = self.state.positions[0, uav].tolist()
        return x, y, z

    def fuse(
        self, own: Reading, heard: Mapping[int, Reading], positions: Mapping[int, Place]
    ) -> list[int]:
        """Fuse the UAV's own reading and those heard in the same move.

        `heard` has the readings, and `positions` the newest places, of other UAVs by index. Returns
        the UAVs whose readings were fused, sorted; those that do not fit their footprint are not.
        """
        state, uav, move = self.state, self._uav, own.envelope.move
        camera = self._optics
        taken = {j: each for j, each in heard.items() if fits(camera, each.place, each.bits)}
        taken[uav] = own
        state.t.fill_(move)
        places = {**positions, **{j: reading.place for j, reading in taken.items()}}
        for other, place in places.items():
            state.positions[0, other] = torch.tensor(place)
        state.heard.copy_(torch.eye(self._team, dtype=torch.bool))
        frames = torch.zeros(1, self._team, dtype=torch.bool)
        for sender, reading in taken.items():
            state.heard[0, uav, sender] = True
            frames[0, sender] = bool(reading.bits.size)
        device = state.positions.device
        view = self._fusion.view(state, frames.new_ones(1).to(device), frames.to(device))
        self._lay_own(view.boxes[0, uav], own)
        # Read once more, without noise, as this also averages the reading for the observation.
        bits = torch.zeros(1, self._team, *self._optics.window, dtype=torch.int16, device=device)
        self._fusion.read(state, view, bits)
        state.readings.zero_()
        for sender, reading in taken.items():
            state.readings[0, sender] = lay(self._optics, reading.place, reading.bits)
        if self._fields is not None:
            footprint = Footprint(*view.boxes.unbind(-1))
            self._fields.clear(state, self._optics.window_index(footprint))
        self._fusion.fuse_own(state, view, prior=None if move else self._prior)
        state.beliefs[0, [j for j in range(self._team) if j != uav]] = torch.nan
        self.fused += 1
        return sorted(taken)

    def _lay_own(self, box: Tensor, own: Reading) -> None:
        """Lay the UAV's own reading into the map that `Fusion.read` reads."""
        rows, cols = self._optics.window
        row, col = box[4:6].tolist()
        window = lay(self._optics, own.place, own.bits)
        self.state.truth[0, row : row + rows, col : col + cols] = window > 0
