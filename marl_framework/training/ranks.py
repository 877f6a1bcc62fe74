"""Place of a process among the ranks of a training, and communication of the ranks.

Host-side communication uses gloo, even if gradients use NCCL: gloo does not wait for a GPU and
fails at once when a rank is lost. PyTorch is imported only for communication.
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

_LEADER_ENDS = 10.0  # time for rank 0 to end [s]


class LeaderError(RuntimeError):
    """Raised after rank 0 failed and reported why; the process ends with rank 0's exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("rank 0 failed")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Ranks:
    """Place of this process among the ranks of a training."""

    rank: int = 0
    """Rank of this process; rank 0 is the leader."""
    count: int = 1
    """Number of ranks."""
    local_rank: int = 0
    """Rank of this process on its host."""
    local_count: int = 1
    """Number of ranks on this host."""
    restarts: int = 0
    """Number of times that torchrun has restarted the ranks."""
    may_restart: bool = False
    """Whether torchrun may restart the ranks (`--max-restarts`)."""
    job: str = ""
    """Identifier of this torchrun call."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """Read torchrun's environment variables; without torchrun there is a single rank.

        Raises ConfigError if a variable is missing or not a number.
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
                f"torchrun: invalid environment variables: {error}; start with "
                "torchrun --nproc_per_node=N -m marl_framework.main"
            ) from error

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which reads, writes and reports."""
        return self.rank == 0

    def resume(self, job: str | None) -> bool:
        """Return whether the torchrun call that started a run has restarted these ranks."""
        return self.restarts > 0 and job == self.job

    def wait_for_leader(self) -> None:
        """Wait for torchrun to end this rank, so that rank 0 can report why the training ends.

        torchrun ends all ranks as soon as any rank has ended, so rank 0 must end first.
        """
        if not self.leads:
            threading.Event().wait(_LEADER_ENDS)

    # Communication ------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank; all ranks must call this method."""
        if self.count == 1:
            return flag
        import torch
        import torch.distributed as dist

        reduced = torch.tensor(int(flag))
        dist.all_reduce(reduced, dist.ReduceOp.MAX)
        return bool(reduced)

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
        """Return the values of all ranks, in order of rank; tensors must be on the CPU."""
        if self.count == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def on_leader(self, work: Callable[[], T], share: Callable[[T], Any] = lambda _: None) -> Any:
        """Run `work` on rank 0 only; the other ranks return `share(result)`.

        Raises LeaderError on the other ranks if `work` raised an exception on rank 0.
        """
        if not self.leads:
            failed, shared = self.broadcast((0, None))
            if failed:
                raise LeaderError(failed)
            return shared
        try:
            result = work()
            shared = share(result)
        except BaseException as error:
            self.broadcast((BAD_INPUT if isinstance(error, ConfigError) else FAILED, None))
            raise
        self.broadcast((0, shared))
        return result
