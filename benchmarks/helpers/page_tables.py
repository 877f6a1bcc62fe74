"""Markdown tables for README and docs/, each from a benchmark's JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.helpers.text import markdown
from marl_framework.training.logging import METRICS

Json = Mapping[str, Any]

_AIMS = {"kernels": "150", "megabytes": "2.6", "training": "6,700"}  # targets for a GPU
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


def _whole(number: float | None) -> str:
    return "–" if number is None else f"{number:,.0f}"


def _megabytes(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


# Learning ---------------------------------------------------------------------------------


def published(team: Json, planners: Json) -> str:
    """Return results in the published simulator, compared with the published planner."""
    summaries = {BALANCED: team["policies"]["learned"]["summary"]}
    summaries |= {
        label: planners["policies"][name]["summary"] for name, label in _PUBLISHED.items()
    }
    return _published_table(summaries)


def published_mixed(results: Json) -> str:
    """Return results over all terrain kinds of the published simulator."""
    labels = {"learned": FINE_TUNED, "published_information_gain": "published information gain"}
    return _published_table(
        {label: results["policies"][name]["summary"] for name, label in labels.items()}
    )


def published_student(*results: Json) -> str:
    """Return results of the students in the published simulator, one file per world."""
    rows = {}
    for world in results:
        settings, policies = world["settings"], world["policies"]
        name = f"`{settings['terrain']}`, {settings['starts'].removesuffix('s')} starts"
        rows[f"{name}: `params_student.yaml`"] = policies["learned"]["summary"]
        gain = policies["published_information_gain"]
        rows[f"{name}: published information gain"] = gain["summary"]
    return _published_table(rows)


def _published_table(summaries: Mapping[str, Json]) -> str:
    def spread(row: Json) -> str:
        return f"{row['mean']:.3f} ± {row['std']:.3f}"

    def difference(row: Json) -> str:
        low, high = (f"{end:+.3f}" for end in row["interval"])
        return f"{row['difference']:+.3f} [{low}, {high}]".replace("-", "−") if low != high else ""

    return markdown(
        (
            "in the published simulator",
            "ROI entropy [bit]",
            "− published planner",
            "F1",
            "− published planner",
        ),
        (
            (label, *(show(row[m]) for m in ("roi_entropy", "f1") for show in (spread, difference)))
            for label, row in summaries.items()
        ),
    )


def metrics() -> str:
    """Return the metrics of a training and their meanings."""
    rows = ((f"`{tag}`", text.replace("|", "\\|")) for tag, text in METRICS.values())
    return markdown(("metric", "meaning"), rows)


def evaluated(*worlds: Json) -> str:
    """Return results of `evaluate` after the last move, and differences to the reference."""
    reference = worlds[0]["reference"]

    def terrain(results: Json) -> str:
        simulation = results["settings"]["configuration"]["sensor"]["simulation"]
        (kind,) = simulation["kinds"]
        return simulation["raster"]["path"] if kind == "raster" else kind

    def cells(results: Json, name: str, metric: str) -> list[str]:
        row = results["summary"][name][metric]
        if name == reference:
            return [f"{row['mean']:.3f} ± {row['std']:.3f}", ""]
        change = results["differences"][f"{name} - {reference}"][metric]
        low, high = (f"{end:+.3f}" for end in change["interval"])
        difference = f"{change['mean']:+.3f} [{low}, {high}]".replace("-", "−")
        return [f"{row['mean']:.3f} ± {row['std']:.3f}", difference]

    less = f"− `{reference}` [95 %]"
    return markdown(
        ("terrain", "policy", "ROI entropy [bit]", less, "F1", less),
        (
            (
                f"`{terrain(results)}`",
                f"`{name.rpartition('.')[2]}`",
                *cells(results, name, "roi_entropy"),
                *cells(results, name, "f1"),
            )
            for results in worlds
            for name in results["summary"]
        ),
    )


def whole_maps(*results: Json) -> str:
    """Return ROI entropy and F1 of each policy on measured maps, one map per result."""
    maps = (each["settings"]["configuration"]["sensor"]["simulation"]["raster"] for each in results)
    names = [Path(raster["path"]).stem for raster in maps]

    def row(policy: str) -> tuple[str, ...]:
        means = (each["summary"][policy] for each in results)
        return (
            f"`{policy}`",
            *(f"{one['roi_entropy']['mean']:.3f} / {one['f1']['mean']:.3f}" for one in means),
        )

    header = ("ROI entropy [bit] / F1", *(f"`{name}`" for name in names))
    return markdown(header, map(row, results[0]["summary"]))


# Speed ------------------------------------------------------------------------------------


def rollout(results: Json) -> str:
    """Return joint steps per second by number of missions at once, compiled and plain."""
    rows = results["rows"]
    speeds = {(row["num_envs"], row["compiled"]): row["joint_steps_per_s"] for row in rows}
    return markdown(
        ("missions at once", "joint steps/s", "plain PyTorch operators"),
        (
            (str(n), _whole(speeds[n, True]), _whole(speeds.get((n, False))))
            for n in dict.fromkeys(n for n, _ in speeds)
        ),
    )


def training(*results: Json) -> str:
    """Return the speed of trainings against convolutions, and shares of matrix products."""
    return markdown(
        (
            *("params file", "precision", "transitions/s", "with convolutions"),
            *("times as fast", "networks, share of that rate", "training step, share of that rate"),
        ),
        (
            (
                f"`{_params_file(each)}`",
                each["precision"],
                _whole(each["agent_transitions_per_s"]),
                _whole(each["against"]["agent_transitions_per_s"]),
                f"{each['against']['times_as_fast']:.2f}",
                f"{each['products']['share_of_networks']:.0%}",
                f"{each['products']['share_of_training']:.0%}",
            )
            for each in results
        ),
    )


def _params_file(results: Json) -> str:
    """Return the params file of a benchmark's command."""
    words = results["machine"]["command"].split()
    return words[words.index("--config") + 1] if "--config" in words else "params.yaml"


