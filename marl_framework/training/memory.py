"""Estimate the memory of a training and advise which keys to lower."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from marl_framework.algorithms.actor_critic import ActorCritic, target_chunk
from marl_framework.algorithms.graphs import uses_graphs
from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config, NetworkSizes
from marl_framework.device import resolve_precision
from marl_framework.kernels.versions import Version, version_for
from marl_framework.mission.accuracy import GPU_CELLS
from marl_framework.mission.environment import MissionEnvironment

GIB = 2**30
_FLOAT = 4
_BITS = 2  # bytes per cell in view for the sensor's random bits, unless a kernel draws them
# Temporary bytes:
_READING = 53  # per cell in view, with plain operators: index, beliefs, uncertainties
_BUILDING = 4  # per map cell, while ground truths are drawn
_CLOSING = 3  # per move, while moves into zones and obstacles are masked
_MEASURING = 20  # per map cell, for the metrics of a validation
_PREDICTING = 20  # per belief cell that a predictor sees
_IN_TURN = ("windows", "activations", "validation")
_SHARE = 0.8  # usable share of the free memory; the rest is for what the estimate omits
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc failed")


def memory_estimate(
    config: Config, ranks: int = 1, device: torch.device | None = None
) -> dict[str, int]:
    """Estimate the bytes needed on each rank's device, by purpose; for their maximum see `peak`.

    Purposes: `missions` flown at once; temporary `windows` of their updates; `tables` of the
    camera; `transitions` between updates; `activations` of one batch; `weights` with gradients and
    moments; `validation` missions; `replay` of stored transitions, and recorded `graphs`, if any.
    Not counted: workspaces of kernels, fragmentation, networks with inputs other than those of
    actor and critic, and custom parts that fail on meta tensors.

    `ranks` share the missions. Without a `device`, the estimate is for one without compiled loops
    or kernels, which needs the most.
    """
    sizes, learning = config.network_sizes, config.learning
    weights, layers, precision = _count_networks(config, device)
    hidden = max(map(sum, layers))
    widest = 2 * max(max(layer, default=0) for layer in layers)  # before and after a ReLU
    transition = sizes.critic_channels * sizes.shape[0] * sizes.shape[1] * precision.itemsize
    collected = config.schedule.places_per_step // ranks
    interval = min(learning.update_interval, learning.training_steps)
    batch = -(-collected // learning.batch_number)
    micro_batch = min(learning.micro_batch or batch, batch)
    learned = batch * transition + micro_batch * (transition + hidden * _FLOAT * 3 // 2)

    areas = [_area_estimate(area, ranks, device) for area in config.areas]
    missions, windows, tables, validation = map(list, zip(*areas, strict=True))
    acting = config.environment.num_envs // ranks * config.missions.most_agents
    at_once = max(acting, min(target_chunk(device), collected * interval))
    replay = learning.replay_size // ranks * transition
    parts = {
        "missions": sum(missions),
        "windows": max(windows),
        "tables": sum(tables),
        "transitions": collected * interval * transition * (2 if replay else 1),  # flown, drawn
        # Learning stores the layers' outputs for the backward pass, and their gradients.
        "activations": max(learned, at_once * (transition + widest * _FLOAT)),
        "weights": weights * _FLOAT,
        "validation": sum(validation),
    }
    if replay:
        parts["replay"] = replay
    if device is not None and uses_graphs(config, device):  # recordings keep what they need
        parts["graphs"] = sum(windows) + parts["activations"]
    return parts


def _area_estimate(
    config: Config, ranks: int, device: torch.device | None
) -> tuple[int, int, int, int]:
    """Return the bytes of missions, windows, tables and validation in one area."""
    flown = config.environment.num_envs // ranks
    simulation = config.sensor.simulation
    # Custom terrains may read values, which tensors on the meta device lack.
    kinds = tuple(kind for kind in simulation.kinds if "." not in kind) or ("split",)
    simulation = simulation.model_copy(update={"kinds": kinds})
    sensor = config.sensor.model_copy(update={"simulation": simulation})
    environment = MissionEnvironment(config.model_copy(update={"sensor": sensor}), flown, "meta")
    state = environment.empty_state()
    cells, seen, moves = (part[0].numel() for part in (state.truth, state.readings, state.moves))
    version = Version.PLAIN if device is None else version_for(config.compute, device)
    plain = version is Version.PLAIN
    missions = sum(tensor.untyped_storage().nbytes() for _, tensor in state.tensors())
    missions += flown * seen * _BITS * (version is not Version.TRITON)
    scratch = max(plain * _READING * seen, _BUILDING * cells, _CLOSING * moves)
    predicting = 0
    if config.observation.sees_prediction and plain:
        predicting = flown * environment.n_agents * cells
        if device is not None and device.type == "cuda":
            predicting = min(predicting, max(GPU_CELLS, cells))
    validated = config.evaluation.missions if config.evaluation.interval else 0
    # Two tables of weights on each axis, [P, Z, P, K].
    tables = zip(environment.camera.cover_tables, environment.camera.window, strict=True)
    return (
        missions,
        max(flown * scratch, _PREDICTING * predicting),
        sum(2 * _FLOAT * cover.numel() * k for cover, k in tables),
        validated * (missions // flown + max(scratch, _MEASURING * cells)),
    )


def peak(parts: Mapping[str, int]) -> int:
    """Return the largest number of bytes needed at once, given `memory_estimate`.

    Rollout, update and validation take place one after the other.
    """
    always = sum(size for name, size in parts.items() if name not in _IN_TURN)
    return always + max(parts.get(name, 0) for name in _IN_TURN)


def _count_networks(
    config: Config, device: torch.device | None
) -> tuple[int, list[list[int]], torch.dtype]:
    """Return the numbers stored for weights, output sizes of each network's layers, precision."""
    networks = config.networks
    for name in (config.experiment.algorithm, networks.actor.type, networks.critic.type):
        with suppress(Exception):  # tensors that custom modules create on import need values
            import_module(name.rpartition(".")[0])
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            algorithm = make_algorithm(config, "meta")
            modules = algorithm.modules
            parameters = [p for module in modules.values() for p in module.parameters()]
        except Exception:  # a custom part may fail on meta tensors
            return 0, [[]], torch.float32
        layers = [layer_outputs(m, name, config.network_sizes) for name, m in modules.items()]
    precision = algorithm.precision
    if device is not None and isinstance(algorithm, ActorCritic):
        precision = resolve_precision(config.compute.precision, device)
    # A trainable weight has a gradient and two moments.
    weights = sum(p.numel() * (4 if p.requires_grad else 1) for p in parameters)
    return weights, layers, precision


