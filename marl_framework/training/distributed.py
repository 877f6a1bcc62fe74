"""Train one team in several processes: `torchrun --nproc_per_node=N -m marl_framework.main …`.

Each rank flies an equal share of the missions with separate random numbers. Gradients are averaged
over all ranks (`algorithms.ranks`). Only rank 0 reads checkpoints, writes and validates.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import resolve_device
from marl_framework.mission.seeding import MAX_RANK
from marl_framework.training.ranks import Ranks

_LOST = (  # messages of gloo and NCCL about a lost rank
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "ncclRemoteError",
    "communicator was aborted",
)


def rank_device(config: Config, ranks: Ranks) -> torch.device:
    """Return the device of this rank; on a host with GPUs each rank has its own.

    Raises ConfigError if the device does not exist, there are fewer GPUs than ranks, the ranks
    cannot share the missions equally, or `compute.distributed_backend` does not fit the device.
    """
    missions, name = config.environment.num_envs, config.compute.device
    if ranks.count > MAX_RANK:
        raise ConfigError(f"torchrun: {ranks.count} ranks; use at most {MAX_RANK}")
    if missions % ranks.count:
        nearest = max(round(missions / ranks.count), 1) * ranks.count
        raise ConfigError(
            f"environment.num_envs: {missions} missions cannot be divided equally among "
            f"{ranks.count} ranks; use a multiple of {ranks.count}, such as {nearest}"
        )
    if ranks.count > 1 and name.startswith("cuda:"):
        raise ConfigError(
            f"compute.device: {name} is a single GPU, and there are {ranks.count} ranks; use cuda "
            "or auto to give each rank a GPU"
        )
    device = resolve_device(name)
    if device.type == "cuda" and ranks.count > 1:
        gpus = torch.cuda.device_count()
        if ranks.local_count > gpus:
            raise ConfigError(
                f"torchrun: {ranks.local_count} ranks on a machine with {gpus} "
                f"GPU{'s' if gpus != 1 else ''}; use --nproc_per_node={gpus} or compute.device=cpu"
            )
        device = torch.device("cuda", ranks.local_rank)
    if config.compute.distributed_backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            "compute.distributed_backend: nccl requires GPUs, but this training runs on the CPU; "
            "use gloo or auto"
        )
    return device


@contextmanager
def joined(backend: str, device: torch.device, ranks: Ranks) -> Iterator[None]:
    """Create the process group of all ranks; on exit, destroy the group and join its threads.

    A gloo thread that frees a tensor while the interpreter shuts down aborts the process. Freeing
    the group joins these threads, so no other reference to the group may exist by then. On import,
    functions of `torch.distributed.nn` store the current group as default argument, hence the
    early import. DistributedDataParallel, if freed with the group, would hold a lock while joining
    a thread that waits for this lock, hence the garbage collection first.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # default device, also for libraries
    if ranks.count == 1:
        yield
        return
    importlib.import_module("torch.distributed.nn")
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    # torchrun reuses its store after restarts; without a prefix, a restarted rank may read the
    # address of a dead rank.
    store, rank, count = next(rendezvous("env://"))
    dist.init_process_group(
        f"cpu:gloo,cuda:{backend}" if device.type == "cuda" else backend,
        store=dist.PrefixStore(f"restart_{ranks.restarts}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=count,
    )
    yield
    gc.collect()
    dist.destroy_process_group()  # not after an error: could wait for a lost rank


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an exception was caused by the loss of another rank."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST)
