"""Radio: which messages between UAVs arrive, and when."""

from __future__ import annotations

import torch
from torch import Tensor

from marl_framework.config.model import Config
from marl_framework.config.types import choices
from marl_framework.mission.fusion import Fusion
from marl_framework.mission.lattice import Lattice
from marl_framework.mission.state import MissionState, StepDraws, assign, empty_fields

_LOST = -1


class Radio:
    """Sends each UAV's position and reading to the others after each move.

    Attributes:
        has_bursts: whether lost messages come in bursts.
        most_delay: largest number of moves until a message arrives.
    """

    def __init__(self, config: Config, lattice: Lattice, fusion: Fusion) -> None:
        uav = config.experiment.uav
        self.has_bursts = uav.failure_burst is not None
        self._delays = torch.tensor(choices(uav.delay), device=lattice.offsets.device)
        self.most_delay = max(choices(uav.delay))
        self._adapts = config.sensor.model.adapt
        self._has_inactive = config.missions.has_inactive
        self._lattice, self._fusion = lattice, fusion

    def hear(self, state: MissionState, lost: Tensor) -> Tensor:
        """Return which UAVs would hear each other without delay; see the function `hear`."""
        metres, ranges = self._lattice.metres(state.positions), state.communication_range
        return hear(metres, ranges, lost, state.active if self._has_inactive else None)

    def lost(self, state: MissionState, uniform: Tensor, first: bool = False) -> Tensor:
        """Return which messages are lost, [E, N, N] bool.

        With bursts, each direction between two UAVs alternates between two states (Gilbert 1960):
        in one all messages are lost, in the other none.

        `state.lossy` is the previous result; `uniform` draws lie in [0, 1), [E, N, N]. `first` says
        whether these are the first messages of the missions.
        """
        rate = state.failure_rate.view(-1, 1, 1)
        if first or not self.has_bursts:
            return uniform < rate
        ends = 1 / state.burst.view(-1, 1, 1)
        return torch.where(state.lossy, uniform >= ends, uniform < ends * rate / (1 - rate))

    def send(
        self, state: MissionState, draws: StepDraws, mask: Tensor | None, first: bool = False
    ) -> None:
        """Send the messages of a step: set `heard`, `lossy`, `delays` and `late`.

        `mask` has the missions that go on (or start, if these are their `first` messages), [E]
        bool; None for all.
        """
        lost = self.lost(state, draws.communication, first)
        if self.has_bursts:
            assign(state.lossy, lost, mask)
        heard, started = self.hear(state, lost), mask if first else None
        if not self.most_delay:
            assign(state.heard, heard, started)
            return
        assert draws.delays is not None
        delays = self._delays[(draws.delays * len(self._delays)).long()]
        delays = delays.where(heard, _LOST).to(state.delays.dtype).unsqueeze(1)
        earlier = torch.full_like(state.delays, _LOST) if first else state.delays
        assign(state.delays, torch.cat((delays, earlier[:, :-1]), dim=1), mask)
        itself = torch.eye(lost.shape[1], dtype=torch.bool, device=lost.device)
        assign(state.heard, heard & (delays[:, 0] == 0) | itself, started)
        ages = torch.arange(self.most_delay + 1, device=lost.device).view(1, -1, 1, 1)
        arrives = state.delays == ages
        newest = arrives.int().argmax(1)  # 0 also if none arrives
        assign(state.late, newest.to(state.late.dtype), started)

    def remember(self, state: MissionState, running: Tensor) -> None:
        """Keep positions and readings before a move, for messages that have not arrived."""
        if not self.most_delay:
            return
        for past, now in (
            (state.past_positions, state.positions),
            (state.past_readings, state.readings),
            (state.past_caution, state.caution),
        ):
            assign(past, torch.cat((now.unsqueeze(1), past[:, :-1]), dim=1), running)

    def receive(self, state: MissionState, running: Tensor) -> None:
        """Fuse the readings of late messages into own beliefs, the latest readings first."""
        for age in range(1, self.most_delay + 1):
            arrives = state.delays[:, age] == age
            if self._has_inactive:
                arrives = arrives & state.active.unsqueeze(2)
            k = age - 1
            past = state.past_positions[:, k], state.past_readings[:, k], state.past_caution[:, k]
            self._fusion.fuse_late(state, *past, arrives, running)

    def empty_state(
        self, num_envs: int, n_agents: int, window: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Return the radio's fields of `MissionState`, empty if there are no delays or bursts."""
        n, most = n_agents, self.most_delay
        shapes: dict[str, tuple[bool, tuple[int, ...], torch.dtype]] = {
            "lossy": (self.has_bursts, (n, n), torch.bool),
            "delays": (most > 0, (most + 1, n, n), torch.int8),
            "late": (most > 0, (n, n), torch.int8),
            "past_positions": (most > 0, (most, n, 3), torch.int64),
            "past_readings": (most > 0, (most, n, *window), torch.int8),
            "past_caution": (most > 0, (most, n if self._adapts else 0), torch.float32),
        }
        return empty_fields(shapes, num_envs, self._delays.device)


def hear(metres: Tensor, ranges: Tensor, lost: Tensor, active: Tensor | None = None) -> Tensor:
    """Return whether UAV i hears UAV j, [E, N, N] bool; each UAV hears itself.

    `metres` are positions [m], [E, N, 3], and `ranges` communication ranges [m], [E]. `lost` says
    whether the message from UAV j to UAV i is lost, [E, N, N] bool. UAVs that are not `active`,
    [E, N] bool, hear only themselves; None if all fly.
    """
    offset = metres.unsqueeze(2) - metres.unsqueeze(1)
    reach = ranges.square() * (1 + 1e-5)  # tolerance: a UAV at exactly the range is heard
    arrives = (offset.square().sum(-1) <= reach.view(-1, 1, 1)) & ~lost
    if active is not None:
        arrives = arrives & active.unsqueeze(1) & active.unsqueeze(2)
    itself = torch.eye(metres.shape[1], dtype=torch.bool, device=metres.device)
    return arrives | itself
