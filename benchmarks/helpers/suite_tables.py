"""Tables of the standard suite and that of teams in Markdown, from the JSON of their flights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from benchmarks.helpers.page_tables import BALANCED, FINE_TUNED, Found, markdown
from marl_framework.evaluation.report import with_interval
from marl_framework.evaluation.suite_statistics import METRICS, counted, difference
from marl_framework.evaluation.worlds import TEAM_SIZES, WORLDS

_STUDENT, _SEARCH = "`params_student.yaml`", "`search` on a predicted map"
_TASK, _WORLD_OF_TASK = "large_team", "split_8_uavs_radio_25"
"""A task of `benchmarks.learning.stages`, and the world of the suite that it is."""
_LEARNERS = dict.fromkeys((BALANCED, FINE_TUNED, _STUDENT), "learned") | {_SEARCH: "search"}


def suite(balanced: Found, mixed: Found, student: Found, search: Found, *names: str) -> str:
    """Return ROI entropy and F1 of every policy in the named worlds, or in all."""
    return _suite_rows((balanced, mixed, student, search), names or tuple(balanced["worlds"]))


def suite_short(balanced: Found, mixed: Found, student: Found, search: Found, *names: str) -> str:
    """Return what `suite` does without coverage and random flight."""
    return _suite_rows((balanced, mixed, student, search), names, ("coverage", "random"))


def _suite_rows(files: Sequence[Found], names: Sequence[str], left_out: Sequence[str] = ()) -> str:
    columns = ("world", "policy", "ROI entropy [bit]", "− best classical", "F1", "− best classical")
    rows = []
    for name in names:
        policies = _policies(files, name)
        shown = [policy for policy in policies if policy not in left_out]
        for number, policy in enumerate(shown):
            of = policies[policy]
            cells = [cell for metric in ("roi_entropy", "f1") for cell in _suite_cells(of[metric])]
            rows.append(("" if number else f"`{name}`", policy, *cells))
    return markdown(columns, rows)


def _policies(files: Sequence[Found], name: str) -> dict[str, Found]:
    """Return the summary of each policy in a world, by its label; those that learn come first."""
    found = [file["worlds"].get(name, {"summary": {}})["summary"] for file in files]
    learned = {
        label: summary[policy]
        for (label, policy), summary in zip(_LEARNERS.items(), found, strict=True)
        if policy in summary
    }
    return learned | {p.replace("_", " "): row for p, row in found[0].items() if p != "learned"}


def suite_teams(balanced: Found, mixed: Found, student: Found, search: Found) -> str:
    """Return the grid of team sizes and radio ranges, ROI entropy / F1, means."""
    names = {world.name for world in WORLDS}
    rows = []
    for uavs in (2, 4, 8):
        cells = [f"{uavs}_uavs_radio_{radio}" for radio in ("0", "25", "inf")]
        files = (balanced, mixed, student, search)
        worlds = [_policies(files, c if c in names else "split") for c in cells]
        for policy in max(worlds, key=len):
            flown = [_means(world.get(policy)) for world in worlds]
            rows.append((f"{uavs} UAVs, {policy}", *flown))
    return markdown(("", "no radio", "25 m", "unlimited"), rows)


def students(balanced: Found, mixed: Found, student: Found, search: Found, *names: str) -> str:
    """Return how the students differ from all others that learn, in the named worlds.

    Mission by mission; students are paired with the teams or predictors of their training seeds.
    Without names: in how many worlds they are better, worse and undecided.
    """
    files = {BALANCED: balanced, FINE_TUNED: mixed, _SEARCH: search}
    worlds = {name: _beside(student, files, name) for name in names or student["worlds"]}
    header = ("ROI entropy", "F1")
    if names:
        rows = [
            ("" if number else f"`{name}`", label, *(_change(each) for each in found))
            for name, others in worlds.items()
            for number, (label, found) in enumerate(others.items())
        ]
        return markdown(("world", "beside", *header), rows)
    rows = []
    for label in files:
        found = [others[label] for others in worlds.values() if label in others]
        verdicts = ([each["verdict"] for each in of] for of in zip(*found, strict=True))
        rows.append((label, str(len(found)), *map(counted, verdicts)))
    return markdown(("beside", "worlds", *header), rows)


def _beside(student: Found, files: Mapping[str, Found], name: str) -> dict[str, list[Found]]:
    """Return the students' differences to those that flew in a world too, by metric."""
    world = student["worlds"][name]
    flown = {
        label: file["worlds"][name]["finals"][_LEARNERS[label]]
        for label, file in files.items()
        if name in file["worlds"]
    }
    return {label: _changes(world, theirs, label) for label, theirs in flown.items()}


def _changes(world: Found, theirs: Mapping[str, Any], label: str) -> list[Found]:
    """Return the differences of a world's learned team to others there, by metric."""
    return _differences(world["finals"]["learned"], theirs, world["blocks"], label)


def _differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], blocks: Any, label: str
) -> list[Found]:
    """Return the differences of what two policies flew in a world, by metric."""
    ground = None if blocks is None else torch.tensor(blocks)
    return [
        difference(torch.tensor(ours[metric]) - torch.tensor(theirs[metric]), label, sign, ground)
        for metric, sign in METRICS.items()
    ]


