"""Checks whether a training run can start here: `python -m marl_framework.doctor --config FILE`."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_framework.command_line import Parser, add_overrides, as_program, plain_warnings

if TYPE_CHECKING:  # the checks import them at run time, so that a failed import is a finding
    import torch

    from marl_framework.config.model import Config

_GIB = 2**30
_INSTALL = "run make venv, which installs the tested versions"
_MINIMUM = {"torch": (2, 10), "kornia": (0, 8), "numpy": (2,), "pydantic": (2, 7), "pyyaml": (6,)}
_FEATURES = ("avx2", "avx512_f", "avx512_bf16", "amx_bf16", "neon", "sve", "bf16")
_BUSY = 0.5  # processes that want a core
_TOLERANCE = 0.1  # difference of mixed precision from float32, relative to the largest output


@dataclass
class Check:
    """Result of one check."""

    name: str
    ok: bool
    found: str
    """What the check found, in one line."""
    fix: str = ""
    """What to do if the check fails."""


def examine(config_name: str, overrides: Sequence[str] = ()) -> list[Check]:
    """Run all checks for a params file; leave no files behind.

    Args:
        config_name: params file, see `config.loading.resolve_config_path`.
        overrides: `section.key=value` each.
    """
    checks = [_guarded("versions", _versions, _INSTALL)]
    if not checks[0].ok:
        return checks
    from marl_framework.config.errors import ConfigError
    from marl_framework.config.loading import load_config, resolve_config_path

    try:
        path = resolve_config_path(config_name)
    except ConfigError as error:  # told before PyTorch loads
        return [*checks, Check("configuration", False, str(error), "name a params file")]
    checks.append(_guarded("CPU", _cpu, ""))
    checks.append(_guarded("GPUs", _gpus, "reinstall NVIDIA's driver or PyTorch"))
    checks.append(_guarded("TensorBoard", _tensorboard, _INSTALL))
    from marl_framework.device import resolve_device

    try:
        config = load_config(path, overrides)
        device = resolve_device(config.compute.device)
    except ConfigError as error:
        return [*checks, Check("configuration", False, str(error), "correct this key")]
    checks.append(Check("configuration", True, f"{config_name}, on {device}"))
    for name, check, fix in (
        ("window kernels", _window_kernels, ""),
        ("threads", _threads, ""),
        ("networks", _networks, "correct this part, if it is one of your own"),
        ("mixed precision", _mixed_precision, "use compute.precision=float32"),
        ("memory", _memory, ""),
        ("disk", _disk, "free space, or choose another logging.directory"),
        ("runs", _runs, ""),
    ):
        checks.append(_guarded(name, partial(check, config, device), fix))
    return checks


def _guarded(name: str, check: Callable[[], Check], fix: str) -> Check:
    """Run a check; an exception fails it."""
    try:
        return check()
    except Exception as error:
        line = " ".join(str(error).split())[:300]
        return Check(name, False, f"{type(error).__name__}: {line}", fix)


def _versions() -> Check:
    found = {"python": platform.python_version()}
    bad = [] if sys.version_info >= (3, 11) else ["python 3.11"]
    for package, minimum in _MINIMUM.items():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
        numbers = [int(part) for part in found[package].split(".")[:2] if part.isdigit()]
        if tuple(numbers) < minimum:
            bad.append(f"{package} {'.'.join(map(str, minimum))}")
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    fix = f"needs at least {', '.join(bad)}; {_INSTALL}" if bad else ""
    return Check("versions", not bad, text, fix)


def _cpu() -> Check:
    import torch

    from marl_framework.device import describe_device

    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    present = [name for name in _FEATURES if capabilities.get(name)]
    features = ", ".join(present) or "no vector instructions known to PyTorch"
    name = describe_device(torch.device("cpu")).removeprefix("Using CPU: ")
    return Check("CPU", True, f"{name}; {features}; {torch.get_num_threads()} threads")


def _gpus() -> Check:
    import torch

    lines = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        lines.append(
            f"cuda:{index} {properties.name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free, "
            f"compute capability {properties.major}.{properties.minor}"
        )
    built = torch.version.cuda or torch.version.hip
    none = "none" if built else "none; this PyTorch is built for CPUs"
    return Check("GPUs", True, "; ".join(lines) or none)


def _tensorboard() -> Check:
    import_module("torch.utils.tensorboard")
    return Check("TensorBoard", True, version("tensorboard"))


def _threads(config: Config, device: torch.device) -> Check:
    """Tell whether threads learn apart or wait for each other, which other processes prolong."""
    import torch

    from marl_framework.algorithms.threads import shares_of

    batch = -(-config.schedule.places_per_step // config.learning.batch_number)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    shares = shares_of(min(config.learning.micro_batch or batch, batch))
    if threads == 1:
        return Check("threads", True, "no thread waits for another")
    if shares > 1:
        return Check("threads", True, f"{shares} threads take a share each of batches of {batch}")
    text = f"{threads} threads work together on batches of {batch}, too small to be shared"
    load = os.getloadavg()[0]
    if load > _BUSY:
        text += f"; other processes (load {load:.1f}) make them wait: set OMP_NUM_THREADS=1"
    return Check("threads", True, text)


def _smallest(config: Config) -> Config:
    """Return the configuration with one mission and one batch per training step."""
    from marl_framework.config.loading import with_changes

    changes = {
        "environment": {"num_envs": 1},
        "evaluation": {"missions": 1},
        "learning": {"batch_size": 1, "batch_number": 1, "data_passes": 1},
    }
    return with_changes(config, changes, "doctor")


def _window_kernels(config: Config, device: torch.device) -> Check:
    from marl_framework.mission.fusion import window_kernels

    kernels, lack = window_kernels(config, device)
    found = kernels if lack is None else f"{kernels}, because {lack.reason}"
    if lack is not None and lack.fix:
        found += f"; fix: {lack.fix}"
    return Check("window kernels", True, found)  # slower, but right


def _networks(config: Config, device: torch.device) -> Check:
    import torch

    from marl_framework.stage_timer import StageTimer
    from marl_framework.training.memory import is_out_of_memory
    from marl_framework.training.trainer import Trainer

    try:
        with torch.random.fork_rng(devices=[]):
            trainer = Trainer(_smallest(config), device)
        start = time.perf_counter()
        tensors, _ = trainer.training_step(StageTimer(device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        smaller = "lower networks.*.conv_channels, or use compute.device=cpu"
        return Check("networks", False, "memory ran out in a training step", smaller)
    stats = {name: float(value) for name, value in tensors.items()}
    seconds = time.perf_counter() - start
    ok = all(map(math.isfinite, stats.values())) and not stats.get("skipped_updates")
    modules = trainer.algorithm.modules.values()
    weights = sum(p.numel() for module in modules for p in module.parameters() if p.requires_grad)
    found = f"training step with one mission in {seconds:.2f} s, {weights:,} trainable weights"
    return Check("networks", ok, found, "use compute.precision=float32")


def _mixed_precision(config: Config, device: torch.device) -> Check:
    import torch

    from marl_framework.algorithms.registry import make_algorithm

    with torch.random.fork_rng(devices=[]):
        algorithm = make_algorithm(config, device)
    sizes = config.network_sizes
    maps = torch.rand(1, 4, sizes.actor_channels, *sizes.shape, device=device)
    mixed = algorithm.act(maps)
    actor = algorithm.modules["actor"]
    exact = actor(maps.flatten(0, 1)).detach().unflatten(0, (1, 4))
    largest = max(float(exact.abs().max()), 1e-12)
    difference = float((mixed - exact).abs().max()) / largest
    ok = math.isfinite(difference) and difference < _TOLERANCE
    found = f"{algorithm.precision} differs from float32 by {difference:.1e} of the largest output"
    return Check("mixed precision", ok, found, "use compute.precision=float32")


def _memory(config: Config, device: torch.device) -> Check:
    from marl_framework.training.memory import (
        device_memory,
        memory_advice,
        memory_estimate,
        peak,
    )

    parts = memory_estimate(config, device=device)
    needed, (free, _) = peak(parts), device_memory(device)
    listed = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())
    found = f"needs about {needed / _GIB:.2f} GiB at once ({listed})"
    found = f"{found}, {free / _GIB:.2f} GiB free on {device}"
    advice = memory_advice(config, free, device=device)
    return Check("memory", needed < free, found, f"use --set {advice}")


def _disk(config: Config, device: torch.device) -> Check:
    from marl_framework.training.memory import memory_estimate

    runs = Path(config.logging.directory).absolute()
    folder = next(path for path in (runs, *runs.parents) if path.exists())
    # The newest checkpoints, the best and the one being written; the estimate includes gradients.
    needed = (config.logging.checkpoints_kept + 2) * memory_estimate(config)["weights"]
    free = shutil.disk_usage(folder).free
    writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    found = f"{free / _GIB:.1f} GiB free in {folder}, checkpoints need {needed / _GIB:.2f} GiB"
    if not writable:
        found = f"{folder} cannot be written"
    return Check("disk", writable and free > needed, found, "choose another logging.directory")


def _runs(config: Config, device: torch.device) -> Check:
    """Tell the runs that train from those whose process is gone."""
    from marl_framework.runs.history import state_of

    folders = sorted(Path(config.logging.directory).glob("*/config.yaml"))
    states = {file.parent.name: state_of(file.parent) for file in folders}
    found = [f"{name} is in training" for name, state in states.items() if state == "in training"]
    found += [
        f"{name} was {state}; continue it with --resume"
        for name, state in states.items()
        if state.startswith("killed")
    ]
    return Check("runs", True, "; ".join(found) or "none in training")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if a training run can start, else 1."""
    parser = Parser(prog="python -m marl_framework.doctor", description=__doc__)
    parser.add_argument(
        "--config", metavar="FILE", help="params file (default: $CONFIG_FILE_PATH or params.yaml)"
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    name = options.config
    if name is None:
        name = os.environ.get("CONFIG_FILE_PATH") or "params.yaml"
    with plain_warnings():
        checks = examine(name, options.overrides)
    ready = all(check.ok for check in checks)
    if options.json:
        print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}, indent=2))
        return 0 if ready else 1
    for check in checks:
        print(f"{'✓' if check.ok else '✗'} {check.name}: {check.found}")
        if not check.ok and check.fix:
            print(f"  fix: {check.fix}")
    print("a training run can start" if ready else "a training run cannot start yet")
    return 0 if ready else 1


def command() -> int:
    """Run the command line as a program of its own; return its exit code."""
    return as_program(main)


if __name__ == "__main__":
    sys.exit(command())
