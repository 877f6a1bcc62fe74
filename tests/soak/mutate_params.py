"""Does any params file crash a training? `python -m tests.soak.mutate_params --count 2000`.

Files are `params_test.yaml` with a few keys of another type, out of range, missing, extra, huge
or not a number. Each must either train a step, or end with exit code 2 and one line that names
a key: never with a traceback. What an accepted file asks for in sheer work is cut down before
the step, and what needs more than 1 GiB counts as too much for the machine.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from marl_framework import device
from marl_framework.command_line import Parser
from marl_framework.config.loading import config_to_dict, load_config
from marl_framework.config.messages import KEYS, SECTIONS
from marl_framework.config.yaml_text import format_yaml
from marl_framework.main import main as train
from marl_framework.training import memory
from marl_framework.training.trainer import Trainer

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 5, 7, 64, 100, 1000, 10**5, 10**9, 10**30, -1, -(10**12)),
    *(0.0, 0.5, 1.0, 1.5, 1e-9, 1e-3, 12.5, 1e6, 1e300, -0.5, math.nan, math.inf, -math.inf),
    *("", "auto", "cpu", "exponential", "corners", "raster", "soft", "a text", "1e-5", "p60"),
    *([], [0], ["mixed"], ["corner", "band"], ["random_field"], [0, math.inf], {}, {5: 0.1}),
    {"a": {"b": [1, 2]}},
)
MOST_MEMORY = 2**30
_MOST_WORK = {
    "environment.num_envs": 4,
    "experiment.constraints.budget": 4,
    "learning.training_steps": 1,
    "evaluation.missions": 2,
    "learning.data_passes": 1,
    "learning.batch_size": 32,
    "learning.batch_number": 2,
}


def mutate(tree: dict[str, Any], draw: random.Random) -> None:
    """Change one to three keys or sections of plain data, in place."""
    for _ in range(draw.randint(1, 3)):
        *parents, leaf = draw.choice([*KEYS, *KEYS, *sorted(SECTIONS - {""})]).split(".")
        node: Any = tree
        for name in parents:
            node = node.get(name) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            continue
        what = draw.random()
        if what < 0.4:
            node[leaf] = _near(node.get(leaf), draw)
        elif what < 0.75:
            node[leaf] = draw.choice(VALUES)
        elif what < 0.9:
            node.pop(leaf, None)
        else:
            node[f"{leaf}_"] = draw.choice(VALUES)


def _near(value: Any, draw: random.Random) -> Any:
    """Return another value of the same type, which may well be a good one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return type(value)(value * draw.choice((0, 0.5, 1.5, 2, 3, 10, 1000)))
    return draw.choice(VALUES)


def outcome(tree: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """Train a step with a configuration.

    Args:
        tree: plain data of a params file.
        folder: for the file and the run; empty.

    Returns:
        `trained`, `refused` or `failed`, and the line or what went wrong.
    """
    file = folder / "mutated.yaml"
    file.write_text(format_yaml(tree), encoding="utf-8")
    settings = [f"logging.directory={folder / 'runs'}"]
    code, text = _main("--check", "--config", str(file), *_sets(settings))
    if code == 0:
        config = config_to_dict(load_config(file, settings))
        for key, most in _MOST_WORK.items():
            value: Any = config
            for name in key.split("."):
                value = value[name]
            settings += [f"{key}={most}"] if value > most else []
        code, text = _main("--config", str(file), "--run-name", "t", *_sets(settings))
    if code == 0:
        trained = (folder / "runs" / "t" / "checkpoints" / "last.pt").exists()
        return ("trained" if trained else "failed"), text
    lines = [line for line in text.splitlines() if not line.startswith("warning: ")]
    names = {name.rpartition(".")[2] for name in (*KEYS, *SECTIONS) if name}
    clear = len(lines) == 1 and lines[0].startswith("error: ") and any(n in text for n in names)
    clean = not (folder / "runs").exists()
    return ("refused" if code == 2 and clear and clean else "failed"), f"exit code {code}: {text}"


def _sets(settings: Sequence[str]) -> list[str]:
    return [part for text in settings for part in ("--set", text)]


def _main(*arguments: str) -> tuple[int, str]:
    """Run main; return its exit code and what it wrote to standard error."""
    errors = io.StringIO()
    with (
        mock.patch.object(memory, "device_memory", return_value=(MOST_MEMORY, MOST_MEMORY)),
        mock.patch.object(device, "_automatic", return_value=torch.device("cpu")),
        mock.patch.object(Trainer, "_draw_mission"),  # takes ten times as long as a step
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
    ):
        warnings.simplefilter("error", RuntimeWarning)  # numpy's overflows and divisions by zero
        try:
            return train(list(arguments)), errors.getvalue()
        except SystemExit as end:
            return int(end.code or 0), errors.getvalue()
        except Exception:
            return -1, traceback.format_exc()
        finally:
            torch.use_deterministic_algorithms(False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 where every file trained or was refused."""
    parser = Parser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="files (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (default: 0)")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    counts = {"trained": 0, "refused": 0, "failed": 0}
    for number in range(options.count):
        tree = config_to_dict(load_config("params_test", ["compute.device=cpu"]))
        mutate(tree, draw)
        with tempfile.TemporaryDirectory() as folder:
            how, text = outcome(tree, Path(folder))
        counts[how] += 1
        if how == "failed":
            print(f"file {number}: {text}\n{format_yaml(tree)}", file=sys.stderr)
    print(", ".join(f"{number} {how}" for how, number in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
