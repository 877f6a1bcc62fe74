"""Tables of README and docs/ in Markdown, each from a benchmark's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]

_AIMS = {"kernels": "150", "megabytes": "2.6", "training": "6,700"}  # of a GPU's kernels
_WRAPPERS = {
    "core": "core, by hand",
    "torchrl": "TorchRL",
    "benchmarl": "BenchMARL",
    "gymnasium": "Gymnasium",
    "pettingzoo": "PettingZoo",
}


BALANCED, FINE_TUNED = "`params_balanced.yaml`", "… fine-tuned on `mixed`"
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
    summaries = {BALANCED: team["policies"]["learned"]["summary"]}
    summaries |= {
        label: planners["policies"][name]["summary"] for name, label in _PUBLISHED.items()
    }
    return _in_published_simulator(summaries)


def published_mixed(found: Found) -> str:
    """Return what flew over all kinds of terrain of the published simulator."""
    labels = {"learned": FINE_TUNED, "published_information_gain": "published information gain"}
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
