"""Several processes that train one team: `torchrun --nproc_per_node=N -m marl_framework.main …`.

torchrun starts N ranks and tells each its place by environment variables. Rank 0 leads: it alone
reads checkpoints, writes the run folder and validates. Every rank flies its share of the missions
with a stream of random numbers of its own; gradients are averaged over all (`algorithms.ranks`).

What the ranks tell each other on the host goes through gloo, also where gradients go through
NCCL: it waits for no GPU, and a lost rank ends it at once.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import resolve_device
from marl_framework.mission.seeding import MAX_RANK
from marl_framework.runs.files import read_json, write_json

T = TypeVar("T")

_BAD_INPUT, _FAILED = 2, 1
_LEADER_ENDS = 10.0  # seconds
_LOST = (  # what gloo and NCCL say of a peer that is gone
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "ncclRemoteError",
    "communicator was aborted",
)
_JOB = ".job"
"""Name of the file in a run folder that names the call of torchrun that trains it."""


class LeaderError(RuntimeError):
    """Rank 0 could not go on, and has said why.

    Attributes:
        exit_code: of rank 0, for the other ranks too.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__("rank 0 could not go on")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together.

    Attributes:
        rank: number of this process, from 0; 0 leads.
        count: processes that train together.
        local_rank: number of this process on its host.
        local_count: processes on this host.
        restarts: how often torchrun has started them anew.
        may_restart: torchrun was asked to do so (`--max-restarts`).
        job: what tells this call of torchrun from others on the same runs.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    restarts: int = 0
    may_restart: bool = False
    job: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """Read what torchrun says; without it there is one process.

        Raises:
            ConfigError: the variables make no sense.
        """
        if "TORCHELASTIC_RUN_ID" not in environment:
            return cls()
        try:
            return cls(
                rank=int(environment["RANK"]),
                count=int(environment["WORLD_SIZE"]),
                local_rank=int(environment["LOCAL_RANK"]),
                local_count=int(environment["LOCAL_WORLD_SIZE"]),
                restarts=int(environment["TORCHELASTIC_RESTART_COUNT"]),
                may_restart=int(environment["TORCHELASTIC_MAX_RESTARTS"]) > 0,
                job=_job(environment["TORCHELASTIC_RUN_ID"]),
            )
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"torchrun: its environment variables make no sense: {error}; start with "
                "torchrun --nproc_per_node=N -m marl_framework.main"
            ) from error

    @property
    def leads(self) -> bool:
        """Whether this process reads, writes and reports."""
        return self.rank == 0

    def wait_for_leader(self) -> None:
        """Wait for torchrun to end this rank, where rank 0 is about to say why it ends.

        torchrun ends all ranks as soon as one has: rank 0 shall be the first.
        """
        if not self.leads:
            threading.Event().wait(_LEADER_ENDS)

    # What ranks tell each other ------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on some rank; all ask together."""
        if self.count == 1:
            return flag
        found = torch.tensor(int(flag))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def broadcast(self, value: T) -> T:
        """Return what rank 0 gives; tensors must be on the CPU."""
        if self.count == 1:
            return value
        box = [value if self.leads else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return what each rank gives, by rank; tensors must be on the CPU."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def on_leader(self, work: Callable[[], T], tell: Callable[[T], Any] = lambda _: None) -> Any:
        """Let rank 0 do something, and give the others what there is to tell of it.

        Returns:
            On rank 0 what `work` returned, on the others what `tell` made of it.

        Raises:
            LeaderError: on the others, where `work` raised on rank 0, which raises as it did.
        """
        if not self.leads:
            failed, told = self.broadcast((0, None))
            if failed:
                raise LeaderError(failed)
            return told
        try:
            done = work()
            told = tell(done)
        except BaseException as error:
            self.broadcast((_BAD_INPUT if isinstance(error, ConfigError) else _FAILED, None))
            raise
        self.broadcast((0, told))
        return done


def check_ranks(config: Config, ranks: Ranks) -> None:
    """Check that a training can be shared among so many processes.

    Raises:
        ConfigError: it cannot; names the key and what would be right.
    """
    missions = config.environment.num_envs
    if ranks.count > MAX_RANK:
        raise ConfigError(f"torchrun: {ranks.count} ranks; {MAX_RANK} at most have own seeds")
    if missions % ranks.count:
        nearest = max(round(missions / ranks.count), 1) * ranks.count
        raise ConfigError(
            f"environment.num_envs: {missions} missions cannot be shared equally by {ranks.count} "
            f"ranks; use a multiple of {ranks.count}, such as {nearest}"
        )
    if ranks.count > 1 and config.compute.device.startswith("cuda:"):
        raise ConfigError(
            f"compute.device: {config.compute.device} is one GPU for {ranks.count} ranks; use "
            "cuda or auto, then each rank takes its own"
        )


def rank_device(config: Config, ranks: Ranks) -> torch.device:
    """Return the device of this rank: on a host with GPUs each rank has its own.

    Raises:
        ConfigError: there is no such device, there are fewer GPUs than ranks, or
            `compute.distributed_backend` does not suit it.
    """
    device = resolve_device(config.compute.device)
    if device.type == "cuda" and ranks.count > 1:
        gpus = torch.cuda.device_count()
        if ranks.local_count > gpus:
            raise ConfigError(
                f"torchrun: {ranks.local_count} ranks on a machine with {gpus} "
                f"GPU{'s' if gpus != 1 else ''}; use --nproc_per_node={gpus}, or "
                "compute.device=cpu"
            )
        device = torch.device("cuda", ranks.local_rank)
    if config.compute.distributed_backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            "compute.distributed_backend: nccl needs GPUs, and this training runs on the CPU; use "
            "gloo or auto"
        )
    return device


