"""The standard suite: planners and trained teams in fixed worlds, see `worlds` and docs/suite.md.

Each flight of a planner through a world is written as soon as it is done; a suite that was
interrupted, or gets another team or policy, flies what is missing.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict, load_config
from marl_framework.config.model import Config
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation import comparison, report
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.evaluation.suite_statistics import METRICS, summary
from marl_framework.evaluation.worlds import BASE, MISSIONS, SEED, VERSION, World, left_out
from marl_framework.mission.fusion import fusion_type
from marl_framework.planners.team import Checkpoint, find_checkpoint, load_team, mission_config
from marl_framework.runs.files import strict, write_json
from marl_framework.runs.folder import describe_environment
from marl_framework.runs.lock import folder_guard

POLICIES = (LEARNED, *report.CLASSICAL)
"""Flown where the command line names none."""
SEARCH = "search"
"""The planner whose settings a suite takes: it flies with a trained predictor."""
SETTINGS = f"experiment.baselines.{SEARCH}."

_DIGITS = 6  # of a mission's value in the files


@dataclass(frozen=True)
class Flyer:
    """What flies a world once: a planner, or the team or predictor of one training seed."""

    policy: str
    key: str
    """Name in the files, with the content of the checkpoint."""
    checkpoint: Checkpoint | None = None
    """Of a team, or of the predictor of `search`."""
    overrides: tuple[str, ...] = ()
    """Settings of the planner, `section.key=value` each."""

    @property
    def team(self) -> Checkpoint | None:
        """The checkpoint, where it is a team's."""
        return self.checkpoint if self.policy == LEARNED else None

    def config(self, world: World, device: str | None) -> Config:
        """Return the configuration of its missions."""
        overrides = [*world.overrides, *self.overrides]
        overrides += [f"compute.device={device}"] if device else []
        return mission_config(BASE, overrides, self.team)


def flyers(
    policies: Sequence[str], teams: Sequence[Checkpoint], settings: Sequence[str] = ()
) -> list[Flyer]:
    """Return what flies: each planner once, each team once, `search` once with each predictor.

    Args:
        policies: names of planners.
        teams: that fly as `learned`.
        settings: of `search`, `experiment.baselines.search.key=value` each; `predictor` may name
            several runs, separated by commas.

    Raises:
        ConfigError: there is no team to fly, teams or predictors are not training seeds of one, or
            a setting is not right.
    """
    for text in settings:
        if not text.startswith(SETTINGS):
            raise ConfigError(
                f"--set {text}: the worlds of --suite are fixed; only {SETTINGS}* may be set"
            )
        if SEARCH not in policies:
            raise ConfigError(f"--set {text}: only {SEARCH} takes it; add it to --policies")
    found: list[Flyer] = []
    for policy in policies:
        if policy == LEARNED:
            found += _learned(teams)
        elif policy == SEARCH:
            found += _searches(settings)
        else:
            found.append(Flyer(policy, policy))
    return found


def _learned(teams: Sequence[Checkpoint]) -> list[Flyer]:
    if not teams:
        raise ConfigError("--policies learned: it needs a trained team; add --checkpoint")
    check_one_training(teams, "--checkpoint")
    return [Flyer(LEARNED, f"{LEARNED} {_team_digest(team)}", team) for team in teams]


def _team_digest(team: Checkpoint) -> str:
    """Return the digest of a team, and of the predictor that it sees through."""
    config = mission_config(BASE, (), team)
    if not config.observation.sees_prediction:
        return digest(team)
    return f"{digest(team)} {digest(find_checkpoint(config.networks.predictor))}"


