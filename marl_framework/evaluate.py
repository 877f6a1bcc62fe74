"""Compares planners on the same missions: `python -m marl_framework.evaluate`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from marl_framework.coma_wrapper import COMAWrapper, mission_sizes
from marl_framework.config import Config
from marl_framework.config_io import (
    ConfigError,
    config_from_dict,
    config_to_dict,
    load_config,
    resolve_config_path,
)
from marl_framework.device import describe_device, resolve_device
from marl_framework.evaluation import figures, report
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.seeding import MAX_SEED
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners import LearnedPlanner, Planner, RandomPlanner
from marl_framework.training.checkpoint import load_checkpoint
from marl_framework.training.run_folder import describe_environment

_EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130
_BATCH_BYTES = 2**30
_SPLIT = "test"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file and what it holds."""

    path: Path
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Hangar:
    """What planners are made of."""

    config: Config
    environment: MissionEnvironment
    checkpoint: Checkpoint | None


def _learned(hangar: Hangar) -> Planner:
    if hangar.checkpoint is None:
        raise ConfigError("--policies learned: give the trained team with --checkpoint")
    env = hangar.environment
    wrapper = COMAWrapper(hangar.config.networks, mission_sizes(hangar.config), env.device)
    _load_actor(wrapper.actor, hangar.checkpoint)
    builder = ObservationBuilder(hangar.config, env.lattice, env.camera)
    return LearnedPlanner(wrapper, builder, env.lattice)


