"""Compare the library with recorded mission steps.

    python -m benchmarks.reference.replay FOLDER [--device cuda]

reads every `FOLDER/case_*.npz` (arrays as in `benchmarks.reference.record`), prints one row per
array and exits with 0 if all agree, 1 if one does not, 2 for bad input. It calls only functions
that training calls: the environment's hearing and fusion, the lattice's masks and moves, the
observation builder and the metrics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from benchmarks.helpers.text import table_text
from marl_framework.command_line import BAD_INPUT, Parser, plain_warnings
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.device import resolve_device
from marl_framework.evaluation import metrics
from marl_framework.mission.accuracy import f1
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder

Case = dict[str, NDArray[Any]]

EXACT = 0.0
CLOSE = 1e-4
RELATIVE = ("utility_absolute", "utility_relative")
CHANNELS = {
    "actor_observation": Config().observation.actor_channels,
    "critic_state": Config().observation.critic_channels,
}
TOLERANCES = {
    "measurements": CLOSE,
    "heard": EXACT,
    "beliefs_after": CLOSE,
    "global_after": CLOSE,
    "actor_observation": CLOSE,
    "critic_state": CLOSE,
    "boundary_mask": EXACT,
    "action_mask": EXACT,
    "next_positions_m": EXACT,
    "utility_absolute": CLOSE,
    "utility_relative": CLOSE,
    "roi_entropy": CLOSE,
    "f1_roi": CLOSE,
}
"""Compared arrays, and their largest allowed error: absolute, relative for utilities."""

_COUNTS = ("n_agents", "num_actions", "budget", "t")


# Recorded cases ---------------------------------------------------------------------------


def load_case(path: Path) -> tuple[Case, Config]:
    """Read and check a case.

    Raises:
        ConfigError: the file cannot be read, or an array is missing or invalid.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            case: Case = {name: file[name] for name in file.files}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # zip, deflate and numpy's parser raise many kinds
        raise ConfigError(f"{path}: not a readable NPZ file of arrays") from error
    for name in _COUNTS:
        _check_array(path, case, name, (), "iu")
    config = _config(path, case)
    for name, shape in _shapes(config).items():
        _check_array(path, case, name, shape, "iu" if name == "actions" else "biuf")
    if not ((case["actions"] >= 0) & (case["actions"] < case["num_actions"])).all():
        raise ConfigError(f"{path}: actions: must lie in 0 … num_actions - 1")
    return case, config


def _check_array(path: Path, case: Case, name: str, shape: tuple[int, ...], kinds: str) -> None:
    if name not in case:
        raise ConfigError(f"{path}: lacks the array {name}")
    array = case[name]
    if array.dtype.kind not in kinds or array.shape != shape:
        wanted = "whole numbers" if kinds == "iu" else "numbers"
        raise ConfigError(
            f"{path}: {name}: must be {wanted} of shape {shape}, is {array.dtype} {array.shape}"
        )


def _config(path: Path, case: Case) -> Config:
    """Return the recorded configuration of the mission, by default that of the paper."""
    try:
        tree = json.loads(str(case["config"])) if "config" in case else {}
        experiment = tree.setdefault("experiment", {})
        constraints = experiment.setdefault("constraints", {})
        constraints |= {name: int(case[name]) for name in ("num_actions", "budget")}
        experiment.setdefault("missions", {})["n_agents"] = int(case["n_agents"])
        tree.pop("observation", None)  # all channels are recorded
        return Config.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: config: {key}: {first['msg']}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}: config: not a JSON object of settings") from error