def scaling(results: Json) -> str:
    """Return the exponent with which the cost grows in each size."""
    rows = []
    for axis in results["axes"]:
        sizes = [row["size"] for row in axis["rows"]]
        label = axis["label"].removesuffix(" of a mission")
        rows.append((f"{label} ({min(sizes):,} to {max(sizes):,})", f"{axis['exponent']:.2f}"))
    return markdown(("cost of a joint step of all missions against", "exponent"), rows)


def wrappers(results: Json) -> str:
    """Return joint steps per second through each interface."""
    speeds = {
        (row["wrapper"], row["num_envs"]): row["joint_steps_per_second"] for row in results["rows"]
    }
    command = "`python -m benchmarks.speed.wrappers --config params.yaml`"
    return markdown(
        (
            f"{command}, two cores of an Intel Xeon",
            *("1 mission: joint steps/s", "64 missions: joint steps/s"),
        ),
        (
            (shown, *(_whole(speeds.get((name, missions))) for missions in (1, 64)))
            for name, shown in _WRAPPERS.items()
        ),
    )


# GPUs -------------------------------------------------------------------------------------

GPUS = {  # memory bandwidth [bytes/s], dense bfloat16 operations/s; from NVIDIA's data sheets
    "H200": (4.8e12, 989e12),
    "H100": (3.35e12, 989e12),
    "A100, 80 GB": (2.0e12, 312e12),
    "RTX 4090": (1.01e12, 165e12),
}
LAUNCH = 2e-6  # assumed time between two recorded kernels [s]


def _paths(results: Json, *names: str) -> list[Json]:
    by_name = {path["path"]: path for path in results["paths"]}
    return [by_name[name] for name in names]


def gpu_bounds(results: Json) -> str:
    """Return upper bounds for GPUs, if bytes, launches and operations take turns."""
    (ours,) = _paths(results, "kernels")
    config = results["settings"]["configuration"]
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


def transformations(results: Json) -> str:
    """Return the time of one observation [µs] by number of UAVs and backend, and speed-ups.

    The speed-ups are those of CUDA graphs if they were measured, else of `kornia cpu`.
    """
    measured = [row for row in results["rows"] if row["seconds_per_observation"]]
    rows = {(row["agents"], row["backend"]): row for row in measured}
    backends = list(dict.fromkeys(backend for _, backend in rows))
    ours = "kornia cuda graph" if "kornia cuda graph" in backends else "kornia cpu"

    def line(agents: int) -> tuple[str, ...]:
        spent = (1e6 * rows[agents, name]["seconds_per_observation"] for name in backends)
        faster = (rows[agents, ours][key] for key in ("speedup", "speedup_windowed"))
        cells = (f"{x:,.0f}" if x >= 10 else f"{x:#.2g}" for x in (*spent, *faster))
        return f"{agents:,}", *cells

    names = [name.replace("kornia cpu one", "on one") for name in backends]
    return markdown(
        ("UAVs at once", *names, "faster", "than windowed"),
        map(line, results["settings"]["agents"]),
    )


