"""Submit trainings to a Slurm cluster with submitit; requires the extra `slurm`."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marl_framework.config.errors import ConfigError


class TrainingJob:
    """A training as a submitit job; a requeued job resumes, because the command has `--resume`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Run the command; raise RuntimeError if the training fails."""
        self._process = subprocess.Popen(self._command)
        while self._process.poll() is None:  # poll: `checkpoint` may wait for the same process
            time.sleep(0.2)
        if self._process.returncode:
            raise RuntimeError(f"exit code {self._process.returncode}: {' '.join(self._command)}")

    def checkpoint(self) -> Any:
        """End the training after the current step; return the job that continues the training.

        submitit calls this method before a time limit and on pre-emption.
        """
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
            self._process.wait()
        return DelayedSubmission(TrainingJob(self._command))


def read_options(text: str) -> dict[str, str | int]:
    """Parse the value of `--slurm`, such as partition=gpu,time=60.

    Raises ConfigError if the text is not a list of NAME=VALUE, or submitit is not installed.
    """
    if find_spec("submitit") is None:
        raise ConfigError(
            "--launcher slurm: submitit is not installed; run pip install 'marl_framework[slurm]'"
        )
    options: dict[str, str | int] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise ConfigError(
                f"--slurm {part}: invalid; give NAME=VALUE, such as partition=gpu,time=60"
            )
        value = value.strip()
        options[name.strip()] = int(value) if value.isdecimal() else value
    return options


def submit(
    commands: Mapping[str, Sequence[str]],
    folder: Path,
    options: Mapping[str, str | int],
    cluster: str = "slurm",
) -> dict[str, Any]:
    """Submit each command as a job; return the submitit jobs by run name.

    `commands` has the words of each command, with `--resume`, by run name. submitit's files are in
    `folder`. `options` are those of sbatch by submitit's names, `time` in minutes. `cluster` is
    `slurm`, or for tests `local` or `debug`. Raises ConfigError if submitit rejects an option, or
    finds no Slurm.
    """
    import submitit

    jobs = {}
    try:
        for name, command in commands.items():
            executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            given = {f"slurm_{key}": value for key, value in options.items()}
            executor.update_parameters(name=name, **given)
            jobs[name] = executor.submit(TrainingJob(command))
    except Exception as error:  # submitit raises many types
        reason = " ".join(str(error).split())
        raise ConfigError(f"--launcher slurm: submitit rejects the job: {reason}") from error
    return jobs