def _shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array of a case."""
    n, cells, lattice = (
        config.missions.most_agents,
        config.geometry.map_shape,
        config.geometry.lattice_shape,
    )
    actions = config.experiment.constraints.num_actions
    return {
        "communication_range": (),
        "truth": cells,
        "positions_m": (n, 3),
        "measurements": (n, *cells),
        "beliefs_before": (n, *cells),
        "heard": (n, n),
        "beliefs_after": (n, *cells),
        "actor_observation": (n, *lattice[:2], len(CHANNELS["actor_observation"])),
        "global_before": cells,
        "global_after": cells,
        "actions": (n,),
        "boundary_mask": (n, actions),
        "action_mask": (n, actions),
        "next_positions_m": (n, 3),
        "critic_state": (n, *lattice[:2], len(CHANNELS["critic_state"])),
        "utility_absolute": (),
        "utility_relative": (),
        "roi_entropy": (),
        "f1_roi": (),
    }


def _to_lattice(config: Config, metres: NDArray[Any]) -> NDArray[np.int64]:
    """Convert positions [m] to lattice indices, [N, 3]."""
    constraints = config.experiment.constraints
    index = (metres - [0, 0, constraints.min_altitude]) / constraints.spacing
    nearest = np.rint(index)
    on_lattice = (nearest >= 0) & (nearest < config.geometry.lattice_shape)
    if not (on_lattice & (np.abs(index - nearest) < 1e-6)).all():
        raise ConfigError("positions_m: must lie on the planning lattice")
    return nearest.astype(np.int64)


def _to_metres(config: Config, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Convert lattice indices [..., 3] to positions [m] in float64."""
    planar = positions[..., :2] * config.experiment.constraints.spacing
    altitude = np.array(config.geometry.altitudes)[positions[..., 2]]
    return np.concatenate([planar, altitude[..., None]], axis=-1)


# The library in the recorded state --------------------------------------------------------


def recorded_state(
    environment: MissionEnvironment, config: Config, cases: Sequence[Case]
) -> MissionState:
    """Return the state of the recorded missions before messages, E = len(cases).

    Raises:
        ConfigError: an agent is not on the lattice.
    """

    def stack(name: str, dtype: torch.dtype) -> Tensor:
        arrays = np.stack([np.asarray(case[name]) for case in cases])
        return torch.from_numpy(arrays).to(device=environment.device, dtype=dtype)

    positions = np.stack([_to_lattice(config, case["positions_m"]) for case in cases])
    state = environment.reset(environment.draw_reset())
    recorded = {
        "truth": stack("truth", torch.bool),
        "beliefs": stack("beliefs_before", torch.float32),
        "global_belief": stack("global_before", torch.float32),
        "positions": torch.from_numpy(positions),
        "t": stack("t", torch.int64),
        "communication_range": stack("communication_range", torch.float32),
    }
    for name, value in recorded.items():
        getattr(state, name).copy_(value)
    signs = stack("measurements", torch.float32).sub(0.5).sign().to(torch.int8)
    camera = environment.camera
    footprint = camera.footprint(state.positions)
    in_window = signs.flatten(2).gather(2, camera.window_index(footprint))
    rows, cols = camera.inside(footprint, footprint)  # a reading beyond it is not possible
    state.readings.copy_(
        in_window.view_as(state.readings) * rows.unsqueeze(-1) * cols.unsqueeze(-2)
    )
    environment.refresh(state)
    return state


def replay(
    cases: Sequence[Case], config: Config, device: torch.device | str = "cpu"
) -> dict[str, NDArray[Any]]:
    """Compute the recorded arrays, as E missions of one configuration.

    Returns:
        The arrays of `TOLERANCES`, E first.
    """
    environment = MissionEnvironment(config, len(cases), device)
    lattice, camera = environment.lattice, environment.camera
    builder = ObservationBuilder(config, lattice, camera)
    state = recorded_state(environment, config, cases)
    actions = torch.from_numpy(np.stack([case["actions"] for case in cases]))
    actions = actions.to(environment.device, torch.int64)
    heard = torch.from_numpy(np.stack([case["heard"] for case in cases]).astype(bool))

    state.heard.copy_(environment.radio.hear(state, ~heard.to(environment.device)))
    view = environment.fusion.view(state, state.active.any(1))
    environment.fusion.fuse_own(state, view, takes_own=False)
    utility = environment.fusion.fuse_global(state, view)
    observation = builder.actor(state)
    critic = builder.critic(state, actions, observation)
    _, masks = lattice.choose_in_order(state.positions, lambda i, mask: actions[:, i])
    likelihood = camera.likelihood(state.readings, state.positions).flatten(2)
    index = camera.window_index(camera.footprint(state.positions))
    measurements = torch.full_like(state.beliefs, 0.5).flatten(2).scatter(2, index, likelihood)
    goals = lattice.move(state.positions, actions).cpu().numpy()
    computed = {
        "measurements": measurements.view_as(state.beliefs),
        "heard": state.heard,
        "beliefs_after": state.beliefs,
        "global_after": state.global_belief,
        "actor_observation": observation.movedim(2, -1),
        "critic_state": critic.movedim(2, -1),
        "boundary_mask": lattice.boundary_mask(state.positions),
        "action_mask": masks,
        "utility_absolute": utility.absolute,
        "utility_relative": utility.relative,
        "roi_entropy": metrics.roi_entropy(state.global_belief, state.truth),
        "f1_roi": f1(state.global_belief, state.truth),
    }
    arrays = {name: value.cpu().numpy() for name, value in computed.items()}
    return arrays | {"next_positions_m": _to_metres(config, goals)}


