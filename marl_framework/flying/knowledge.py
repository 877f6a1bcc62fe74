"""What one UAV knows: its belief and observation, by the code of the simulator."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import torch
from torch import Tensor

from marl_framework.flying.messages import Bits, Inbox, Place, Position, Reading
from marl_framework.kernels.windows import Footprint
from marl_framework.mission.camera import Camera
from marl_framework.mission.camera_noise import CameraNoise
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState

_NEVER_FLIPS = -(2**15)  # see `Optics.flip_below`
_KNOWN = (
    *("positions", "sector", "moves", "open_share", "active", "team_size", "budget"),
    *("limit", "left", "communication_range", "inside", "counted"),
)  # what all UAVs know of a mission at its start


class Moment(NamedTuple):
    """What a UAV knows after a reading."""

    place: Place
    """Place of the reading, lattice indices."""
    heard: tuple[int, ...]
    """UAVs whose readings it has fused, its own among them."""
    belief: int
    """CRC-32 of its belief."""
    averages: int
    """CRC-32 of the averages of its reading, belief and uncertainty that networks see."""


class Knowledge:
    """Fuses the readings that a UAV has taken and heard.

    `environment` has one mission, on the CPU, and `start` is its state at the start, of which the
    UAV knows the plan but not the map.

    Attributes:
        state: what the UAV knows now; beliefs of the other UAVs are NaN.
        moments: what it knew after each reading.
        noise: noise of the readings that it has fused.
    """

    def __init__(self, uav: int, environment: MissionEnvironment, start: MissionState) -> None:
        self.uav, self.environment = uav, environment
        self.state, levels = environment.empty_state(), environment.lattice.shape[2]
        for name in _KNOWN:
            setattr(self.state, name, getattr(start, name).clone())
        self.state.flip_below = torch.full((1, levels, 2), _NEVER_FLIPS, dtype=torch.int16)
        self.state.beliefs.fill_(environment.config.mapping.prior)
        environment.blank(self.state)
        self.moments: list[Moment] = []
        self.noise = CameraNoise(environment.camera, 1)

    def place(self, uav: int) -> Place:
        """Return where a UAV is known to be, lattice indices."""
        x, y, z = self.state.positions[0, uav].tolist()
        return x, y, z

    def learn(self, own: Reading) -> float:
        """Return the caution of the UAV's next reading; see `sensor.model.adapt`."""
        state, env = self.state, self.environment
        if not env.camera.adapts:
            return 1.0
        state.positions[0, self.uav] = torch.tensor(own.place)
        state.readings.zero_()
        state.readings[0, self.uav] = lay(env.camera, own)
        env.fusion.learn(state, state.readings.flatten(2).any(-1))
        return state.caution[0, self.uav].item()

    def fuse(self, own: Reading, inbox: Inbox) -> list[int]:
        """Fuse the UAV's own reading and those heard after as many moves.

        Returns the UAVs whose readings were fused, sorted; those that do not fit their footprint
        are not.
        """
        state, env, uav, move = self.state, self.environment, self.uav, own.envelope.move
        camera, team = env.camera, range(env.n_agents)
        heard = ((sender, inbox.get(Reading, sender, move)) for sender in team)
        taken = {j: reading for j, reading in heard if reading and fits(camera, reading)}
        taken[uav] = own
        state.t.fill_(move)
        # Others may be a move ahead already; their places after as many moves count.
        places = (inbox.get(Position, j, move) or last for j, last in inbox.positions.items())
        sent: list[Position | Reading] = [*places, *taken.values()]
        for message in sent:
            state.positions[0, message.envelope.sender] = torch.tensor(message.place)
        state.heard.copy_(torch.eye(len(team), dtype=torch.bool))
        state.heard[0, uav, list(taken)] = True
        for sender, reading in taken.items():
            state.caution[0, sender : sender + 1] = reading.caution
        frames = torch.tensor([[j in taken and bool(taken[j].bits.size) for j in team]])
        view = env.fusion.view(state, frames.new_ones(1), frames)
        # Read the own reading once more, without noise, from a map that has it. This also averages
        # it for the observation.
        rows, cols = camera.window
        row, col = view.boxes[0, uav, 4:6].tolist()
        state.truth[0, row : row + rows, col : col + cols] = lay(camera, own) > 0
        env.fusion.read(state, view, torch.zeros(1, len(team), rows, cols, dtype=torch.int16))
        state.readings.zero_()
        for sender, reading in taken.items():
            state.readings[0, sender] = lay(camera, reading)
        self.noise.add(state, frames)
        if env.fields is not None:
            env.fields.clear(state, camera.window_index(Footprint(*view.boxes.unbind(-1))))
        env.fusion.fuse_own(state, view)
        state.beliefs[0, [j for j in team if j != uav]] = torch.nan
        self.moments.append(moment_of(state, uav))
        return sorted(taken)


def moment_of(state: MissionState, uav: int) -> Moment:
    """Return what a UAV knows in a state."""
    x, y, z = state.positions[0, uav].tolist()
    heard = tuple(state.heard[0, uav].nonzero().flatten().tolist())
    averages = state.pooled_readings, state.pooled_beliefs, state.pooled_uncertainty
    checksums = _checksum(state.beliefs[0, uav]), _checksum(*(maps[0, uav] for maps in averages))
    return Moment((x, y, z), heard, *checksums)


def _checksum(*maps: Tensor) -> int:
    return zlib.crc32(b"".join(values.numpy().tobytes() for values in maps))


def cut(camera: Camera, place: Place, window: Tensor) -> Bits:
    """Return the cells of the footprint in a window [K_x, K_y] of readings; see `Reading.bits`."""
    cells: Bits = (window[_inside(camera, place)] > 0).numpy()
    return cells


def lay(camera: Camera, reading: Reading) -> Tensor:
    """Return a reading in its map window: +1, -1, or 0 outside the footprint, [K_x, K_y] int8.

    It must fit the footprint, see `fits`; without a frame all cells are 0.
    """
    window = torch.zeros(camera.window, dtype=torch.int8)
    if reading.bits.size:
        bits = torch.from_numpy(reading.bits)
        window[_inside(camera, reading.place)] = bits.to(torch.int8) * 2 - 1
    return window


def fits(camera: Camera, reading: Reading) -> bool:
    """Return whether a reading has the footprint's shape, or is empty."""
    rows, cols = _inside(camera, reading.place)
    return reading.bits.shape in ((0, 0), (rows.stop - rows.start, cols.stop - cols.start))


def _inside(camera: Camera, place: Place) -> tuple[slice, slice]:
    """Return the rows and columns of the window that lie in the footprint."""
    row0, row1, col0, col1, row, col, *_ = camera.box_table[place].tolist()
    return slice(row0 - row, row1 - row), slice(col0 - col, col1 - col)
