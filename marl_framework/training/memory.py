"""Estimates the memory of a configuration and advises what to lower."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic, target_chunk
from marl_framework.algorithms.protocol import Algorithm
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.device import resolve_precision
from marl_framework.kernels.versions import Version, version_for
from marl_framework.mission.accuracy import GPU_CELLS

GIB = 2**30
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_FLOAT = 4
_READING, _BITS = 1, 2  # bytes a cell in view that stay, the second where no kernel draws them
_SCRATCH = 53  # and that plain operators need for a while: its index, beliefs, uncertainties
_BUILDING = 4  # bytes a cell of a map while ground truths are made
_MAKING_MOVES = 3  # bytes a move while the moves that obstacles leave are found
_MEASURING = 20  # and while a validation measures its beliefs
_PREDICTING = 20  # and while a prediction looks at beliefs
_IN_TURN = ("windows", "activations", "validation")
_SHARE = 0.8  # of what is free; the rest is for what the estimate does not know
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc failed")


def memory_estimate(
    config: Config, ranks: int = 1, device: torch.device | None = None
) -> dict[str, int]:
    """Return the bytes needed on one of `ranks` devices, by purpose; not all at once, see `peak`.

    `missions` flown at once, `windows` that they are updated in, `tables` of the camera,
    `transitions` between updates, `activations` of one batch, `weights` with gradients and
    moments, `validation` missions. The estimate knows shapes alone, not workspaces of kernels or
    gaps of the allocator; of networks that take other maps than actor and critic, weights alone;
    of parts of one's own that cannot be made without values, nothing.

    Args:
        config: what is to be trained.
        ranks: that share the missions.
        device: where; None for one without compiled loops or kernels, which needs the most.
    """
    sizes, learning = config.network_sizes, config.learning
    weights, layers, precision = _networks(config, device)
    hidden = max(map(sum, layers))
    widest = 2 * max(max(layer, default=0) for layer in layers)  # before and after a ReLU
    transition = sizes.critic_channels * sizes.shape[0] * sizes.shape[1] * precision.itemsize
    interval = min(learning.update_interval, config.learning.training_steps)
    collected = config.schedule.places_per_step // ranks
    batch = -(-collected // learning.batch_number)
    part = min(learning.micro_batch or batch, batch)
    learned = batch * transition + part * (transition + hidden * _FLOAT * 3 // 2)
    version = Version.PLAIN if device is None else version_for(config.compute, device)
    mission, flown = _mission(config, version), config.environment.num_envs // ranks
    acting = flown * config.missions.most_agents
    at_once = max(acting, min(target_chunk(device), collected * interval))
    rows, cols = config.geometry.map_shape
    plain = version is Version.PLAIN
    zones = config.missions.has_zones * _MAKING_MOVES * _table_of_moves(config)
    scratch = max(plain * _SCRATCH * _cells_in_view(config), _BUILDING * rows * cols, zones)
    measuring = max(scratch, _MEASURING * rows * cols)
    predicting = 0
    if config.observation.sees_prediction and plain:
        seen = acting * rows * cols
        if device is not None and device.type == "cuda":
            seen = min(seen, max(GPU_CELLS, rows * cols))
        predicting = _PREDICTING * seen
    return {
        "missions": flown * mission,
        "windows": max(flown * scratch, predicting),
        "tables": _camera_tables(config),
        "transitions": collected * interval * transition,
        # What layers put out: learning keeps it for the way back and has a gradient there.
        "activations": max(learned, at_once * (transition + widest * _FLOAT)),
        "weights": weights * _FLOAT,
        "validation": config.evaluation.missions * (mission + measuring)
        if config.evaluation.interval
        else 0,
    }


def peak(parts: Mapping[str, int]) -> int:
    """Return the most bytes that are needed at once, from `memory_estimate`.

    Missions are flown, learned from and validated in turn.
    """
    always = sum(size for name, size in parts.items() if name not in _IN_TURN)
    return always + max(parts.get(name, 0) for name in _IN_TURN)


def _networks(
    config: Config, device: torch.device | None
) -> tuple[int, list[list[int]], torch.dtype]:
    """Return numbers held for weights, outputs of each network's layers, and their precision."""
    for kind in (config.networks.actor.type, config.networks.critic.type):
        with suppress(Exception):  # what modules of one's own make on import is to have values
            import_module(kind.rpartition(".")[0])
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            algorithm = make_algorithm(config, "meta")
            weights = _weights(algorithm)
        except ConfigError:
            raise
        except Exception:  # a part of the user's own may need values, and raise anything
            return 0, [[]], torch.float32
        sizes = config.network_sizes
        layers = [_outputs(m, name, sizes) for name, m in algorithm.modules.items()]
    precision = algorithm.precision
    if device is not None and isinstance(algorithm, ActorCritic):
        precision = resolve_precision(config.compute.precision, device)
    return weights, layers, precision


def _weights(algorithm: Algorithm) -> int:
    """Numbers held for all weights; those that learn have a gradient and two moments too."""
    return sum(
        p.numel() * (4 if p.requires_grad else 1)
        for module in algorithm.modules.values()
        for p in module.parameters()
    )