# Comparison -------------------------------------------------------------------------------


@dataclass
class Row:
    """The largest error of one array, or of one channel, over all cases."""

    name: str
    tolerance: float
    error: float = 0.0
    case: str = ""

    def take(self, error: float, case: str) -> None:
        """Keep the worse error."""
        if not self.case or error > self.error:
            self.error, self.case = error, case

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance


def pairs(case: Mapping[str, NDArray[Any]], computed: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return (recorded, computed) of one mission by name; observations by channel."""
    found = {}
    for name in TOLERANCES:
        recorded, ours = case[name].astype(np.float64), computed[name].astype(np.float64)
        if name in CHANNELS:
            for k, channel in enumerate(CHANNELS[name]):
                found[f"{name}: {channel}"] = (recorded[..., k], ours[..., k])
        else:
            found[name] = (recorded, ours)
    return found


def largest_error(name: str, recorded: NDArray[Any], ours: NDArray[Any]) -> float:
    """Return the largest absolute difference, relative to the record for utilities.

    NaN counts as infinite.
    """
    with np.errstate(invalid="ignore"):
        error = np.abs(recorded - ours).max()
    if name in RELATIVE and error:
        error = error / np.maximum(np.abs(recorded), np.finfo(np.float32).tiny)
    return float(np.nan_to_num(error, nan=np.inf))


def compare(paths: Sequence[Path], device: torch.device | str = "cpu") -> list[Row]:
    """Replay cases one after the other; return one row per array or channel.

    Raises:
        ConfigError: a case is invalid.
    """
    rows: dict[str, Row] = {}
    for path in paths:
        case, config = load_case(path)
        try:
            computed = replay([case], config, device)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        first = {name: value[0] for name, value in computed.items()}
        for name, (recorded, ours) in pairs(case, first).items():
            row = rows.setdefault(name, Row(name, TOLERANCES[name.split(":")[0]]))
            row.take(largest_error(name, recorded, ours), path.stem)
    return list(rows.values())


def find_cases(folder: Path) -> list[Path]:
    """Return the cases of a folder, by name.

    Raises:
        ConfigError: the folder is missing or has no cases.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    paths = sorted(folder.glob("case_*.npz"))
    if not paths:
        raise ConfigError(f"{folder}: has no case_*.npz files")
    return paths


def print_rows(rows: Sequence[Row], cases: int) -> None:
    """Print the table and a summary in one line."""
    cells = [
        (
            row.name,
            f"{row.error:.2e}",
            (f"{row.tolerance:.0e}" if row.tolerance else "exact")
            + (" rel" if row.name in RELATIVE else ""),
            row.case,
            "pass" if row.passed else "FAIL",
        )
        for row in rows
    ]
    header = ("array", "largest error", "tolerance", "worst in", "result")
    print(table_text("The library against recorded steps", header, cells))
    failed = sum(not row.passed for row in rows)
    print(f"{cases} cases, {len(rows)} arrays: {f'{failed} FAIL' if failed else 'all pass'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare a folder of cases with the library; return the exit code."""
    parser = Parser(prog="python -m benchmarks.reference.replay")
    parser.description = "Compare the library with recorded mission steps."
    parser.add_argument("folder", type=Path, help="holds case_*.npz files")
    parser.add_argument("--device", default="cpu", help="cpu (default), auto, cuda, cuda:N")
    options = parser.parse_args(arguments)
    try:
        paths = find_cases(options.folder)
        with plain_warnings():
            device = resolve_device(options.device)
        rows = compare(paths, device)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    print_rows(rows, len(paths))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
