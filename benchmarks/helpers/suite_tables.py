"""Markdown tables of the suites, from the JSON of their flights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.helpers.page_tables import BALANCED, FINE_TUNED, Json
from benchmarks.helpers.text import markdown
from marl_framework.evaluation.flight import COMPLETED
from marl_framework.evaluation.report import METRICS, with_interval
from marl_framework.evaluation.suite import SIGNS
from marl_framework.evaluation.suite_results import counted, difference
from marl_framework.evaluation.worlds import TEAM_SIZES, WORLDS

_COMPLETED = ("ROI entropy [bit]", "F1", "calibration error", "Brier score")
_BELIEF = {metric: SIGNS[metric] for metric in COMPLETED.values()}
_ENDS = ("ROI entropy", "worst tenth", "F1", "worst tenth")
_DAYS = ("world: ROI entropy [bit] / F1", "compared with", *_ENDS)
_STUDENT, _SEARCH = "`params_student.yaml`", "`search` on a predicted map"
_TASK, _WORLD_OF_TASK = "large_team", "split_8_uavs_radio_25"
"""A task of `benchmarks.learning.stages`, and the corresponding world of the suite."""
_LEARNERS = dict.fromkeys((BALANCED, FINE_TUNED, _STUDENT), "learned") | {_SEARCH: "search"}


def suite(balanced: Json, mixed: Json, student: Json, search: Json, *names: str) -> str:
    """Return ROI entropy and F1 of every policy in the named worlds; without names, in all."""
    return _suite_rows((balanced, mixed, student, search), names or tuple(balanced["worlds"]))


def suite_short(balanced: Json, mixed: Json, student: Json, search: Json, *names: str) -> str:
    """Return the table of `suite` without coverage and random flight."""
    return _suite_rows((balanced, mixed, student, search), names, ("coverage", "random"))


def _suite_rows(files: Sequence[Json], names: Sequence[str], left_out: Sequence[str] = ()) -> str:
    columns = ("world", "policy", "ROI entropy [bit]", "− best classical", "F1", "− best classical")
    rows = []
    for name in names:
        policies = _policies(files, name)
        shown = [policy for policy in policies if policy not in left_out]
        for number, policy in enumerate(shown):
            row = policies[policy]
            cells = [cell for metric in ("roi_entropy", "f1") for cell in _suite_cells(row[metric])]
            rows.append(("" if number else f"`{name}`", policy, *cells))
    return markdown(columns, rows)


def _policies(files: Sequence[Json], name: str) -> dict[str, Json]:
    """Return each policy's summary in a world, by label, trained policies first."""
    results = [file["worlds"].get(name, {"summary": {}})["summary"] for file in files]
    learned = {
        label: summary[policy]
        for (label, policy), summary in zip(_LEARNERS.items(), results, strict=True)
        if policy in summary
    }
    return learned | {p.replace("_", " "): row for p, row in results[0].items() if p != "learned"}


def rough(results: Json) -> str:
    """Return means, worst tenths and reliability of all beliefs, in all flown worlds."""
    columns = ("ROI entropy [bit]", *_ENDS[1:], "calibration error", "Brier")

    def cells(row: Json) -> list[str]:
        shown = [
            with_interval(each["mean"], each["interval"], digits=3)
            for metric in METRICS
            for each in (row[metric], row[metric]["worst_tenth"])
        ]
        return shown + [f"{row[metric]['mean']:.3f}" for metric in ("ece", "brier")]

    return _rough_rows(results, columns, cells)


def rough_completed(results: Json) -> str:
    """Return the metrics of all completed maps, in all flown worlds."""

    def cells(row: Json) -> list[str]:
        pairs = ((row[metric], row[completed]) for completed, metric in COMPLETED.items())
        return [f"{belief['mean']:.3f} → {done['mean']:.3f}" for belief, done in pairs]

    return _rough_rows(results, _COMPLETED, cells)


def _rough_rows(
    results: Json, columns: Sequence[str], cells: Callable[[Json], Sequence[str]]
) -> str:
    """Return a row with `cells` for each world and policy."""
    rows = []
    for name, world in results["worlds"].items():
        for number, (policy, row) in enumerate(world["summary"].items()):
            label = {"learned": "`pretrained:student`"}.get(policy, policy.replace("_", " "))
            rows.append(("" if number else f"`{name}`", label, *cells(row)))
    return markdown(("world", "policy", *columns), rows)


