"""Check a machine and a configuration before a training run; see `marl_framework.doctor`."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path

import torch

from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.loading import with_changes
from marl_framework.config.model import Config
from marl_framework.device import describe_device
from marl_framework.runs.history import state_of
from marl_framework.training import memory
from marl_framework.training.base import NumericalError
from marl_framework.training.memory import GIB
from marl_framework.training.summary import describe_windows
from marl_framework.training.trainer import Trainer

Finding = tuple[str, str]
"""Finding of a check in one line; remedy if the check failed, else an empty string."""
FLOAT32 = "use compute.precision=float32"
_FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16", "neon", "sve", "bf16")
_TOLERANCE = 0.1  # difference of mixed precision from float32, relative to the largest output
_ONE_MISSION = {
    "environment": {"num_envs": 1},
    "evaluation": {"missions": 1, "interval": 0},
    "learning": {
        **{"training_steps": 1, "update_interval": 1, "max_skipped_updates": 0},
        **{"batch_size": 1, "batch_number": 1, "data_passes": 1},
    },
}


def cpu() -> Finding:
    """Describe the CPU and its threads."""
    capabilities = dict(getattr(torch.cpu, "get_capabilities", dict)())
    present = [name for name in _FEATURES if capabilities.get(name)]
    features = ", ".join(present) or "no vector instructions known to PyTorch"
    name = describe_device(torch.device("cpu")).removeprefix("Using CPU: ")
    return f"{name}; {features}; {torch.get_num_threads()} threads", ""


def gpus() -> Finding:
    """Describe the GPUs that PyTorch can use."""
    lines = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        lines.append(
            f"cuda:{index} {properties.name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, "
            f"compute capability {properties.major}.{properties.minor}"
        )
    built = torch.version.cuda or torch.version.hip
    return "; ".join(lines) or ("none" if built else "none; this PyTorch is built for CPUs"), ""


def kernels(config: Config, device: torch.device) -> Finding:
    """Name the implementation that updates beliefs, and why none is faster here."""
    return describe_windows(config, device), ""


def networks(config: Config, device: torch.device) -> Finding:
    """Try one training step with one mission."""
    try:
        with torch.random.fork_rng(devices=[]):
            trainer = Trainer(with_changes(config, _ONE_MISSION, "doctor"), device)
            start = time.perf_counter()
            last = trainer.train(None)["results"]["last"]
    except NumericalError as error:
        return str(error), FLOAT32
    except Exception as error:
        if not memory.is_out_of_memory(error):
            raise
        smaller = "lower networks.*.conv_channels, or use compute.device=cpu"
        return "out of memory in a training step", smaller
    seconds = time.perf_counter() - start
    parameters = [p for module in trainer.modules.values() for p in module.parameters()]
    weights = sum(p.numel() for p in parameters if p.requires_grad)
    finding = f"training step with one mission in {seconds:.2f} s, {weights:,} trainable weights"
    return finding, "" if all(map(math.isfinite, last.values())) else FLOAT32


def mixed_precision(config: Config, device: torch.device) -> Finding:
    """Compare the actor's outputs in the configured precision with float32 outputs."""
    with torch.random.fork_rng(devices=[]):
        algorithm = make_algorithm(config, device)
    sizes = config.network_sizes
    maps = torch.rand(1, 4, sizes.actor_channels, *sizes.shape, device=device)
    mixed = algorithm.act(maps)
    exact = algorithm.modules["actor"](maps.flatten(0, 1)).detach().unflatten(0, (1, 4))
    largest = max(float(exact.abs().max()), 1e-12)
    difference = float((mixed - exact).abs().max()) / largest  # may be NaN
    dtype = algorithm.precision
    finding = f"{dtype} differs from float32 by {difference:.1e} of the largest output"
    return finding, "" if difference < _TOLERANCE else FLOAT32


def enough_memory(config: Config, device: torch.device) -> Finding:
    """Compare the estimated memory with the free memory."""
    parts = memory.memory_estimate(config, device=device)
    needed, (free, _) = memory.peak(parts), memory.device_memory(device)
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    finding = f"needs about {needed / GIB:.2f} GiB at once ({listed}), "
    finding += f"{free / GIB:.2f} GiB free on {device}"
    advice = memory.memory_advice(config, parts, free)
    return finding, "" if needed < free else f"use --set {advice}"


def disk(config: Config, device: torch.device) -> Finding:
    """Compare the size of the checkpoints with the free disk space."""
    runs = Path(config.logging.directory).absolute()
    folder = next(path for path in (runs, *runs.parents) if path.exists())
    number = config.logging.checkpoints_kept + 2  # best.pt, and the file being written
    parts = memory.memory_estimate(config)
    replay = parts.get("replay", 0) if config.logging.save_replay else 0
    needed = number * (parts["weights"] + replay)  # weights with gradients
    free = shutil.disk_usage(folder).free
    finding = f"{free / GIB:.1f} GiB free in {folder}, checkpoints need {needed / GIB:.2f} GiB"
    writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    finding = finding if writable else f"{folder} cannot be written"
    return finding, "" if writable and free > needed else "choose another logging.directory"


def runs_in_training(config: Config, device: torch.device) -> Finding:
    """List the runs in training, and the runs whose process was killed."""
    training, killed = [], []
    for file in sorted(Path(config.logging.directory).glob("*/config.yaml")):
        name, state = file.parent.name, state_of(file.parent)
        if state == "in training":
            training.append(f"{name} is in training")
        elif state.startswith("killed"):
            killed.append(f"{name} was {state}; continue the run with --resume")
    return "; ".join(training + killed) or "none in training", ""
