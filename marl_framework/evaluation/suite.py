"""The suites: planners and trained teams in fixed worlds, see `worlds` and docs/suite.md.

Results are written after each pair of world and planner. A suite that was interrupted, or is
given another team or policy, flies only the missing pairs.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.text import Text
from torch import Tensor

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict, load_config
from marl_framework.config.parts import LEARNED
from marl_framework.evaluation import comparison, report
from marl_framework.evaluation.flight import FlightRecord, evaluate
from marl_framework.evaluation.statistics import interval, worst_tenth
from marl_framework.evaluation.worlds import BASE, MISSIONS, SEED, VERSION, World, left_out
from marl_framework.kernels.versions import Version, version_for
from marl_framework.planners.team import Checkpoint, find_checkpoint, load_team, mission_config
from marl_framework.runs.files import strict, write_json
from marl_framework.runs.folder import describe_environment
from marl_framework.runs.lock import folder_guard

POLICIES = (LEARNED, *report.CLASSICAL)  # by default
SEARCH = "search"  # the only planner whose settings a suite accepts
SETTINGS = f"experiment.baselines.{SEARCH}."
METRICS = report.METRICS
LABELS = {metric: report.LABELS[metric] for metric in METRICS}
_SIGNS = METRICS | {"ece": -1, "brier": -1}  # all metrics of a flight
_NO_TRAINING = ("compute", "logging", "deployment", "flying")  # sections that change no training
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
    """Return `search` with each predictor; the key identifies predictor, settings and prior."""
    settings = config_to_dict(load_config(BASE, overrides))["experiment"]["baselines"][SEARCH]
    predictors = [find_checkpoint(run.strip()) for run in settings.pop("predictor").split(",")]
    check_one_training(predictors, f"--set {SETTINGS}predictor")
    del settings["missions"]  # the suite sets the number of missions
    if settings["prior"] is not None:
        settings["prior"] = _team_digest(load_team(settings["prior"]))
    rest = " ".join(f"{name}={value}" for name, value in settings.items())
    keys = [f"{SEARCH} {digest(predictor)} {rest}" for predictor in predictors]
    settings_of = [(*overrides, f"{SETTINGS}predictor={json.dumps(p.name)}") for p in predictors]
    return [Flyer(SEARCH, *fields) for fields in zip(keys, predictors, settings_of, strict=True)]


def _team_digest(team: Checkpoint) -> str:
    """Return the digest of a team, followed by that of its map predictor if it uses one."""
    config = mission_config(BASE, (), team)
    if not config.observation.sees_prediction:
        return digest(team)
    return f"{digest(team)} {digest(find_checkpoint(config.networks.predictor))}"


def digest(checkpoint: Checkpoint) -> str:
    """Return a shortened SHA-256 of a checkpoint file."""
    return hashlib.sha256(checkpoint.path.read_bytes()).hexdigest()[:16]


def check_one_training(checkpoints: Sequence[Checkpoint], option: str) -> None:
    """Check that checkpoints are trainings of one configuration with different seeds.

    Predictors and teachers may differ. Raises ConfigError that names two conflicting checkpoints.
    """

    def separate_seed(checkpoint: Checkpoint) -> tuple[Any, Any]:
        tree = config_to_dict(checkpoint.config())
        seed = tree["environment"].pop("seed")
        tree["experiment"].pop("title")
        for key in ("predictor", "prior"):
            tree["experiment"]["baselines"][SEARCH].pop(key)
        tree["networks"].pop("predictor")
        tree["learning"].pop("teacher")  # teams of the library keep none
        tree["distillation"].pop("teachers")
        return seed, {k: v for k, v in tree.items() if k not in _NO_TRAINING}

    trainings = [separate_seed(checkpoint) for checkpoint in checkpoints]
    for checkpoint, (seed, tree) in zip(checkpoints[1:], trainings[1:], strict=True):
        if tree != trainings[0][1]:
            raise ConfigError(
                f"{option}: {checkpoint.path} and {checkpoints[0].path} were trained differently; "
                "only environment.seed, predictors and teachers may differ"
            )
        if [other for other, _ in trainings].count(seed) > 1:
            raise ConfigError(f"{option}: two runs have environment.seed {seed}; keep only one")


@dataclass(frozen=True)
class Suite:
    """Worlds and their flyers."""

    name: str
    """`standard` or `teams`."""
    worlds: Sequence[World]
    flyers: Sequence[Flyer]
    missions: int
    """Number of missions per world."""
    seed: int
    device: torch.device
    device_name: str | None
    """Device as given on the command line; None if not given."""
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
                if content["flights"].get(flyer.key, {}).keys() >= _SIGNS.keys():
                    continue  # flights of earlier versions lack metrics
                start = time.perf_counter()
                flight, policy = self._prepare(world, flyer), flyer.policy
                environment, planner = flight.environments[policy], flight.planners[policy]
                record = evaluate(environment, planner, self.missions, self.seed, keep_maps=0)
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
        overrides = [*world.overrides, *flyer.overrides]
        overrides += [f"compute.device={self.device_name}"] if self.device_name else []
        team = flyer.checkpoint if flyer.policy == LEARNED else None
        config = mission_config(BASE, overrides, team)
        policies = [flyer.policy]
        return comparison.prepare(config, self.device, policies, self.missions, self.seed, team)

    def _file(self, world: World) -> Path:
        return self.folder / "worlds" / f"{world.name}.json"

    def _read(self, world: World) -> dict[str, Any]:
        """Read the folder's flights of a world; raise ConfigError if their missions differ."""
        compute = load_config(BASE, world.overrides).compute
        by_triton = version_for(compute, self.device) is Version.TRITON
        head = {
            "suite": VERSION,
            "missions": self.missions,
            "world": json.loads(json.dumps(strict(world.definition(self.seed)))),
            # Missions also depend on the device type and the kernels.
            "device": self.device.type + (" by Triton" if by_triton else ""),
        }
        file = self._file(world)
        if not file.is_file():
            return {**head, "blocks": None, "flights": {}}
        try:
            content: dict[str, Any] = {"device": "cpu", **json.loads(file.read_text("utf-8"))}
            same = all(content[key] == head[key] for key in head) and "flights" in content
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            name = file.relative_to(self.folder)
            raise ConfigError(f"--out {self.folder}: {name} has other missions; use a new folder")
        return content