PLANNERS: dict[str, Callable[[Hangar], Planner]] = {
    "learned": _learned,
    "random": lambda hangar: RandomPlanner(hangar.environment.lattice),
}
"""How to make each planner that `--policies` knows."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with one line, like every other bad input."""
        self.exit(_EXIT_BAD_INPUT, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m marl_framework.evaluate", description=__doc__)
    parser.add_argument(
        "--policies",
        required=True,
        metavar="NAME,…",
        help=f"planners to compare, of {', '.join(PLANNERS)}; differences are to the first",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="RUN_OR_FILE",
        help="trained team: a checkpoint, or a run folder (its best.pt, else last.pt)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="params file of the missions (default: the checkpoint's configuration); the "
        "networks' inputs and widths stay the checkpoint's",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override a key of the configuration; may be repeated",
    )
    parser.add_argument("--missions", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--seed", type=int, default=20001, help="of the missions (default: 20001)")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; short for networks.device")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the results")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 done, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return _EXIT_INTERRUPTED
    return 0


def _run(options: argparse.Namespace) -> None:
    names = _policy_names(options.policies)
    _check_numbers(options.missions, options.seed)
    checkpoint = _find_checkpoint(options.checkpoint) if options.checkpoint is not None else None
    config = _configuration(options, checkpoint)
    device = resolve_device(config.networks.device)
    batch = _batch_size(config, options.missions)
    hangar = Hangar(config, MissionEnvironment(config, batch, device, _SPLIT), checkpoint)
    planners = {name: PLANNERS[name](hangar) for name in names}
    out = _output_folder(options.out)
    print(describe_device(device), flush=True)
    records: dict[str, FlightRecord] = {}
    for name, planner in planners.items():
        start = time.perf_counter()
        records[name] = evaluate(hangar.environment, planner, options.missions, options.seed)
        seconds = time.perf_counter() - start
        print(f"{name}: {options.missions} missions in {seconds:.1f} s", flush=True)
    settings = {
        "policies": names,
        "missions": options.missions,
        "seed": options.seed,
        "split": _SPLIT,
        "batch": batch,
        "greedy": True,
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
        "training_step": None if checkpoint is None else checkpoint.payload.get("training_step"),
        "configuration": config_to_dict(config),
    }
    found = report.results(records, settings, describe_environment(device))
    try:
        paths = _write(records, found, out)
    except OSError as error:
        raise _not_writable(out, error) from error
    print(report.table_text(records))
    print("\n".join(str(path) for path in paths))


def _write(records: Mapping[str, FlightRecord], found: Mapping[str, Any], out: Path) -> list[Path]:
    """Write all files of an evaluation; return their paths."""
    results, text, curves = out / "results.json", out / "table.txt", out / "curves.png"
    report.write_results(found, results)
    text.write_text(report.table_text(records), encoding="utf-8")
    figures.curves_figure(found, curves)
    missions = [out / f"mission_{name}.png" for name in records]
    for record, path in zip(records.values(), missions, strict=True):
        figures.mission_figure(record, 0, path)
    return [results, text, curves, *missions]


def _policy_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PLANNERS:
            raise ConfigError(
                f"--policies {text}: there is no planner {name!r}; known are {', '.join(PLANNERS)}"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"--policies {text}: name each planner once")
    return names


def _check_numbers(missions: int, seed: int) -> None:
    if missions < 1:
        raise ConfigError(f"--missions {missions}: give a number of missions, 1 or more")
    if not 0 <= seed < MAX_SEED:
        raise ConfigError(f"--seed {seed}: give a whole number from 0 to {MAX_SEED - 1}")


def _find_checkpoint(name: str) -> Checkpoint:
    """Read a checkpoint file, or the best one, else the last, of a run folder."""
    path = Path(name)
    if path.is_dir():
        candidates = [path / "checkpoints" / file for file in ("best.pt", "last.pt")]
        found = [file for file in candidates if file.is_file()]
        if not found:
            raise ConfigError(
                f"--checkpoint {name}: the folder holds neither checkpoints/best.pt nor "
                "checkpoints/last.pt; give a run folder or a checkpoint file"
            )
        path = found[0]
    return Checkpoint(path, load_checkpoint(path))


def _configuration(options: argparse.Namespace, checkpoint: Checkpoint | None) -> Config:
    """Return the missions' configuration with the inputs and widths of the trained networks."""
    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"networks.device={options.device}")
    if checkpoint is None:
        if options.config is None:
            raise ConfigError("--config: give a params file, or a team with --checkpoint")
        return load_config(resolve_config_path(options.config), overrides)
    source = f"configuration in checkpoint {checkpoint.path}"
    saved = checkpoint.payload.get("config")
    if not isinstance(saved, Mapping):
        raise ConfigError(f"checkpoint {checkpoint.path}: it lacks the key config")
    if options.config is None:
        return config_from_dict(saved, source, overrides)
    trained = config_to_dict(config_from_dict(saved, source))
    path = resolve_config_path(options.config)
    world = config_to_dict(load_config(path, overrides))
    world["observation"] = trained["observation"]
    for network in ("actor", "critic"):
        world["networks"][network] = trained["networks"][network]
    return config_from_dict(world, str(path), overrides)  # overrides win over the checkpoint


def _load_actor(actor: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Load the trained actor.

    Raises:
        ConfigError: the checkpoint's actor does not fit the configuration; says where.
    """
    saved = checkpoint.payload.get("actor")
    if not isinstance(saved, Mapping):
        raise ConfigError(f"checkpoint {checkpoint.path}: it lacks the key actor")
    ours = {name: _shape(value) for name, value in actor.state_dict().items()}
    theirs = {str(name): _shape(value) for name, value in saved.items()}
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"checkpoint {checkpoint.path}: its actor does not fit the configuration: {name} "
                f"is {theirs.get(name, 'absent')} there, {ours.get(name, 'absent')} here; keep "
                "lattice, num_actions, observation and networks.actor as they were in training"
            )
    actor.load_state_dict(dict(saved))


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return "x".join(str(length) for length in value.shape) or "a number"


def _batch_size(config: Config, missions: int) -> int:
    """Return how many missions to fly at once: as equal batches as memory allows.

    It depends on the configuration alone, so that results repeat on any machine.
    """
    rows, cols = config.map_shape
    maps = config.experiment.missions.n_agents + 10  # beliefs and scratch memory, float32
    largest = max(1, _BATCH_BYTES // (4 * maps * rows * cols))
    return -(-missions // -(-missions // largest))


def _output_folder(name: str) -> Path:
    out = Path(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass  # it can be written
    except (OSError, ValueError) as error:
        raise _not_writable(out, error) from error
    return out


def _not_writable(out: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"--out {out}: cannot be written: {reason}; name a folder of yours")


if __name__ == "__main__":
    sys.exit(main())