@contextmanager
def joined(config: Config, device: torch.device, ranks: Ranks) -> Iterator[None]:
    """Make the process group of all ranks, and leave it at the end, its threads joined.

    A thread of gloo that still lets go of a tensor while the interpreter ends aborts the process.
    It is joined where the group is freed, so nothing may hold the group any longer than this:
    neither functions of PyTorch that take it as their default when they are imported, nor
    DistributedDataParallel, which would join the thread that waits for the lock it holds itself.
    """
    if ranks.count == 1:
        yield
        return
    importlib.import_module("torch.distributed.nn")
    backend = config.compute.distributed_backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # torchrun keeps one store for all its restarts: without a prefix a rank that is started anew
    # may read where one of those before it listened.
    store, rank, count = next(rendezvous("env://"))
    dist.init_process_group(
        f"cpu:gloo,cuda:{backend}" if device.type == "cuda" else backend,
        store=dist.PrefixStore(f"restart_{ranks.restarts}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=count,
    )
    yield
    gc.collect()
    dist.destroy_process_group()  # not after an error: it may wait for a rank that is gone


def is_lost_rank(error: BaseException) -> bool:
    """Whether an exception says that another rank is gone; its own reason is told elsewhere."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST)


def note_job(run: Path, ranks: Ranks) -> None:
    """Note in a run's folder which call of torchrun trains it, for `started_by`."""
    if ranks.may_restart:
        write_json(run / _JOB, {"job": ranks.job})


def started_by(config: Config, run_name: str, ranks: Ranks) -> bool:
    """Whether torchrun started these ranks anew, and this very call of it began the run."""
    run = Path(config.logging.directory) / run_name
    return ranks.restarts > 0 and read_json(run / _JOB).get("job") == ranks.job


def _job(run_id: str) -> str:
    """Name a call of torchrun: its own `--rdzv-id`, or the process that it is."""
    if run_id != "none":
        return run_id
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="ascii", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]  # field 22, starttime
    except (OSError, IndexError):
        started = "?"
    return f"process {parent} on {os.uname().nodename}, started {started}"