def _searches(overrides: Sequence[str]) -> list[Flyer]:
    """Return `search` with each predictor; its key tells predictor, settings and prior."""
    settings = config_to_dict(load_config(BASE, overrides))["experiment"]["baselines"][SEARCH]
    runs = settings.pop("predictor").split(",")
    del settings["missions"]  # the suite's
    predictors = [find_checkpoint(run.strip()) for run in runs]
    check_one_training(predictors, f"--set {SETTINGS}predictor")
    if settings["prior"] is not None:
        settings["prior"] = _team_digest(load_team(settings["prior"]))
    rest = " ".join(f"{name}={value}" for name, value in settings.items())
    return [
        Flyer(
            SEARCH,
            f"{SEARCH} {digest(each)} {rest}",
            each,
            (*overrides, f"{SETTINGS}predictor={json.dumps(each.name)}"),
        )
        for each in predictors
    ]


def digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256 of a checkpoint file, shortened."""
    return hashlib.sha256(checkpoint.path.read_bytes()).hexdigest()[:16]


def check_one_training(checkpoints: Sequence[Checkpoint], option: str) -> None:
    """Refuse checkpoints that are not trainings of one configuration from different seeds.

    Each may have had predictors and teachers of its own seed: which runs they were may differ.

    Raises:
        ConfigError: names two that do not fit, and the option that gave them.
    """

    def schedule(checkpoint: Checkpoint) -> tuple[Any, Any]:
        tree = config_to_dict(mission_config(None, [], checkpoint))
        seed = tree["environment"].pop("seed")
        tree["experiment"].pop("title")
        for own in ("predictor", "prior"):
            tree["experiment"]["baselines"][SEARCH].pop(own)
        tree["networks"].pop("predictor")
        tree["learning"]["teacher"].pop("run")
        tree["distillation"].pop("teachers")
        return seed, {k: v for k, v in tree.items() if k not in ("compute", "logging")}

    found = [schedule(checkpoint) for checkpoint in checkpoints]
    for checkpoint, (seed, tree) in zip(checkpoints[1:], found[1:], strict=True):
        if tree != found[0][1]:
            raise ConfigError(
                f"{option}: {checkpoint.path} and {checkpoints[0].path} were trained differently; "
                "give runs of one params file that differ in environment.seed, predictors and "
                "teachers alone"
            )
        if [other for other, _ in found].count(seed) > 1:
            raise ConfigError(f"{option}: two runs have environment.seed {seed}; name one")


# Flights ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suite:
    """Worlds, and what flies them."""

    name: str
    worlds: Sequence[World]
    flyers: Sequence[Flyer]
    missions: int
    seed: int
    device: torch.device
    device_name: str | None
    """As the command line names it."""
    folder: Path

    def check(self) -> None:
        """Make every flyer and every world once, so that bad input fails before any flight.

        Raises:
            ConfigError: one cannot be made, or the folder has flights of other worlds.
        """
        for flyer in self.flyers:
            self._prepared(self.worlds[0], flyer)
        for world in self.worlds:
            self._prepared(world, self.flyers[0])
            self._flown(world)

    def fly(self) -> dict[str, dict[str, Any]]:
        """Fly what is missing and return all flights of the chosen worlds, by world."""
        found = {}
        for world in self.worlds:
            content = self._flown(world)
            for flyer in self.flyers:
                if flyer.key in content["flights"]:
                    continue
                start = time.perf_counter()
                blocks, flight = self._fly(world, flyer)
                self._file(world).parent.mkdir(exist_ok=True)
                with folder_guard(self.folder):  # another command may fly the same worlds
                    content = self._flown(world)
                    content["blocks"] = blocks
                    content["flights"][flyer.key] = flight
                    write_json(self._file(world), content)
                seconds = time.perf_counter() - start
                print(f"{world.name}: {flyer.key} in {seconds:.0f} s", flush=True)
            found[world.name] = content
        return found

    def _fly(self, world: World, flyer: Flyer) -> tuple[list[int] | None, dict[str, list[float]]]:
        """Return which missions fly over the same ground, and what each has reached."""
        flight = self._prepared(world, flyer)
        ((name, planner),) = flight.planners.items()
        record = evaluate(flight.environments[name], planner, self.missions, self.seed, keep_maps=0)
        blocks = report.mission_blocks(record)
        return None if blocks is None else blocks.tolist(), finals(record)

    def _prepared(self, world: World, flyer: Flyer) -> comparison.Comparison:
        config = flyer.config(world, self.device_name)
        return comparison.prepare(
            config, self.device, [flyer.policy], self.missions, self.seed, flyer.team
        )

    def _file(self, world: World) -> Path:
        return self.folder / "worlds" / f"{world.name}.json"

    def _drawn_by(self, world: World) -> str:
        """Return what draws the missions: other devices and kernels draw others."""
        fusion = fusion_type(load_config(BASE, world.overrides), self.device)
        return self.device.type + (" by Triton" if fusion.draws_bits else "")

    def _flown(self, world: World) -> dict[str, Any]:
        """Return what the folder has of a world, or a start without flights."""
        definition = world.definition(self.seed)
        asked = {
            "suite": VERSION,
            "missions": self.missions,
            "world": definition,
            "device": self._drawn_by(world),
        }
        asked = json.loads(json.dumps(strict(asked)))
        file = self._file(world)
        if not file.is_file():
            return {**asked, "blocks": None, "flights": {}}
        try:
            found: dict[str, Any] = {"device": "cpu", **json.loads(file.read_text("utf-8"))}
            same = all(found[key] == asked[key] for key in asked) and "flights" in found
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise ConfigError(
                f"--out {self.folder}: {file.relative_to(self.folder)} has flights of other "
                "missions; name a new folder"
            )
        return found


def finals(record: FlightRecord) -> dict[str, list[float]]:
    """Return what each mission has reached in the end, by metric."""
    return {
        name: [round(value, _DIGITS) for value in record.metrics[name][:, -1].tolist()]
        for name in METRICS
    }


# Results ----------------------------------------------------------------------------------


def results(suite: Suite, flown: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all that `suite.json` holds, in plain types.

    `worlds.<name>` has the world's `definition`, `blocks` (missions over the same ground),
    `finals.<policy>.<metric>` (training seeds × missions, after the last move) and
    `summary.<policy>.<metric>`, see `summary`.
    """
    worlds = {}
    for name, content in flown.items():
        flights = {
            policy: {m: [content["flights"][f.key][m] for f in group] for m in METRICS}
            for policy, group in _by_policy(suite.flyers)
        }
        blocks = content["blocks"]
        worlds[name] = {
            "definition": content["world"],
            "blocks": blocks,
            "summary": summary(flights, None if blocks is None else torch.tensor(blocks)),
            "finals": flights,
        }
    return {
        "schema": 1,
        "suite": suite.name,
        "version": VERSION,
        "missions": suite.missions,
        "standard_missions": MISSIONS,
        "seed": suite.seed,
        "standard_seed": SEED,
        "teams": _trainings(suite.flyers, LEARNED),
        "predictors": _trainings(suite.flyers, SEARCH),
        "left_out": left_out(suite.name, flown),
        "machine": {
            **describe_environment(suite.device),
            "command": shlex.join(["python", *sys.orig_argv[1:]]),
        },
        "worlds": worlds,
    }


def _by_policy(flying: Sequence[Flyer]) -> Iterator[tuple[str, list[Flyer]]]:
    for policy in dict.fromkeys(flyer.policy for flyer in flying):
        yield policy, [flyer for flyer in flying if flyer.policy == policy]


def _trainings(flying: Sequence[Flyer], policy: str) -> list[dict[str, Any]]:
    """Return the trainings behind a policy."""
    found = [each.checkpoint for each in flying if each.policy == policy]
    return [_training(checkpoint) for checkpoint in found if checkpoint is not None]


def _training(checkpoint: Checkpoint) -> dict[str, Any]:
    config = mission_config(None, [], checkpoint)
    return {
        "checkpoint": checkpoint.name,
        "sha256": digest(checkpoint),
        "title": config.experiment.title,
        "seed": config.environment.seed,
        "training_step": checkpoint.payload.get("training_step"),
    }
