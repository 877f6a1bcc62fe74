"""Check whether a training run can start: `python -m marl_framework.doctor --config FILE`."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from marl_framework.command_line import (
    BAD_INPUT,
    Parser,
    add_overrides,
    as_program,
    plain_warnings,
    warn,
)
from marl_framework.config.errors import ConfigError

_INSTALL = "run make venv, which installs the tested versions"
MINIMUM = {
    "torch": (2, 10),
    "kornia": (0, 8),
    "numpy": (1, 26),
    "pydantic": (2, 7),
    "pyyaml": (6,),
    "tensorboard": (2, 18),
}


@dataclass
class Check:
    """Result of one check: a finding in one line, and a remedy if the check failed."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def examine(config_name: str, overrides: Sequence[str] = ()) -> list[Check]:
    """Run all checks for a params file (see `load_config`); leave no files behind.

    Raises ConfigError if the params file or an override is invalid.
    """
    checks = [_guarded("versions", _versions, _INSTALL)]
    if not checks[0].ok:
        return checks
    from marl_framework.config.loading import load_config

    config = load_config(config_name, overrides)  # bad input is reported before PyTorch loads
    from marl_framework.device import resolve_device
    from marl_framework.training import readiness

    checks += [
        _guarded("CPU", readiness.cpu, ""),
        _guarded("GPUs", readiness.gpus, "reinstall NVIDIA's driver or PyTorch"),
    ]
    try:
        device = resolve_device(config.compute.device)
    except ConfigError as error:
        return [*checks, Check("configuration", False, str(error), "correct this key")]
    checks.append(Check("configuration", True, f"{config_name}, on {device}"))
    for name, check, fix in (
        ("window kernels", readiness.kernels, ""),
        ("networks", readiness.networks, "correct this part if it is a custom one"),
        ("mixed precision", readiness.mixed_precision, readiness.FLOAT32),
        ("memory", readiness.enough_memory, ""),
        ("disk", readiness.disk, "free space, or choose another logging.directory"),
        ("runs", readiness.runs_in_training, ""),
    ):
        checks.append(_guarded(name, partial(check, config, device), fix))
    return checks


def _guarded(name: str, check: Callable[[], tuple[str, str]], fix: str) -> Check:
    """Run a check, which returns finding and remedy; after an exception, `fix` is the remedy."""
    try:
        finding, remedy = check()
        return Check(name, not remedy, finding, remedy)
    except Exception as error:
        line = " ".join(str(error).split())[:300]
        return Check(name, False, f"{type(error).__name__}: {line}", fix)


def _versions() -> tuple[str, str]:
    versions = {"python": platform.python_version()}
    required = [] if sys.version_info >= (3, 11) else ["python 3.11"]
    for package, minimum in MINIMUM.items():
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
        numbers = [int(part) for part in versions[package].split(".")[:2] if part.isdigit()]
        if tuple(numbers) < minimum:
            required.append(f"{package} {'.'.join(map(str, minimum))}")
    text = ", ".join(f"{name} {number}" for name, number in versions.items())
    return text, f"requires at least {', '.join(required)}; {_INSTALL}" if required else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if a training run can start, 1 if not, 2 for bad input."""
    parser = Parser(prog="python -m marl_framework.doctor", description=__doc__)
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=os.environ.get("CONFIG_FILE_PATH") or "params.yaml",
        help="params file (default: $CONFIG_FILE_PATH or params.yaml)",
    )
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    try:
        with plain_warnings():
            checks = examine(options.config, options.overrides)
    except ConfigError as error:
        warn(f"error: {error}")
        return BAD_INPUT
    ready = all(check.ok for check in checks)
    if options.json:
        print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}, indent=2))
        return int(not ready)
    for check in checks:
        print(f"{'✓' if check.ok else '✗'} {check.name}: {check.found}")
        if not check.ok and check.fix:
            print(f"  fix: {check.fix}")
    print("a training run can start" if ready else "a training run cannot start yet")
    return int(not ready)


command = partial(as_program, main)
if __name__ == "__main__":
    sys.exit(command())