def teams(found: Found, place: str) -> str:
    """Return ROI entropy / F1 of every policy with all team sizes and radios in a place.

    Bold where a learned team is better than the best classical planner in both, with intervals
    that exclude 0.
    """
    rows = []
    for radio, text in (("0", "no radio"), ("25", "25 m"), ("inf", "unlimited")):
        worlds = [
            found["worlds"][f"{place}_{uavs}_uavs_radio_{radio}"]["summary"] for uavs in TEAM_SIZES
        ]
        for policy in worlds[0]:
            cells = (_means_or_better(world[policy], policy) for world in worlds)
            rows.append((f"{text}, {policy.replace('_', ' ')}", *cells))
    return markdown(("", *(f"{uavs} UAVs" for uavs in TEAM_SIZES)), rows)


def team_counts(found: Found) -> str:
    """Return in how many worlds a learned team is better than each classical planner."""
    rows = []
    for policy in ("information_gain", "coverage"):
        changes = [_changes(w, w["finals"][policy], policy) for w in found["worlds"].values()]
        verdicts = ([each["verdict"] for each in of] for of in zip(*changes, strict=True))
        rows.append((policy.replace("_", " "), str(len(changes)), *map(counted, verdicts)))
    return markdown(("beside", "worlds", "ROI entropy", "F1"), rows)


def near_search(found: Found) -> str:
    """Return in how many worlds a learned team leaves how much more entropy than `search`."""
    more = [
        world["summary"]["learned"]["roi_entropy"]["mean"]
        - world["summary"]["search"]["roi_entropy"]["mean"]
        for world in found["worlds"].values()
    ]
    bounds = (-math.inf, 0.0, 0.02, math.inf)
    counts = [sum(low < each <= high for each in more) for low, high in pairwise(bounds)]
    return markdown(
        ("worlds", "less than `search`", "up to 0.02 bit more", "more than that"),
        [(str(len(more)), *map(str, counts))],
    )


def workers(student: Found, stages: Found, *files: Found) -> str:
    """Return how the students differ from workers, and these from `search`.

    Args:
        student: of the suite with all teams, `search` too.
        stages: of the benchmark of that name; a worker of it is made for a world of the suite.
        files: of the suite, each flown by workers in the one world that they are made for.
    """
    flown = [
        (name, world["finals"]["learned"])
        for file in files
        for name, world in file["worlds"].items()
    ]
    made = [r for r in stages["runs"] if (r["variant"], r["task"]) == ("worker", _TASK)]
    finals = {metric: [run["finals"][metric] for run in made] for metric in METRICS}
    rows = []
    for name, theirs in (*flown, (_WORLD_OF_TASK, finals)):
        world = student["worlds"][name]
        searched = world["finals"]["search"]
        beside, _ = _differences(theirs, searched, world["blocks"], "search")
        rows.append(
            (
                f"`{name}`",
                _means_of(theirs),
                _means(world["summary"]["learned"]),
                *map(_change, _changes(world, theirs, "worker")),
                _change(beside),
            )
        )
    header = ("− worker, ROI entropy", "− worker, F1", "worker − `search`, ROI entropy")
    return markdown(("world", "worker", "student", *header), rows)


def fresh(standard: Found, teams: Found) -> str:
    """Return in how many worlds of each suite a learner beats the best classical planner there."""
    rows = []
    for name, found in (("standard", standard), ("teams", teams)):
        summaries = [world["summary"] for world in found["worlds"].values()]
        for policy in (each for each in ("learned", "search") if each in summaries[0]):
            verdicts = (
                [each[policy][metric]["difference"]["verdict"] for each in summaries]
                for metric in METRICS
            )
            rows.append((f"`{name}`", policy, str(len(summaries)), *map(counted, verdicts)))
    return markdown(("suite", "policy", "worlds", "ROI entropy", "F1"), rows)


def _means_or_better(row: Found, policy: str) -> str:
    """Return the means, in bold where a learned team is better in both."""
    differences = [row[metric]["difference"] or {} for metric in ("roi_entropy", "f1")]
    better = all(each.get("verdict") == "better" for each in differences)
    return f"**{_means(row)}**" if better and policy == "learned" else _means(row)


def _means(row: Found | None) -> str:
    return "–" if row is None else f"{row['roi_entropy']['mean']:.3f} / {row['f1']['mean']:.3f}"


def _means_of(finals: Mapping[str, Any]) -> str:
    """Return the same of what each training seed flew."""
    means = {metric: {"mean": torch.tensor(finals[metric]).mean().item()} for metric in METRICS}
    return _means(means)


def _suite_cells(row: Found) -> tuple[str, str]:
    """Return a mean with its interval, and the difference."""
    mean = with_interval(row["mean"], row["interval"], digits=3)
    return mean, "–" if row["difference"] is None else _change(row["difference"])


def _change(found: Found) -> str:
    """Return a difference with its interval, in bold where it is decided."""
    shown = with_interval(found["mean"], found["interval"], "+", 3).replace("-", "−")
    return shown if found["verdict"] == "undecided" else f"**{shown}** {found['verdict']}"