def completed(results: Json) -> str:
    """Return what completion changes for the learned teams in all flown worlds."""
    rows = []
    for name, world in results["worlds"].items():
        belief = world["finals"]["learned"]
        done = _of_completed(belief)
        changes = _differences(done, belief, world["blocks"], "belief", signs=_BELIEF)
        means = ([torch.tensor(each[m]).mean() for each in (belief, done)] for m in _BELIEF)
        cells = (
            f"{before:.3f} → {after:.3f} {change['verdict']}"
            for (before, after), change in zip(means, changes, strict=True)
        )
        rows.append((f"`{name}`", *cells))
    return markdown(("world", *_COMPLETED), rows)


def completed_planners(results: Json, for_map: Json) -> str:
    """Return F1 of completed maps by policy; `for_map` has the flights with `target` map."""
    rows = []
    for name, world in results["worlds"].items():
        policies = {"map": for_map["worlds"][name]["summary"]["search"], **world["summary"]}
        shown = ("map", "search", "learned", "information_gain", "coverage")
        values = [policies[policy]["completed_f1"]["mean"] for policy in shown]
        best = f"{max(values):.3f}"
        cells = (f"**{f1}**" if f1 == best else f1 for f1 in (f"{v:.3f}" for v in values))
        rows.append((f"`{name}`", *cells))
    columns = ("`search`, `target: map`", "`search`", _STUDENT, "information gain", "coverage")
    return markdown(("world", *columns), rows)


def completed_verdicts(results: Json, for_map: Json) -> str:
    """Return counts of worlds where completed maps beat those of planners."""
    wide, plain = "`search`, `target: map`", "`search`"
    rows = []
    for label, file, policy in (
        (wide, for_map, "search"),
        (plain, results, "search"),
        (_STUDENT, results, "learned"),
    ):
        summaries = [world["summary"][policy] for world in file["worlds"].values()]
        changes = [[row[done]["difference"] for done in COMPLETED] for row in summaries]
        rows.append((label, *_count_row("best classical", changes)))
    changes = [
        _differences(
            _of_completed(world["finals"]["search"]),
            _of_completed(results["worlds"][name]["finals"]["search"]),
            world["blocks"],
            plain,
            signs=_BELIEF,
        )
        for name, world in for_map["worlds"].items()
    ]
    rows.append((wide, *_count_row(plain, changes)))
    return markdown(("policy", "compared with", "worlds", *_COMPLETED), rows)


def completed_days(*results: Json) -> str:
    """Return the differences of the students' completed maps to other maps of the same missions."""
    rows = []
    for name, world, earlier in _days(results):
        before = earlier["finals"]["learned"]
        maps = {
            "belief of the earlier student": before,
            "its completed map": _of_completed(before),
            "that of information gain": _of_completed(world["finals"]["information_gain"]),
        }
        rows += _day_rows(name, world, _of_completed(world["finals"]["learned"]), maps)
    return markdown(_DAYS, rows)