def finals(record: FlightRecord) -> dict[str, list[float]]:
    """Return the final value of each mission, by metric."""
    last = {name: record.metrics[name][:, -1].tolist() for name in _SIGNS}
    return {name: [round(value, _DIGITS) for value in values] for name, values in last.items()}


def results(suite: Suite, flown: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of `suite.json`, in plain types.

    `worlds.<name>` has the keys `definition`, `blocks` (block number of each mission),
    `finals.<policy>.<metric>` (training seeds × missions, after the last move) and
    `summary.<policy>.<metric>` (see `summary`).
    """
    policies: dict[str, list[Flyer]] = {}
    for flyer in suite.flyers:
        policies.setdefault(flyer.policy, []).append(flyer)
    worlds = {}
    for name, content in flown.items():
        flights = {
            policy: {m: [content["flights"][f.key][m] for f in group] for m in _SIGNS}
            for policy, group in policies.items()
        }
        blocks = content["blocks"]
        worlds[name] = {
            "definition": content["world"],
            "blocks": blocks,
            "summary": summary(flights, None if blocks is None else torch.tensor(blocks)),
            "finals": flights,
        }
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return {
        "schema": 1,
        "suite": suite.name,
        "version": VERSION,
        "missions": suite.missions,
        "standard_missions": MISSIONS,
        "seed": suite.seed,
        "standard_seed": SEED,
        "teams": _trainings(policies.get(LEARNED, ())),
        "predictors": _trainings(policies.get(SEARCH, ())),
        "left_out": left_out(suite.name, flown),
        "machine": describe_environment(suite.device) | {"command": command},
        "worlds": worlds,
    }


def _trainings(group: Sequence[Flyer]) -> list[dict[str, Any]]:
    checkpoints = [flyer.checkpoint for flyer in group if flyer.checkpoint is not None]
    return [
        {
            "checkpoint": checkpoint.name,
            "sha256": digest(checkpoint),
            "title": config.experiment.title,
            "seed": config.environment.seed,
            "training_step": checkpoint.payload.get("training_step"),
        }
        for checkpoint, config in ((each, each.config()) for each in checkpoints)
    ]


def summary(
    finals: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], blocks: Tensor | None
) -> dict[str, dict[str, Any]]:
    """Return the statistics of every policy and metric in a world.

    `finals`: values by policy and metric, training seeds × missions. `blocks`: see `statistics`.
    The keys are `mean`, `std` over missions (root mean square over seeds), `interval` (95 %, over
    seeds and missions), `seeds` (mean of each seed), and `difference` to the best classical planner
    in that metric. `METRICS` also have `worst_tenth`, with `mean`, `interval` and `difference` to
    the classical planner with the best worst tenth. Missing values are None.
    """
    result: dict[str, dict[str, Any]] = {policy: {} for policy in finals}
    for metric in next(iter(finals.values())):
        sign = _SIGNS[metric]
        values = {p: torch.tensor(f[metric], dtype=torch.float64) for p, f in finals.items()}
        best = _best_classical({p: sample.mean().item() for p, sample in values.items()}, sign)
        for policy, sample in values.items():
            change = None
            if best is not None and policy != best:
                change = difference(sample, values[best], best, sign, blocks)
            result[policy][metric] = {
                "mean": sample.mean().item(),
                "std": sample.var(1).mean().sqrt().item() if sample.shape[1] > 1 else None,
                "interval": interval(sample, blocks),
                "seeds": sample.mean(1).tolist(),
                "difference": change,
            }
        if metric in METRICS:
            for policy, row in _worst_tenths(values, sign, blocks).items():
                result[policy][metric]["worst_tenth"] = row
    return result


def _worst_tenths(
    values: Mapping[str, Tensor], sign: int, blocks: Tensor | None
) -> dict[str, dict[str, Any]]:
    """Return the worst tenth of each policy and its difference to the best classical planner's."""
    rows = {policy: worst_tenth(sample, sign, blocks) for policy, sample in values.items()}
    best = _best_classical({policy: row["mean"] for policy, row in rows.items()}, sign)
    for policy, row in rows.items():
        row["difference"] = None
        if best is not None and policy != best:
            row["difference"] = difference(values[policy], values[best], best, sign, blocks, True)
    return rows


def _best_classical(means: Mapping[str, float], sign: int) -> str | None:
    """Return the classical planner with the best mean; None if there is none."""
    flown = [policy for policy in report.CLASSICAL if policy in means]
    return max(flown, key=lambda policy: sign * means[policy], default=None)


def difference(
    ours: Tensor,
    theirs: Tensor,
    reference: str,
    sign: int,
    blocks: Tensor | None,
    worst: bool = False,
) -> dict[str, Any]:
    """Return the statistics of differences between two policies, paired by mission.

    `ours` and `theirs`: training seeds × missions, one row for a planner. `sign`: 1 if higher is
    better, −1 if lower is better. `worst`: compare `worst_tenth` instead of means. The keys are
    `reference`, `mean`, `interval` (95 %) and `verdict` (better, worse or undecided).
    """
    if worst:
        change = worst_tenth(ours, sign, blocks, theirs)
    else:
        paired = ours - theirs
        change = {"mean": paired.mean().item(), "interval": interval(paired, blocks)}
    ends, verdict = change["interval"], "undecided"
    if ends is not None and (ends[0] > 0 or ends[1] < 0):
        verdict = "better" if sign * ends[0] > 0 else "worse"
    return {"reference": reference, **change, "verdict": verdict}


def table(results: Mapping[str, Any]) -> str:
    """Return the tables of `results` as text, with one row per world and policy.

    The second table has the worst tenth of missions and the reliability of beliefs.
    """
    changes = ("− best classical [95 %]", "")
    columns = [header for label in LABELS.values() for header in (f"{label} [95 %]", *changes)]
    title = f"Suite {results['suite']} {results['version']}, {_describe_size(results)}"
    drawn = report.new_table(title, ("world", "policy"), columns)
    for name, world in results["worlds"].items():
        for number, (policy, row) in enumerate(world["summary"].items()):
            cells = [cell for metric in METRICS for cell in change_cells(row[metric])]
            drawn.add_row(*map(Text, ("" if number else name, policy, *cells)))
        drawn.add_section()
    text = report.as_text(drawn) + _ends_table(results["worlds"])
    lines = [text, *_count_verdicts(results["worlds"])]
    if results["left_out"]:
        lines.append(f"left out: {', '.join(results['left_out'])}")
    return "\n".join(lines) + "\n"


def _ends_table(worlds: Mapping[str, Any]) -> str:
    """Return the worst tenths and the reliability of each world and policy, with verdicts."""
    reliability = [metric for metric in _SIGNS if metric not in METRICS]
    labels = ["ROI entropy, worst tenth", "F1, worst tenth"]
    labels += [report.LABELS[metric] for metric in reliability]
    title = "Worst tenth of the missions, and reliability of the beliefs [95 %]"
    columns = [header for label in labels for header in (label, "")]
    drawn = report.new_table(title, ("world", "policy"), columns)
    for name, world in worlds.items():
        for number, (policy, row) in enumerate(world["summary"].items()):
            rows = [row[metric]["worst_tenth"] for metric in METRICS]
            rows += [row[metric] for metric in reliability]
            cells = [cell for each in rows for cell in change_cells(each)[::2]]
            drawn.add_row(*map(Text, ("" if number else name, policy, *cells)))
        drawn.add_section()
    return report.as_text(drawn)


def _describe_size(results: Mapping[str, Any]) -> str:
    missions, standard = results["missions"], results["standard_missions"]
    parts = [f"{missions} missions a world"]
    parts += [f"not the standard {standard}"] if missions != standard else []
    for key, noun in (("teams", "training seed"), ("predictors", "predictor")):
        number = len(results[key])
        parts += [f"{number} {noun}{'s' if number > 1 else ''}"] if number else []
    seed, standard = results["seed"], results["standard_seed"]
    parts += [f"seed {seed}, not the standard {standard}"] if seed != standard else []
    return ", ".join(parts)


def change_cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the mean, the difference to the reference and the verdict as text."""
    mean = report.with_interval(row["mean"], row["interval"], digits=3)
    change = row["difference"]
    if change is None:
        return mean, "–", ""
    difference_text = report.with_interval(change["mean"], change["interval"], "+", digits=3)
    return mean, difference_text, change["verdict"]


def _count_verdicts(worlds: Mapping[str, Any]) -> list[str]:
    lines = []
    names = [n for n in next(iter(worlds.values()))["summary"] if n not in report.CLASSICAL]
    for name, (metric, label) in product(names, LABELS.items()):
        rows = [world["summary"][name][metric]["difference"] for world in worlds.values()]
        if verdicts := [row["verdict"] for row in rows if row is not None]:
            lines.append(f"{name}, {label}: {counted(verdicts)}")
    return lines


def counted(verdicts: Sequence[str]) -> str:
    """Return the number of verdicts of each kind as text."""
    return ", ".join(f"{verdicts.count(v)} {v}" for v in ("better", "worse", "undecided"))