def gpu_training(*results: Json) -> str:
    """Return the speed of training steps; `results` are triples: eager, recorded on two GPUs."""

    def row(*measured: Json) -> tuple[str, ...]:
        newest = measured[-1]
        (batch,) = (f"{int(size):,}" for size in newest["settings"]["learning_batches"])
        spent = (f"{1e3 * each['seconds_per_training_step']:.3g}" for each in measured)
        speed, share = newest["agent_transitions_per_s"], newest["products"]["share_of_training"]
        return f"`{_params_file(newest)}`", batch, *spent, _whole(speed), f"{share:.0%}"

    return markdown(
        (
            *("params file", "transitions a batch", "without, H100 [ms]", "CUDA graphs, H100 [ms]"),
            *("CUDA graphs, H200 [ms]", "transitions/s, H200", "of the rate of products, H200"),
        ),
        map(row, results[::3], results[1::3], results[2::3]),
    )


def gpu_rollout(*results: Json) -> str:
    """Return joint steps per second on a GPU by number of missions, eager and recorded."""
    return markdown(
        ("missions at once", "without CUDA graphs", "with CUDA graphs"),
        (
            (f"{rows[0]['num_envs']:,}", *(_whole(row["joint_steps_per_s"]) for row in rows))
            for rows in zip(*(each["rows"] for each in results), strict=True)
        ),
    )


def gpu_planners(*results: Json) -> str:
    """Return the time to plan a move of a mission's team [ms] on a GPU, eager and recorded."""
    return markdown(
        ("planner", "missions at once", "without CUDA graphs [ms]", "with CUDA graphs [ms]"),
        (
            (
                *(f"`{rows[0]['planner']}`", f"{rows[0]['missions']}"),
                *(f"{1e3 * row['seconds_move']:.3g}" for row in rows),
            )
            for rows in zip(*(each["rows"] for each in results), strict=True)
        ),
    )


def gpu_memory(results: Json) -> str:
    """Return the number of missions that fit in a GPU's memory."""
    kernels, plain = (
        {int(size): number for size, number in path["most_missions"].items()}
        for path in _paths(results, "kernels", "plain")
    )
    return markdown(
        ("memory of the GPU", "missions at once", "with plain operators"),
        [(f"{size} GB", f"{kernels[size]:,}", f"{plain[size]:,}") for size in sorted(kernels)],
    )


def kernel_budget(results: Json) -> str:
    """Return kernels and bytes per joint step and per training step, Triton and plain."""
    paths = _paths(results, "kernels", "plain")

    def row(label: str, show: Callable[[Json], str], aim: str = "") -> tuple[str, ...]:
        return label, *map(show, paths), aim

    def stages(label: str, *names: str) -> tuple[str, ...]:
        return row(label, lambda path: _whole(_sum_stages(path, names, "kernels")))

    def gigabytes(*names: str) -> Callable[[Json], str]:
        return lambda path: (
            ", ".join(f"{path['peak_bytes'][name] / 1e9:.1f}" for name in names) + " GB"
        )

    return markdown(
        ("", "Triton kernels", "plain operators", "aim"),
        (
            row(_KERNELS, lambda path: _whole(path["joint_step"]["kernels"]), _AIMS["kernels"]),
            stages("… to draw and fuse", "draw", "fuse"),
            stages(_MAPS, "observe", "critic maps"),
            stages("… actions and their masks", "choose"),
            stages("… the policy, the move and its messages", "act", "move"),
            stages("… start of missions", "reset"),
            row(
                _BYTES, lambda path: _megabytes(path["joint_step"]["megabytes"]), _AIMS["megabytes"]
            ),
            row(
                "kernels of a training step",
                lambda path: _whole(path["training_step"]["kernels"]),
                _AIMS["training"],
            ),
            row("… of its updates", lambda path: _whole(path["update"]["kernels"])),
            row("most bytes of tensors at once: flying", gigabytes("rollout")),
            row("… learning, validating", gigabytes("update", "validation")),
            row(
                "the doctor's estimate", lambda path: f"{path['estimated_peak_bytes'] / 1e9:.1f} GB"
            ),
        ),
    )


_KERNELS = "kernels of a joint step, all missions at once"
_BYTES = "megabytes of a joint step, for one mission"
_MAPS = "… observations and critic maps"


def _sum_stages(path: Json, names: Sequence[str], unit: str) -> float:
    return sum(float(path["stages"][name][unit]) for name in names)


def prediction_budget(results: Json) -> str:
    """Return kernels and bytes per joint step with predictions."""
    paths = _paths(results, "predicted", "predicted_plain")
    maps = ("observe", "critic maps")
    return markdown(
        ("", "Triton kernels", "plain operators"),
        (
            (_KERNELS, *(_whole(path["joint_step"]["kernels"]) for path in paths)),
            (_MAPS, *(_whole(_sum_stages(path, maps, "kernels")) for path in paths)),
            (_BYTES, *(_megabytes(path["joint_step"]["megabytes"]) for path in paths)),
            (_MAPS, *(_megabytes(_sum_stages(path, maps, "megabytes")) for path in paths)),
        ),
    )
