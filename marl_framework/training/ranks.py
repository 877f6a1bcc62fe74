"""The place of a process among those that train together, and their communication.

Host-side communication uses gloo, also where gradients use NCCL: gloo waits for no GPU and fails
at once when a rank is lost. PyTorch is loaded when ranks talk, not before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_framework.command_line import BAD_INPUT, FAILED
from marl_framework.config.errors import ConfigError
from marl_framework.runs.process import start_time

T = TypeVar("T")

_LEADER_ENDS = 10.0  # seconds


class LeaderError(RuntimeError):
    """Rank 0 failed and has reported why; the other ranks end with its exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("rank 0 failed")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together."""

    rank: int = 0
    """Number of this process; 0 leads."""
    count: int = 1
    """Processes that train together."""
    local_rank: int = 0
    """Number of this process on its host."""
    local_count: int = 1
    """Processes on this host."""
    restarts: int = 0
    """How often torchrun has restarted the processes."""
    may_restart: bool = False
    """Whether torchrun may restart them (`--max-restarts`)."""
    job: str = ""
    """Identifies this call of torchrun among others on the same runs."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """Read the environment variables of torchrun; without torchrun there is one process.

        Raises:
            ConfigError: a variable is missing or not a number.
        """
        job = environment.get("TORCHELASTIC_RUN_ID")
        if job is None:
            return cls()
        if job == "none":  # no `--rdzv-id`
            parent = os.getppid()
            job = f"process {parent} on {os.uname().nodename}, started {start_time(parent) or '?'}"
        try:
            return cls(
                rank=int(environment["RANK"]),
                count=int(environment["WORLD_SIZE"]),
                local_rank=int(environment["LOCAL_RANK"]),
                local_count=int(environment["LOCAL_WORLD_SIZE"]),
                restarts=int(environment["TORCHELASTIC_RESTART_COUNT"]),
                may_restart=int(environment["TORCHELASTIC_MAX_RESTARTS"]) > 0,
                job=job,
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"torchrun: bad environment variables: {error}; start with "
                "torchrun --nproc_per_node=N -m marl_framework.main"
            ) from error

    @property
    def leads(self) -> bool:
        """Whether this process reads, writes and reports."""
        return self.rank == 0

    def resume(self, job: str | None) -> bool:
        """Return whether these ranks were restarted by the call of torchrun that began a run."""
        return self.restarts > 0 and job == self.job

    def wait_for_leader(self) -> None:
        """Wait for torchrun to end this rank, so that rank 0 can report why the training ends.

        torchrun ends all ranks as soon as one has ended, so rank 0 must be the first.
        """
        if not self.leads:
            threading.Event().wait(_LEADER_ENDS)

    # Communication ------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank; all ranks must call it."""
        if self.count == 1:
            return flag
        import torch
        import torch.distributed as dist

        found = torch.tensor(int(flag))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0 on all ranks; tensors must be on the CPU."""
        if self.count == 1:
            return value
        import torch
        import torch.distributed as dist

        box = [value if self.leads else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank; tensors must be on the CPU."""
        if self.count == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def on_leader(self, work: Callable[[], T], share: Callable[[T], Any] = lambda _: None) -> Any:
        """Run a function on rank 0 alone; other ranks return what `share` makes of its result.

        Raises:
            LeaderError: on the other ranks, if `work` raised on rank 0, which raises the original.
        """
        if not self.leads:
            failed, shared = self.broadcast((0, None))
            if failed:
                raise LeaderError(failed)
            return shared
        try:
            done = work()
            shared = share(done)
        except BaseException as error:
            self.broadcast((BAD_INPUT if isinstance(error, ConfigError) else FAILED, None))
            raise
        self.broadcast((0, shared))
        return done