def layer_outputs(module: nn.Module, name: str, sizes: NetworkSizes) -> list[int]:
    """Return the output size of each layer for one transition; [] if the inputs do not fit.

    `module` is on the meta device. As `name`, `actor` gets the actor's channels, others the
    critic's.
    """
    outputs: list[int] = []

    def count_output(_: nn.Module, __: object, out: object) -> None:
        tensors = out if isinstance(out, tuple) else (out,)  # recurrent layers return a state, too
        outputs.append(sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor)))

    layers = [layer for layer in module.modules() if not any(layer.children())]
    hooks = [layer.register_forward_hook(count_output) for layer in layers]
    try:
        with torch.no_grad():
            module(torch.empty(1, sizes.channels(name), *sizes.shape))
    except Exception:  # a custom network may take other inputs and raise any error
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def device_memory(
    device: torch.device,
    meminfo: Path = Path("/proc/meminfo"),
    limit: Path = Path("/sys/fs/cgroup/memory.max"),
) -> tuple[int, int]:
    """Return the (free, total) bytes of a device; on a CPU within the limits of a container."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    known: dict[str, int] = {}
    with suppress(OSError):
        text = meminfo.read_text(encoding="ascii")
        known = {name: int(kb) * 1024 for name, kb in re.findall(r"(Mem\w+): *(\d+) kB", text)}
    total = known.get("MemTotal", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text(encoding="ascii")))
    return min(known.get("MemAvailable", total), total), total


def check_memory(config: Config, device: torch.device, ranks: int = 1) -> None:
    """Check that the tensors needed in any case fit into the device's memory.

    Each rank has a GPU of its own, but all ranks share the memory of a CPU. Raises ConfigError if
    the tensors do not fit.
    """
    ranks = ranks if device.type == "cuda" else 1
    parts = memory_estimate(config, ranks, device)
    for uncertain in ("activations", "graphs"):
        parts.pop(uncertain, None)
    _, total = device_memory(device)
    if peak(parts) > total:
        raise ConfigError(
            f"{memory_advice(config, parts, total, ranks)}: this training needs at least "
            f"{peak(parts) / GIB:,.1f} GiB, and the device has {total / GIB:,.1f} GiB"
        )


def memory_advice(config: Config, parts: Mapping[str, int], free: int, ranks: int = 1) -> str:
    """Return the keys to lower, most useful first, with values that should fit.

    `parts` are the bytes of `memory_estimate` for a configuration that does not fit; `free` are the
    free bytes of each of the `ranks` that share the missions.
    """
    share = min(_SHARE * free / peak(parts), 0.5)
    sizes = dict(parts)
    sizes["missions"] += sizes.pop("windows")
    learning, collected = config.learning, config.schedule.places_per_step // ranks
    batch = min(learning.micro_batch or collected, -(-collected // learning.batch_number))
    interval = min(learning.update_interval, learning.training_steps)
    missions = ("environment.num_envs", config.environment.num_envs)
    transitions = missions
    if interval > 1:
        transitions = ("learning.update_interval", interval)
    elif config.schedule.rollouts_per_step > 1:
        transitions = ("learning.batch_size", learning.batch_size)
    if config.environment.num_envs == 1:  # then a single mission is too large
        missions = ("sensor.pixel.number_x and number_y", config.sensor.pixel.number_x)
    keys = {
        "missions": missions,
        "transitions": transitions,
        "replay": ("learning.replay_size", learning.replay_size),
        "activations": ("learning.micro_batch", batch),
        "weights": ("networks.critic.conv_channels", config.networks.critic.conv_channels),
        "validation": ("evaluation.missions", config.evaluation.missions),
    }
    spacing = 2 * config.experiment.constraints.spacing
    advice = {
        "tables": f"experiment.constraints.spacing={spacing:g}",
        "graphs": "compute.cuda_graphs=false",
    }
    for name, (key, value) in keys.items():
        advice[name] = f"{key}={1 << max(int(value * share).bit_length() - 1, 0)}"  # a power of two
    first, second = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:2]
    useful = [first, second] if sizes[second] * 10 > sizes[first] else [first]
    return " or ".join(dict.fromkeys(advice[name] for name in useful))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports that the memory of any device is exhausted."""
    if isinstance(error, ConfigError) and error.__cause__ is not None:  # of a custom part
        error = error.__cause__
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)
