"""Flights of a suite: planners and trained teams in fixed worlds, see `worlds`, docs/suite.md.

Results are written after each pair of world and planner. A suite that was interrupted, or is
given another team or policy, flies only the missing pairs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.loading import config_to_dict, differences, load_config
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation import comparison, report
from marl_framework.evaluation.flight import COMPLETED, FlightRecord, evaluate
from marl_framework.evaluation.worlds import BASE, VERSION, World
from marl_framework.kernels.versions import Version, version_for
from marl_framework.mission.files import file_checksum
from marl_framework.planners.team import Checkpoint, find_checkpoint, mission_config
from marl_framework.runs.files import strict, write_json
from marl_framework.runs.lock import folder_guard
from marl_framework.runs.names import PRETRAINED

POLICIES = (LEARNED, *report.CLASSICAL)  # by default
SEARCH = "search"  # the only planner whose settings a suite accepts
SETTINGS = f"experiment.baselines.{SEARCH}."
_BELIEF = report.METRICS | {"ece": -1, "brier": -1}
SIGNS = _BELIEF | {name: _BELIEF[of] for name, of in COMPLETED.items()}  # all metrics of a flight
_MAY_DIFFER = (
    *("compute.", "logging.", "deployment.", "flying."),  # change no training
    *("environment.seed.", "experiment.title.", "learning.teacher.", "distillation.teachers."),
    *("networks.predictor.", "evaluation.predictor.", f"{SETTINGS}predictor."),
)
"""Beginnings of the keys that may differ between the trainings of one policy."""
_DIGITS = 6  # decimals of a mission's value in the files


class Flyer(NamedTuple):
    """A planner, or a team or predictor of one training seed, that flies each world once."""

    policy: str
    key: str
    """Name in the files, with a digest of the checkpoint's content."""
    checkpoint: Checkpoint | None = None
    """Checkpoint of a team, or of the predictor for `search`."""
    overrides: tuple[str, ...] = ()
    """Settings of the planner, as `section.key=value` strings."""


def flyers(
    policies: Sequence[str], teams: Sequence[Checkpoint], settings: Sequence[str] = ()
) -> list[Flyer]:
    """Return one flyer per planner, per team, and per predictor of `search`.

    The `teams` fly as `learned`. `settings` are overrides for `search`; its `predictor` may name
    several runs, separated by commas. Raises ConfigError if no team is given, if teams or
    predictors are not training seeds of one configuration, or if a setting is invalid.
    """
    for text in settings:
        if not text.startswith(SETTINGS):
            raise ConfigError(f"--set {text}: --suite accepts only {SETTINGS}*; remove this --set")
        if SEARCH not in policies:
            raise ConfigError(f"--set {text} requires {SEARCH}; add it to --policies")
    result: list[Flyer] = []
    for policy in policies:
        if policy == LEARNED:
            if not teams:
                raise ConfigError("--policies learned requires a trained team; add --checkpoint")
            check_one_training(teams, "--checkpoint")
            result += [Flyer(policy, f"{policy} {_team_digest(team)}", team) for team in teams]
        elif policy == SEARCH:
            result += _search_flyers(settings)
        else:
            result.append(Flyer(policy, policy))
    return result


def _search_flyers(overrides: Sequence[str]) -> list[Flyer]:
    """Return `search` with each predictor; the key identifies predictor and settings."""
    settings = config_to_dict(load_config(BASE, overrides))["experiment"]["baselines"][SEARCH]
    predictors = [find_checkpoint(run.strip()) for run in settings.pop("predictor").split(",")]
    check_one_training(predictors, f"--set {SETTINGS}predictor")
    del settings["missions"]  # the suite sets the number of missions
    rest = " ".join(f"{name}={value}" for name, value in settings.items())
    keys = [f"{SEARCH} {digest(predictor)} {rest}" for predictor in predictors]
    settings_of = [(*overrides, f"{SETTINGS}predictor={json.dumps(p.name)}") for p in predictors]
    return [Flyer(SEARCH, *fields) for fields in zip(keys, predictors, settings_of, strict=True)]


def _team_digest(team: Checkpoint) -> str:
    """Return the digest of a team, followed by that of its map predictor if it uses one."""
    config = mission_config(BASE, (), team)
    if not config.observation.sees_prediction:
        return digest(team)
    with found_at("networks.predictor"):
        return f"{digest(team)} {digest(find_checkpoint(config.networks.predictor))}"


def digest(checkpoint: Checkpoint) -> str:
    """Return a shortened SHA-256 of a checkpoint file."""
    return file_checksum(checkpoint.path)[:16]


