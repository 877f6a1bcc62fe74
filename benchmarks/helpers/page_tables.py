"""Tables of README and docs/ in Markdown, each from a benchmark's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from marl_framework.evaluation.suite_statistics import METRICS, counted, difference
from marl_framework.evaluation.worlds import TEAM_SIZES, WORLDS

Found = Mapping[str, Any]

_AIMS = {"kernels": "150", "megabytes": "2.6", "training": "6,700"}  # of a GPU's kernels
_WRAPPERS = {
    "core": "core, by hand",
    "torchrl": "TorchRL",
    "benchmarl": "BenchMARL",
    "gymnasium": "Gymnasium",
    "pettingzoo": "PettingZoo",
}


_BALANCED, _MIXED = "`params_balanced.yaml`", "… fine-tuned on `mixed`"
_STUDENT, _SEARCH = "`params_student.yaml`", "`search` on a predicted map"
_LEARNERS = dict.fromkeys((_BALANCED, _MIXED, _STUDENT), "learned") | {_SEARCH: "search"}
_PUBLISHED = {
    "published_information_gain": "published information gain",
    "published_information_gain+probability": "… a positive reading has the probability "
    "noise + p · (1 − 2 · noise) instead of p",
    "published_information_gain+probability+shared": "… and it counts what earlier UAVs in radio "
    "range are about to see",
    "published_random": "published random flight",
    "information_gain": "our information gain",
}


def fenced(text: str) -> str:
    """Return the text that a benchmark prints as a block."""
    return f"```\n{text.strip(chr(10))}\n```"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines).replace("|  |", "| |")


def _whole(number: float | None) -> str:
    return "–" if number is None else f"{number:,.0f}"


def published(team: Found, planners: Found) -> str:
    """Return what flew in the published simulator, and how it differs from its planner."""
    summaries = {_BALANCED: team["policies"]["learned"]["summary"]}
    summaries |= {
        label: planners["policies"][name]["summary"] for name, label in _PUBLISHED.items()
    }
    return _in_published_simulator(summaries)


def published_mixed(found: Found) -> str:
    """Return what flew over all kinds of terrain of the published simulator."""
    labels = {"learned": _MIXED, "published_information_gain": "published information gain"}
    return _in_published_simulator(
        {label: found["policies"][name]["summary"] for name, label in labels.items()}
    )


def _in_published_simulator(summaries: Mapping[str, Found]) -> str:
    def spread(of: Found) -> str:
        return f"{of['mean']:.3f} ± {of['std']:.3f}"

    def difference(of: Found) -> str:
        low, high = (f"{end:+.3f}" for end in of["interval"])
        return f"{of['difference']:+.3f} [{low}, {high}]".replace("-", "−") if low != high else ""

    return markdown(
        ("in the published simulator", "ROI entropy [bit]", "− published", "F1", "− published"),
        (
            (label, *(show(of[m]) for m in ("roi_entropy", "f1") for show in (spread, difference)))
            for label, of in summaries.items()
        ),
    )


def rollout(found: Found) -> str:
    """Return joint steps a second by missions at once, compiled and plain."""
    speeds = {(row["num_envs"], row["compiled"]): row["joint_steps_per_s"] for row in found["rows"]}
    return markdown(
        ("missions at once", "joint steps/s", "plain PyTorch operators"),
        (
            (str(n), _whole(speeds[n, True]), _whole(speeds.get((n, False))))
            for n in dict.fromkeys(n for n, _ in speeds)
        ),
    )


def training(*found: Found) -> str:
    """Return the speed of trainings by precision."""
    return markdown(
        ("precision", "transitions/s", "the networks alone", "share of the networks' limit"),
        (
            (
                each["precision"],
                _whole(each["agent_transitions_per_s"]),
                _whole(each["networks"]["agent_transitions_per_s"]),
                f"{each['share_of_network_limit']:.0%}",
            )
            for each in found
        ),
    )


def scaling(found: Found) -> str:
    """Return the exponent of each axis."""
    rows = []
    for axis in found["axes"]:
        sizes = [row["size"] for row in axis["rows"]]
        label = axis["label"].removesuffix(" of a mission")
        rows.append((f"{label} ({min(sizes):,} to {max(sizes):,})", f"{axis['exponent']:.2f}"))
    return markdown(("cost of a joint step of all missions against", "exponent"), rows)


def wrappers(found: Found) -> str:
    """Return joint steps a second through each interface."""
    speeds = {(row["wrapper"], row["num_envs"]): row for row in found["rows"]}

    def speed(name: str, missions: int) -> str:
        row = speeds.get((name, missions))
        return _whole(None if row is None else row["joint_steps_per_second"])

    return markdown(
        (
            "`python -m benchmarks.speed.wrappers --config params.yaml`, two cores of an AMD EPYC",
            "1 mission: joint steps/s",
            "64 missions: joint steps/s",
        ),
        ((shown, speed(name, 1), speed(name, 64)) for name, shown in _WRAPPERS.items()),
    )


GPUS = {  # bytes/s of memory; operations/s in bfloat16 without sparsity, by NVIDIA's data sheets
    "H200": (4.8e12, 989e12),
    "A100, 80 GB": (2.0e12, 312e12),
    "RTX 4090": (1.01e12, 165e12),
}
LAUNCH = 2e-6  # seconds between two recorded kernels, a guess


def gpu_bounds(found: Found) -> str:
    """Return what GPUs could reach at most: bytes, launches and operations one after the other."""
    (ours,) = (path for path in found["paths"] if path["path"] == "kernels")
    config = found["settings"]["configuration"]
    missions = config["environment"]["num_envs"]
    uavs = config["experiment"]["missions"]["n_agents"]
    learned = config["learning"]["batch_size"] * config["learning"]["batch_number"]
    step, transition = ours["joint_step"], ours["transition"]

    def row(name: str, bandwidth: float, speed: float) -> tuple[str, ...]:
        flying = missions * (
            1e6 * step["megabytes"] / bandwidth + uavs * transition["flops_acting"] / speed
        )
        flying += LAUNCH * step["kernels"]
        learning = learned * transition["flops_learning"] / speed
        learning += LAUNCH * ours["update"]["kernels"]
        most = missions / flying, learned / (learned / missions / uavs * flying + learning)
        return name, *(_whole(float(f"{number:.2g}")) for number in most)

    return markdown(
        ("", "joint steps/s", "transitions/s in training"),
        [row(name, *limits) for name, limits in GPUS.items()],
    )


def gpu_memory(found: Found) -> str:
    """Return the missions that GPUs have memory for."""
    paths = {path["path"]: path["most_missions"] for path in found["paths"]}
    kernels, plain = ({int(k): v for k, v in paths[p].items()} for p in ("kernels", "plain"))
    return markdown(
        ("memory of the GPU", "missions at once", "with plain operators"),
        [(f"{size} GB", f"{kernels[size]:,}", f"{plain[size]:,}") for size in sorted(kernels)],
    )


def kernel_budget(found: Found) -> str:
    """Return kernels and bytes of a joint step and of a training step, Triton and plain."""
    paths = {path["path"]: path for path in found["paths"]}
    ours, plain = paths["kernels"], paths["plain"]

    def stages(path: Found, *names: str) -> str:
        return _whole(sum(path["stages"][name]["kernels"] for name in names))

    def both(label: str, *names: str) -> tuple[str, ...]:
        return label, stages(ours, *names), stages(plain, *names), ""

    def gigabytes(path: Found, *names: str) -> str:
        return ", ".join(f"{path['peak_bytes'][name] / 1e9:.1f}" for name in names) + " GB"

    return markdown(
        ("", "Triton kernels", "plain operators", "aim"),
        (
            (
                "kernels of a joint step, all missions at once",
                *(_whole(path["joint_step"]["kernels"]) for path in (ours, plain)),
                _AIMS["kernels"],
            ),
            both("… to draw and fuse", "draw", "fuse"),
            both("… observations and critic maps", "observe", "critic maps"),
            both("… actions and their masks", "choose"),
            both("… the policy, the move and its messages", "act", "move"),
            both("… start of missions", "reset"),
            (
                "megabytes of a joint step, for one mission",
                *(_megabytes(path["joint_step"]["megabytes"]) for path in (ours, plain)),
                _AIMS["megabytes"],
            ),
            (
                "kernels of a training step",
                *(_whole(path["training_step"]["kernels"]) for path in (ours, plain)),
                _AIMS["training"],
            ),
            (
                "… of its updates",
                *(_whole(path["update"]["kernels"]) for path in (ours, plain)),
                "",
            ),
            (
                "most bytes of tensors at once: flying",
                *(gigabytes(path, "rollout") for path in (ours, plain)),
                "",
            ),
            (
                "… learning, validating",
                *(gigabytes(path, "update", "validation") for path in (ours, plain)),
                "",
            ),
            (
                "the doctor's estimate",
                *(f"{path['estimated_peak_bytes'] / 1e9:.1f} GB" for path in (ours, plain)),
                "",
            ),
        ),
    )


def prediction_budget(found: Found) -> str:
    """Return kernels and bytes of joint steps in which networks see predictions."""
    by_name = {path["path"]: path for path in found["paths"]}
    paths = [by_name[name] for name in ("predicted", "predicted_plain")]

    def seeing(path: Found, unit: str) -> float:
        stages = ("observe", "critic maps")
        return sum(float(path["stages"][name][unit]) for name in stages)

    return markdown(
        ("", "Triton kernels", "plain operators"),
        (
            (
                "kernels of a joint step, all missions at once",
                *(_whole(path["joint_step"]["kernels"]) for path in paths),
            ),
            ("… observations and critic maps", *(_whole(seeing(p, "kernels")) for p in paths)),
            (
                "megabytes of a joint step, for one mission",
                *(_megabytes(path["joint_step"]["megabytes"]) for path in paths),
            ),
            (
                "… observations and critic maps",
                *(_megabytes(seeing(p, "megabytes")) for p in paths),
            ),
        ),
    )


def _megabytes(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


# The standard suite -----------------------------------------------------------------------


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
    files = {_BALANCED: balanced, _MIXED: mixed, _SEARCH: search}
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
    ours, blocks = world["finals"]["learned"], world["blocks"]
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


def workers(student: Found, *files: Found) -> str:
    """Return how the students differ from workers, each file's made for the one world in it."""
    rows = []
    for file in files:
        ((name, world),) = file["worlds"].items()
        ours = student["worlds"][name]
        changes = _changes(ours, world["finals"]["learned"], "worker")
        means = (_means(each["summary"]["learned"]) for each in (world, ours))
        rows.append((f"`{name}`", *means, *map(_change, changes)))
    return markdown(("world", "worker", "student", "− worker, ROI entropy", "− worker, F1"), rows)


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


def _suite_cells(row: Found) -> tuple[str, str]:
    """Return a mean with its interval, and the difference."""
    mean = f"{row['mean']:.3f}{_interval(row['interval'], '')}"
    return mean, "–" if row["difference"] is None else _change(row["difference"])


def _change(found: Found) -> str:
    """Return a difference with its interval, in bold where it is decided."""
    shown = _signed(found["mean"]) + _interval(found["interval"], "+")
    return shown if found["verdict"] == "undecided" else f"**{shown}** {found['verdict']}"


def _interval(ends: Sequence[float] | None, sign: str) -> str:
    if ends is None:
        return ""
    low, high = (_signed(end) if sign else f"{end:.3f}" for end in ends)
    return f" [{low}, {high}]"


def _signed(number: float) -> str:
    return f"{number:+.3f}".replace("-", "−")