def _outputs(module: nn.Module, name: str, sizes: NetworkSizes) -> list[int]:
    """Numbers that each layer of a network puts out for one transition; none of other inputs."""
    channels = sizes.actor_channels if name == "actor" else sizes.critic_channels
    counted: list[int] = []

    def count(_: nn.Module, __: object, out: object) -> None:
        parts = out if isinstance(out, tuple) else (out,)  # recurrent layers add their state
        counted.append(sum(part.numel() for part in parts if isinstance(part, Tensor)))

    layers = [layer for layer in module.modules() if not any(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            module(torch.empty(1, channels, *sizes.shape))
    except Exception:  # a network of the user's own may take anything, and raise anything
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return counted


def device_memory(device: torch.device) -> tuple[int, int]:
    """Return (free, total) bytes of a device; of the CPU within the limits of a container."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    known: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            known[name] = int(rest.split()[0]) * 1024
    total = known.get("MemTotal", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        total = min(total, int(_CGROUP.read_text(encoding="ascii")))
    return min(known.get("MemAvailable", total), total), total


def check_memory(config: Config, device: torch.device, ranks: int = 1) -> None:
    """Refuse a configuration that cannot fit.

    Args:
        config: what is to be trained.
        device: where; several ranks share a CPU's memory, but have a GPU each.
        ranks: that share the missions.

    Raises:
        ConfigError: the tensors that are needed for sure are larger than the device's memory.
    """
    ranks = ranks if device.type == "cuda" else 1
    parts = memory_estimate(config, ranks, device)
    needed = peak({name: size for name, size in parts.items() if name != "activations"})
    _, total = device_memory(device)
    if needed > total:
        advice = memory_advice(config, total, ranks, device, activations=False)
        raise ConfigError(
            f"{advice}: this training needs at least "
            f"{needed / GIB:,.1f} GiB, and the device has {total / GIB:,.1f} GiB"
        )


def memory_advice(
    config: Config,
    free: int,
    ranks: int = 1,
    device: torch.device | None = None,
    *,
    activations: bool = True,
) -> str:
    """Return which keys to lower, most useful first, with values that should fit.

    Args:
        config: what does not fit.
        free: bytes that are there for all of it.
        ranks: that share the missions, each with so many bytes.
        device: as in `memory_estimate`.
        activations: count them too; fewer of them do not help where the rest is too much.
    """
    parts = memory_estimate(config, ranks, device)
    if not activations:
        del parts["activations"]
    share = min(_SHARE * free / peak(parts), 0.5)
    parts["missions"] += parts.pop("windows")
    collected, learning = config.schedule.places_per_step // ranks, config.learning
    batch = min(learning.micro_batch or collected, -(-collected // learning.batch_number))
    interval = min(learning.update_interval, config.learning.training_steps)
    by_rollout = config.schedule.rollouts_per_step == 1
    keys = {
        "missions": ("environment.num_envs", config.environment.num_envs),
        "transitions": ("learning.update_interval", interval)
        if interval > 1
        else ("environment.num_envs", config.environment.num_envs)
        if by_rollout
        else ("learning.batch_size", learning.batch_size),
        "activations": ("learning.micro_batch", batch),
        "weights": ("networks.critic.conv_channels", config.networks.critic.conv_channels),
        "validation": ("evaluation.missions", config.evaluation.missions),
    }
    spacing = config.experiment.constraints.spacing
    if config.environment.num_envs == 1:  # then a single mission is too large
        keys["missions"] = ("sensor.pixel.number_x and number_y", config.sensor.pixel.number_x)
    largest = sorted(parts, key=lambda name: parts[name], reverse=True)[:2]
    advice = dict.fromkeys(
        f"experiment.constraints.spacing={2 * spacing:g}"
        if name == "tables"
        else f"{keys[name][0]}={_power_of_two(keys[name][1] * share)}"
        for name in largest
        if parts[name] * 10 > parts[largest[0]]
    )
    return " or ".join(advice)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def _camera_tables(config: Config) -> int:
    """Bytes of the camera's weights, [P, Z, P, K] twice for each axis."""
    *shape, levels = config.geometry.lattice_shape
    pixel = config.sensor.pixel
    high = config.geometry.altitudes[-1] / config.geometry.altitudes[0]
    sides = [
        min(round(pixels * high), cells)
        for pixels, cells in zip(
            (pixel.number_x, pixel.number_y), config.geometry.map_shape, strict=True
        )
    ]
    return sum(2 * _FLOAT * p * p * levels * k for p, k in zip(shape, sides, strict=True))


def _mission(config: Config, version: Version) -> int:
    """Bytes of one mission: truth, own beliefs and global belief, and what UAVs see."""
    rows, cols = config.geometry.map_shape
    n = config.missions.most_agents
    x, y, _ = config.geometry.lattice_shape
    pooled = (3 * n + 2) * x * y  # beliefs, readings, uncertainties on the lattice
    maps = rows * cols * (1 + _FLOAT * (n + 1)) + pooled * _FLOAT
    maps += n * (49 + n) + 56  # of UAVs: positions, costs, …; of the mission
    if config.missions.has_zones:  # else all missions share one table
        maps += _table_of_moves(config) + _FLOAT * x * y
    return maps + _cells_in_view(config) * (_READING + (version is not Version.TRITON) * _BITS)


def _table_of_moves(config: Config) -> int:
    """Bytes of the moves that one mission allows."""
    return math.prod(config.geometry.lattice_shape) * config.experiment.constraints.num_actions


def _cells_in_view(config: Config) -> int:
    """Cells in the windows of one mission's UAVs, each the largest footprint."""
    rows, cols = config.geometry.map_shape
    high = config.geometry.altitudes[-1] / config.geometry.altitudes[0]
    pixel = config.sensor.pixel
    seen = min(round(pixel.number_x * high), rows) * min(round(pixel.number_y * high), cols)
    return config.missions.most_agents * seen


def _power_of_two(value: float) -> int:
    return 1 << max(int(value).bit_length() - 1, 0)