def check_one_training(checkpoints: Sequence[Checkpoint], option: str) -> None:
    """Check that checkpoints are trainings of one configuration with different seeds.

    Predictors and teachers may differ. Raises ConfigError that names two conflicting checkpoints.
    """
    seeds = set()
    for checkpoint in checkpoints:
        config, names = checkpoint.config(), f"{checkpoint.name} and {checkpoints[0].name}"
        for key in differences(checkpoints[0].config(), config):
            if f"{key}.".startswith(_MAY_DIFFER):
                continue
            advice = "only environment.seed, predictors and teachers may differ"
            if PRETRAINED in names:  # these do not keep the mission of their training
                advice += "; a checkpoint of the library has no other seeds: give it alone"
            raise ConfigError(f"{option}: {names} were trained differently ({key}); {advice}")
        seed = config.environment.seed
        if seed in seeds:
            raise ConfigError(f"{option}: two runs have environment.seed {seed}; keep only one")
        seeds.add(seed)


@dataclass(frozen=True)
class Suite:
    """Worlds and their flyers."""

    name: str
    """`standard`, `teams` or `rough`."""
    worlds: Sequence[World]
    flyers: Sequence[Flyer]
    missions: int
    """Number of missions per world."""
    seed: int
    device: torch.device
    folder: Path

    def check(self) -> None:
        """Create every flyer and every world once, so that bad input fails before any flight.

        Raises ConfigError if one cannot be created, or the folder has flights of other missions.
        """
        for flyer in self.flyers:
            self._prepare(self.worlds[0], flyer)
        for world in self.worlds:
            self._prepare(world, self.flyers[0])
            self._read(world)

    def fly(self) -> dict[str, dict[str, Any]]:
        """Fly the missing pairs of world and flyer; return all flights by world."""
        flown = {}
        for world in self.worlds:
            content = self._read(world)
            for flyer in self.flyers:
                if content["flights"].get(flyer.key, {}).keys() >= SIGNS.keys():
                    continue  # flights of earlier versions lack metrics
                start = time.perf_counter()
                flight, policy = self._prepare(world, flyer), flyer.policy
                environment, planner = flight.environments[policy], flight.planners[policy]
                record = evaluate(
                    environment, planner, self.missions, self.seed, keep_maps=0, curves=False,
                    completion=flight.completion,
                )  # fmt: skip
                blocks = report.mission_blocks(record)
                self._file(world).parent.mkdir(exist_ok=True)
                with folder_guard(self.folder):  # another command may fly the same worlds
                    content = self._read(world)
                    content["blocks"] = None if blocks is None else blocks.tolist()
                    content["flights"][flyer.key] = finals(record)
                    write_json(self._file(world), content)
                seconds = time.perf_counter() - start
                print(f"{world.name}: {flyer.key} in {seconds:.0f} s", flush=True)
            flown[world.name] = content
        return flown

    def _prepare(self, world: World, flyer: Flyer) -> comparison.Comparison:
        team = flyer.checkpoint if flyer.policy == LEARNED else None
        config = mission_config(BASE, [*world.overrides, *flyer.overrides], team)
        policies = [flyer.policy]
        return comparison.prepare(config, self.device, policies, self.missions, self.seed, team)

    def _file(self, world: World) -> Path:
        return self.folder / "worlds" / f"{world.name}.json"

    def _read(self, world: World) -> dict[str, Any]:
        """Read the folder's flights of a world.

        Raises ConfigError if their missions differ, or other settings completed their maps.
        """
        config = load_config(BASE, world.overrides)
        by_triton = version_for(config.compute, self.device) is Version.TRITON
        head = {
            "suite": VERSION,
            "missions": self.missions,
            "world": json.loads(json.dumps(strict(world.definition(self.seed)))),
            # Missions also depend on the device type and the kernels.
            "device": self.device.type + (" by Triton" if by_triton else ""),
            "completion": _completion(config),
        }
        file = self._file(world)
        if not os.path.isfile(file):  # unlike Path.is_file, never raises
            return {**head, "blocks": None, "flights": {}}
        absent = {"device": "cpu", "completion": head["completion"]}  # in earlier versions
        try:
            content: dict[str, Any] = {**absent, **json.loads(file.read_text("utf-8"))}
            same = all(content[key] == head[key] for key in head) and "flights" in content
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise ConfigError(
                f"--out {self.folder}: {file.relative_to(self.folder)} has other missions, or maps "
                "completed with another evaluation.predictor or caution; use a new folder"
            )
        return content


def _completion(config: Config) -> dict[str, Any]:
    """Return what completes the maps of a suite, with a digest of the predictor."""
    name = config.evaluation.predictor
    if name is None:
        raise ConfigError("evaluation.predictor: suites complete maps; set it to a map predictor")
    with found_at("evaluation.predictor"):
        return {"predictor": digest(find_checkpoint(name)), "caution": config.evaluation.caution}


def finals(record: FlightRecord) -> dict[str, list[float]]:
    """Return the final value of each mission, by metric."""
    known = [name for name in SIGNS if name in record.metrics]
    last = {name: record.metrics[name][:, -1].tolist() for name in known}
    return {name: [round(value, _DIGITS) for value in values] for name, values in last.items()}
