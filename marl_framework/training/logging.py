"""Log metrics of a training run; tensors stay on the device until the metrics are written."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from matplotlib.image import imread
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from marl_framework.config.derived import passes
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.runs.folder import RunFolder
from marl_framework.training.writers import WandbWriter

METRICS: dict[str, tuple[str, str]] = {
    # Name in the code: tag in TensorBoard, meaning.
    "return": ("return/episode", "sum of the team's rewards over an episode, mean over missions"),
    "absolute_return": ("return/absolute", "sum of the information gained, scaled and shifted"),
    "relative_return": ("return/relative", "sum of the relative gains in the ROI, not scaled"),
    "reward": ("return/reward", "reward of a step, mean over steps and missions"),
    "reward_std": ("return/reward_std", "standard deviation of the reward of a step"),
    "critic_loss": ("loss/critic", "mean squared error to the TD(λ) target; PPO clips it"),
    "actor_loss": ("loss/actor", "policy-gradient loss, entropy bonus included"),
    "critic_gradient_norm": ("loss/critic_gradient_norm", "norm before clipping"),
    "actor_gradient_norm": ("loss/actor_gradient_norm", "norm before clipping"),
    "td_target": ("critic/td_target", "TD(λ) target, mean over the batch"),
    "td_target_std": ("critic/td_target_std", "standard deviation of the TD(λ) target"),
    "td_error": ("critic/td_error", "mean of |target − Q(s, a)|, or V(s)"),
    "q_taken": ("critic/q_taken", "mean of Q(s, a) of the actions taken, or of V(s)"),
    "explained_variance": ("critic/explained_variance", "1 − Var(target − Q) / Var(target)"),
    "advantage": ("policy/advantage", "mean advantage of the actions taken"),
    "advantage_std": ("policy/advantage_std", "standard deviation of the advantage"),
    "policy_entropy": ("policy/entropy", "entropy of the policy over allowed actions [nat]"),
    "temperature": ("policy/temperature", "learned weight of the policy's entropy (SAC)"),
    "largest_probability": ("policy/largest_probability", "mean of max π(a | s) over the batch"),
    "kl": ("policy/kl", "KL(acting policy ‖ policy) before each update of the last pass [nat]"),
    "teacher_kl": ("policy/teacher_kl", "KL(teacher ‖ policy), before the same updates [nat]"),
    "kl_halted": ("policy/kl_halted", "share of the actor's updates that kl_limit prevented"),
    "learning_rate_factor": ("loss/learning_rate_factor", "factor of configured learning rates"),
    "epsilon": ("policy/epsilon", "floor ε of the exploring policy"),
    "actions": ("policy/actions", "histogram of the actions taken, by action index"),
    "altitudes": ("policy/altitudes", "histogram of the altitudes flown [m]"),
    "validation_entropy": ("validation/entropy", "ROI entropy of greedy missions [bit per cell]"),
    "validation_f1": ("validation/f1", "F1 score of the ROI after greedy missions"),
    "validation_return": ("validation/return", "return of greedy missions"),
    "skipped_updates": ("loss/skipped_updates", "updates that were not finite and not applied"),
    "episodes": ("time/episodes", "missions flown for training so far"),
    "transitions_per_second": ("time/transitions_per_second", "agent steps collected per second"),
    "gpu_memory": ("hardware/gpu_memory", "memory in use on the GPU, by all processes [GiB]"),
    "gpu_utilization": ("hardware/gpu_utilization", "share of the time with a kernel running"),
    "gpu_power": ("hardware/gpu_power", "power that the GPU draws [W]"),
    "gpu_sm_activity": ("hardware/gpu_sm_activity", "share of the multiprocessors at work"),
    "gpu_sm_occupancy": ("hardware/gpu_sm_occupancy", "share of the multiprocessors' warps in use"),
    "gpu_memory_bandwidth": ("hardware/gpu_memory_bandwidth", "share of the bandwidth in use"),
    "host_cpu": ("hardware/host_cpu", "number of cores that this process keeps busy"),
    "host_memory": ("hardware/host_memory", "memory of this process [GiB]"),
    "host_disk_free": ("hardware/host_disk_free", "free space on the disk of the run [GiB]"),
}
"""All metrics of built-in parts: name → (tag, meaning). Also `share_<stage>`, tag
`time/share_<stage>`. Metrics of a custom algorithm have the tag `algorithm/<name>`."""
TENSORBOARD, WANDB = "TensorBoard", "Weights & Biases"
_FLUSH_SECONDS = 10  # a killed run loses at most these seconds of the log
Writer = SummaryWriter | WandbWriter


def metric_tag(name: str) -> str:
    """Return the TensorBoard tag of a metric; `algorithm/NAME` if not in `METRICS`."""
    if name in METRICS:
        return METRICS[name][0]
    return f"time/{name}" if name.startswith("share_") else f"algorithm/{name}"


class TrainingLogger:
    """Writes metrics of training steps to TensorBoard and other writers.

    `log` collects tensors on their device; when a write is due, one transfer reads all tensors.
    `write` takes numbers and writes at once.

    Args:
        folder: folder of TensorBoard's event files; None to write no event files.
        scalar_interval: training steps between two writes of scalars, which are means over these
            steps.
        histogram_interval: training steps between two writes of counts, which are sums; 0: never.
        bin_values: ascending bin values by name of the counts, such as
            `{"altitudes": config.geometry.altitudes}`; without values, bins are numbered from 0.
        resumed_at: training step of the resumed checkpoint; entries of later steps are hidden.
        report: function that prints a line if the log cannot be written.
        more: other writers by name.
        tag: function that returns the tag of a metric.
    """

    def __init__(
        self,
        folder: Path | str | None,
        scalar_interval: int = 1,
        histogram_interval: int = 50,
        bin_values: Mapping[str, Sequence[float]] | None = None,
        resumed_at: int | None = None,
        report: Callable[[str], None] = print,
        more: Mapping[str, Writer] | None = None,
        tag: Callable[[str], str] = metric_tag,
    ) -> None:
        self.scalar_interval = scalar_interval
        self.histogram_interval = histogram_interval
        self._bin_values = dict(bin_values or {})
        self._vectors: list[tuple[tuple[str, ...], Tensor]] = []
        self._numbers: list[Mapping[str, float]] = []
        self._counts: dict[str, Tensor] = {}
        self._step = 0
        self._report = report
        self._hook = threading.excepthook
        threading.excepthook = self._on_thread_failure
        self._writers: dict[str, Writer] = {}
        if folder is not None:
            with self._guarded(TENSORBOARD):
                self._writers[TENSORBOARD] = SummaryWriter(
                    str(folder),
                    flush_secs=_FLUSH_SECONDS,
                    purge_step=None if resumed_at is None else resumed_at + 1,
                )
        self._writers |= more or {}
        self._tag = tag

    def log(
        self,
        step: int,
        metrics: Mapping[str, Tensor | float],
        counts: Mapping[str, Tensor] | None = None,
    ) -> dict[str, float]:
        """Collect the metrics of a training step; write all metrics when due.

        Steps begin at 1 and may be skipped. `metrics` are scalars by name, and `counts` the
        occurrences of each bin by name, [B]; all tensors are on the same device. Returns the
        written scalars by name; empty if no write was due.
        """
        before, self._step = self._step, step
        self._collect(metrics)
        if self.histogram_interval:
            self._count(counts or {})
        return self._write_due(
            passes(self.scalar_interval, before, step),
            passes(self.histogram_interval, before, step),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers at once."""

        def add(writer: Writer) -> None:
            for name, value in values.items():
                writer.add_scalar(self._tag(name), float(value), step)

        self._call_writers(add)

    def figure(self, step: int, name: str, path: Path | str) -> None:
        """Log an image file with the tag `figures/<name>`."""
        pixels = imread(path)
        if pixels.dtype != np.uint8:
            pixels = (pixels * 255).round().astype(np.uint8)
        layout = "HW" if pixels.ndim == 2 else "HWC"
        self._call_writers(
            lambda writer: writer.add_image(f"figures/{name}", pixels, step, dataformats=layout)
        )

    def flush(self) -> dict[str, float]:
        """Write all pending metrics; return the written scalars, as `log` does."""
        return self._write_due(True, bool(self.histogram_interval))

    def forget(self) -> None:
        """Drop pending metrics, which a resumed training writes later from the checkpoint."""
        self._numbers, self._vectors, self._counts = [], [], {}

    def close(self) -> None:
        """Write all pending metrics and close the writers."""
        try:
            self.flush()
        finally:
            self._call_writers(lambda writer: writer.close())
            threading.excepthook = self._hook

    def state_dict(self) -> dict[str, Any]:
        """Return the pending metrics; loadable with `weights_only=True`."""
        return {
            "numbers": [dict(row) for row in self._numbers],
            "vectors": [(list(names), vector) for names, vector in self._vectors],
            "counts": dict(self._counts),
            "step": self._step,
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device | str) -> None:
        """Load what `state_dict` returned; move tensors to the device.

        Counts with another number of bins, such as after a change of the altitudes, are dropped.
        """
        self._numbers = [dict(row) for row in state["numbers"]]
        self._vectors = [(tuple(names), vector.to(device)) for names, vector in state["vectors"]]
        self._counts = {
            name: count.to(device)
            for name, count in state["counts"].items()
            if count.numel() == len(self._bin_values.get(name, count))
        }
        self._step = int(state["step"])

    def _on_thread_failure(self, failure: threading.ExceptHookArgs) -> None:
        """Ignore a failed write in TensorBoard's thread, which `_guarded` reports."""
        by_tensorboard = type(failure.thread).__module__.startswith("tensorboard.")
        if not (by_tensorboard and isinstance(failure.exc_value, OSError)):
            self._hook(failure)

    def _call_writers(self, write: Callable[[Writer], None]) -> None:
        for name, writer in list(self._writers.items()):
            with self._guarded(name):
                write(writer)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Drop a writer that fails, with a warning; the training continues."""
        try:
            yield
        except OSError as error:
            self._writers.pop(name, None)
            self._report(
                f"warning: {name}'s log cannot be written: {error.strerror or error}; "
                "the training continues without this log"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:  # the device may have failed, so read nothing from it
            self.forget()
        self.close()

    def _collect(self, metrics: Mapping[str, Tensor | float]) -> None:
        numbers: dict[str, float] = {}
        tensors: dict[str, Tensor] = {}
        for name, value in metrics.items():
            if not isinstance(value, Tensor):
                numbers[name] = float(value)
            elif value.ndim == 0:
                tensors[name] = value.detach()
            else:
                raise ValueError(f"metric {name!r} has shape {tuple(value.shape)}, not a scalar")
        self._numbers.append(numbers)
        if tensors:
            # Copy the tensors, because the caller may reuse these buffers before the write.
            stacked = torch.stack([tensor.to(torch.float64) for tensor in tensors.values()])
            self._vectors.append((tuple(tensors), stacked))

    def _count(self, counts: Mapping[str, Tensor]) -> None:
        for name, count in counts.items():
            if count.ndim != 1 or count.numel() != len(self._bin_values.get(name, count)):
                raise ValueError(
                    f"counts {name!r} have shape {tuple(count.shape)}, not one per bin"
                )
            total = self._counts.setdefault(name, torch.zeros_like(count, dtype=torch.float64))
            total += count.detach()

    def _write_due(self, scalars: bool, histograms: bool) -> dict[str, float]:
        vectors = self._vectors if scalars else []
        counts = self._counts if histograms else {}
        tensors = [*(vector for _, vector in vectors), *counts.values()]
        values = iter(torch.cat(tensors).tolist() if tensors else ())  # in one transfer
        read = (list(islice(values, len(tensor))) for tensor in tensors)
        means: dict[str, float] = {}
        if scalars:
            rows = [dict(zip(names, next(read), strict=True)) for names, _ in vectors]
            columns: defaultdict[str, list[float]] = defaultdict(list)
            for name, value in chain.from_iterable(r.items() for r in [*self._numbers, *rows]):
                columns[name].append(value)
            means = {name: sum(column) / len(column) for name, column in columns.items()}
            self._numbers, self._vectors = [], []
            self.write(self._step, means)
        for name in counts:
            self._write_histogram(name, next(read))
        if histograms:
            self._counts = {}
        return means

    def _write_histogram(self, name: str, counts: list[float]) -> None:
        values = [float(v) for v in self._bin_values.get(name, range(len(counts)))]
        total = sum(counts)
        if not total:
            return
        between = [(low + high) / 2 for low, high in pairwise(values)]
        first = values[0] - (between[0] - values[0] if between else 0.5)
        last = values[-1] + (values[-1] - between[-1] if between else 0.5)
        self._call_writers(
            lambda writer: writer.add_histogram_raw(
                self._tag(name),
                min=first,
                max=last,
                num=total,
                sum=sum(n * v for n, v in zip(counts, values, strict=True)),
                sum_squares=sum(n * v * v for n, v in zip(counts, values, strict=True)),
                bucket_limits=[*between, last],
                bucket_counts=counts,
                global_step=self._step,
            )
        )


def make_logger(
    config: Config,
    run: RunFolder | None,
    first_step: int,
    report: Callable[[str], None],
    tag: Callable[[str], str] = metric_tag,
) -> TrainingLogger:
    """Build a logger with the writers and intervals of a configuration.

    Without a `run`, it writes nothing. `first_step` is the number of training steps made before,
    `report` prints a line, and `tag` returns the tag of a metric. Raises ConfigError if a writer is
    not installed or cannot start.
    """
    log, folder, more = config.logging, None, {}
    if run is not None and "tensorboard" in log.writers:
        folder = run.tensorboard
    if run is not None and "wandb" in log.writers:
        more[WANDB] = WandbWriter(run.path, config_to_dict(config))
    return TrainingLogger(
        folder,
        log.scalar_interval,
        log.histogram_interval,
        {"altitudes": config.geometry.altitudes},
        first_step if folder is not None and any(folder.iterdir()) else None,
        report,
        more,
        tag,
    )