def _of_completed(finals: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of completed maps under the names of beliefs' metrics."""
    return {metric: finals[done] for done, metric in COMPLETED.items()}


def rough_teams(*results: Json) -> str:
    """Return the differences of teams trained with disturbances to one without, and planners."""
    rows = []
    for name, world, earlier in _days(results):
        others = {"the earlier student": earlier["finals"]["learned"]}
        others |= {p.replace("_", " "): world["finals"][p] for p in ("search", "information_gain")}
        rows += _day_rows(name, world, world["finals"]["learned"], others)
    return markdown(_DAYS, rows)


def _day_rows(
    name: str, world: Json, ours: Mapping[str, Any], others: Mapping[str, Any]
) -> list[tuple[str, ...]]:
    """Return a row for each of `others`: the differences of means and of worst tenths to it."""
    rows, title = [], f"`{name}`: {_means_of(ours)}"
    for number, (label, theirs) in enumerate(others.items()):
        means, worst = (
            _differences(ours, theirs, world["blocks"], label, ends) for ends in (False, True)
        )
        cells = [_change(each) for pair in zip(means, worst, strict=True) for each in pair]
        rows.append(("" if number else title, label, *cells))
    return rows


def rough_search(*results: Json) -> str:
    """Return ROI entropy / F1 of `search`, by the training of its predictor."""
    rows = [
        (f"`{name}`", *(_means(world["summary"]["search"]) for world in worlds))
        for name, *worlds in _days(results)
    ]
    return markdown(("world", "`pretrained:rough_predictor`", "`pretrained:predictor`"), rows)


def _days(results: Sequence[Json]) -> list[tuple[str, Json, Json]]:
    """Return name, flights of ours and of the earlier student by world; `results` alternate."""
    pairs = zip(results[::2], results[1::2], strict=True)
    return [
        (n, w, earlier["worlds"][n]) for ours, earlier in pairs for n, w in ours["worlds"].items()
    ]


def suite_teams(balanced: Json, mixed: Json, student: Json, search: Json) -> str:
    """Return mean ROI entropy / F1 by team size and radio range."""
    names = {world.name for world in WORLDS}
    rows = []
    for uavs in (2, 4, 8):
        cells = [f"{uavs}_uavs_radio_{radio}" for radio in ("0", "25", "inf")]
        files = (balanced, mixed, student, search)
        worlds = [_policies(files, c if c in names else "split") for c in cells]
        for policy in max(worlds, key=len):
            means = [_means(world.get(policy)) for world in worlds]
            rows.append((f"{uavs} UAVs, {policy}", *means))
    return markdown(("", "no radio", "25 m", "unlimited"), rows)


def students(balanced: Json, mixed: Json, student: Json, search: Json, *names: str) -> str:
    """Return the differences between students and other trained policies, in the named worlds.

    Differences are paired by mission and training seed. Without names, the table counts the worlds
    in which the students are better, worse or undecided.
    """
    files = {BALANCED: balanced, FINE_TUNED: mixed, _SEARCH: search}
    changes = {
        (name, label): _changes(
            student["worlds"][name], file["worlds"][name]["finals"][_LEARNERS[label]], label
        )
        for name in names or student["worlds"]
        for label, file in files.items()
        if name in file["worlds"]
    }
    header = ("ROI entropy", "F1")
    if not names:
        by_label = ((b, [c for (_, label), c in changes.items() if label == b]) for b in files)
        return markdown(
            ("compared with", "worlds", *header), [_count_row(*row) for row in by_label]
        )
    firsts = {name: label for name, label in reversed(changes)}
    rows = [
        (f"`{name}`" if firsts[name] == label else "", label, *map(_change, results))
        for (name, label), results in changes.items()
    ]
    return markdown(("world", "compared with", *header), rows)


def _count_row(label: str, changes: Sequence[Sequence[Json]]) -> tuple[str, ...]:
    """Return a row with the number of worlds, and the counted verdicts by metric."""
    verdicts = ([change["verdict"] for change in group] for group in zip(*changes, strict=True))
    return label, str(len(changes)), *map(counted, verdicts)


def _changes(world: Json, theirs: Mapping[str, Any], label: str) -> list[Json]:
    """Return the differences between a world's learned team and another policy, by metric."""
    return _differences(world["finals"]["learned"], theirs, world["blocks"], label)


def _differences(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    blocks: Any,
    label: str,
    worst: bool = False,
    signs: Mapping[str, int] = METRICS,
) -> list[Json]:
    """Return the differences between two policies in a world, by metric; `worst`: worst tenths."""
    blocks = None if blocks is None else torch.tensor(blocks)
    return [
        difference(
            torch.tensor(ours[metric]), torch.tensor(theirs[metric]), label, sign, blocks, worst
        )
        for metric, sign in signs.items()
    ]


def teams(student: Json, search: Json, place: str) -> str:
    """Return ROI entropy / F1 by policy, team size and radio range, for one kind of terrain.

    `search` has the flights of `search`. Values are bold if a learned team is better than the best
    classical planner in both metrics, with intervals that exclude 0.
    """
    rows = []
    for radio, text in (("0", "no radio"), ("25", "25 m"), ("inf", "unlimited")):
        names = [f"{place}_{n}_uavs_radio_{radio}" for n in TEAM_SIZES]
        worlds = [
            student["worlds"][name]["summary"]
            | {"search": search["worlds"][name]["summary"]["search"]}
            for name in names
        ]
        for policy in ("learned", "search", "information_gain", "coverage"):
            cells = (_means_or_better(world[policy], policy) for world in worlds)
            rows.append((f"{text}, {policy.replace('_', ' ')}", *cells))
    return markdown(("", *(f"{uavs} UAVs" for uavs in TEAM_SIZES)), rows)


def team_counts(results: Json) -> str:
    """Return the number of worlds in which a learned team beats each classical planner."""
    rows = []
    for policy in ("information_gain", "coverage"):
        changes = [_changes(w, w["finals"][policy], policy) for w in results["worlds"].values()]
        rows.append(_count_row(policy.replace("_", " "), changes))
    return markdown(("compared with", "worlds", "ROI entropy", "F1"), rows)


def workers(student: Json, search: Json, stages: Json, *files: Json) -> str:
    """Return the differences between students and workers, and between workers and `search`.

    Args:
        student: flights of students in all worlds.
        search: flights of `search` in all worlds.
        stages: results of the benchmark `stages`, which also trained a worker for a suite world.
        files: flights of workers in the suite, one file per world.
    """
    flown = [
        (name, world["finals"]["learned"])
        for file in files
        for name, world in file["worlds"].items()
    ]
    trained = [r for r in stages["runs"] if (r["variant"], r["task"]) == ("worker", _TASK)]
    finals = {metric: [run["finals"][metric] for run in trained] for metric in METRICS}
    rows = []
    for name, theirs in (*flown, (_WORLD_OF_TASK, finals)):
        world = student["worlds"][name]
        planned = search["worlds"][name]["finals"]["search"]
        to_search, _ = _differences(theirs, planned, world["blocks"], "search")
        rows.append(
            (
                f"`{name}`",
                _means_of(theirs),
                _means(world["summary"]["learned"]),
                *map(_change, _changes(world, theirs, "worker")),
                _change(to_search),
            )
        )
    header = ("− worker, ROI entropy", "− worker, F1", "worker − `search`, ROI entropy")
    return markdown(("world", "worker", "student", *header), rows)


def fresh(results: Json) -> str:
    """Return how many worlds the student and `search` win against the best classical planner."""
    rows = []
    for label, policy in ((_STUDENT, "learned"), ("`search`", "search")):
        summaries = [world["summary"][policy] for world in results["worlds"].values()]
        changes = [[each[metric]["difference"] for metric in METRICS] for each in summaries]
        rows.append(_count_row(label, changes))
    return markdown(("policy", "worlds", "ROI entropy", "F1"), rows)


def earlier_student(student: Json, earlier: Json) -> str:
    """Return the differences of the student to the earlier one, in all worlds."""
    rows = []
    for name, world in student["worlds"].items():
        other = earlier["worlds"][name]
        means = _means(world["summary"]["learned"]), _means(other["summary"]["learned"])
        changes = _changes(world, other["finals"]["learned"], "")
        rows.append((f"`{name}`", *means, *map(_change, changes)))
    header = ("− earlier, ROI entropy", "− earlier, F1")
    return markdown(("world", "student", "earlier student", *header), rows)


def _means_or_better(row: Json, policy: str) -> str:
    """Return the means, in bold if a learned team is better in both metrics."""
    differences = [row[metric]["difference"] or {} for metric in ("roi_entropy", "f1")]
    better = all(each.get("verdict") == "better" for each in differences)
    return f"**{_means(row)}**" if better and policy == "learned" else _means(row)


def _means(row: Json | None) -> str:
    return "–" if row is None else f"{row['roi_entropy']['mean']:.3f} / {row['f1']['mean']:.3f}"


def _means_of(finals: Mapping[str, Any]) -> str:
    """Return the means over training seeds and missions."""
    means = {metric: {"mean": torch.tensor(finals[metric]).mean().item()} for metric in METRICS}
    return _means(means)


def _suite_cells(row: Json) -> tuple[str, str]:
    """Return a mean with its interval, and the difference to the reference."""
    mean = with_interval(row["mean"], row["interval"], digits=3)
    return mean, "–" if row["difference"] is None else _change(row["difference"])


def _change(results: Json) -> str:
    """Return a difference with its interval, in bold unless the verdict is undecided."""
    shown = with_interval(results["mean"], results["interval"], "+", 3).replace("-", "−")
    return shown if results["verdict"] == "undecided" else f"**{shown}** {results['verdict']}"
