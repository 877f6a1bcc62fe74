from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.loading import config_from_dict, config_to_dict, load_config
from marl_framework.config.parts import ALGORITHMS
from marl_framework.runs.checkpoint import save_checkpoint
from marl_framework.stage_timer import StageTimer
from marl_framework.training.logging import METRICS, TrainingLogger, metric_tag
from marl_framework.training.trainer import Trainer


def events(folder: Path) -> EventAccumulator:
    """Read a log back, whole."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    log = events(folder)
    if tag not in log.Tags()["scalars"]:
        return []
    return [(event.step, event.value) for event in log.Scalars(tag)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every way in which a tensor's values reach the host, as it happens."""
    seen: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(Tensor, name)

        def read(*arguments: Any) -> Any:
            seen.append(name)
            return real(*arguments)

        return read

    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, name, noting(name))
    return seen


def test_tags_are_namespaced_and_unique_and_explained() -> None:
    tags = [tag for tag, _ in METRICS.values()]
    assert len(set(tags)) == len(tags)
    groups = {"return", "loss", "critic", "policy", "validation", "time", "hardware"}
    assert {tag.split("/")[0] for tag in tags} == groups
    assert all(meaning for _, meaning in METRICS.values())
    assert metric_tag("kl") == "policy/kl"
    assert metric_tag("share_rollout") == "time/share_rollout"
    assert metric_tag("mine") == "algorithm/mine"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_metrics_of_built_in_algorithms_are_explained(tmp_path: Path, algorithm: str) -> None:
    options = ("learning.clip_ratio=0.2", "learning.kl_limit=1")
    config = load_config("params_test", (f"experiment.algorithm={algorithm}", *options))
    team = make_algorithm(config, "cpu").state_dict()
    save_checkpoint(tmp_path / "team.pt", {**team, "config": config_to_dict(config)})
    teacher = [f"learning.teacher.{key}" for key in (f"run={tmp_path / 'team.pt'}", "weight=1.0")]
    config = config_from_dict(config_to_dict(config), "test", teacher)
    trainer = Trainer(config, torch.device("cpu"))
    metrics, counts = trainer.make_steps(StageTimer(trainer.device))
    assert {"kl_halted", "teacher_kl"} < set(metrics)
    validated, _ = trainer.validation.run(1)
    assert set(metrics) | set(counts) | set(validated) <= set(METRICS)


def test_every_step_is_written_at_interval_one(tmp_path: Path, device: torch.device) -> None:
    with TrainingLogger(tmp_path) as logger:
        for step in (1, 2, 3):
            value = torch.tensor(step / 4, device=device)
            written = logger.log(step, {"return": value, "epsilon": 0.5})
            assert written == {"return": step / 4, "epsilon": 0.5}
    assert scalars(tmp_path, "return/episode") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert scalars(tmp_path, "policy/epsilon") == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_an_interval_is_written_as_its_mean_and_the_rest_at_the_end(tmp_path: Path) -> None:
    with TrainingLogger(tmp_path, scalar_interval=3) as logger:
        written = [logger.log(s, {"return": torch.tensor(float(s))}) for s in range(1, 9)]
        assert logger.flush() == {"return": 7.5}
        assert logger.flush() == {}
    # means of 1 2 3, of 4 5 6, and of the unfinished interval 7 8
    assert written == [{}, {}, {"return": 2.0}, {}, {}, {"return": 5.0}, {}, {}]
    assert scalars(tmp_path, "return/episode") == [(3, 2.0), (6, 5.0), (8, 7.5)]


def test_a_metric_that_some_steps_lack_is_the_mean_of_those_that_have_it(tmp_path: Path) -> None:
    with TrainingLogger(tmp_path, scalar_interval=3) as logger:
        logger.log(1, {"kl": torch.tensor(1.0)})
        logger.log(2, {"reward": torch.tensor(9.0), "kl": torch.tensor(2.0)})
        assert logger.log(3, {"kl": 6.0}) == {"kl": 3.0, "reward": 9.0}


def test_one_read_back_an_interval_and_none_between(tmp_path: Path, reads: list[str]) -> None:
    with TrainingLogger(tmp_path, scalar_interval=4, histogram_interval=8) as logger:
        for step in range(1, 9):
            metrics = {name: torch.tensor(1.0) for name in ("return", "kl", "critic_loss")}
            counts = {"actions": torch.ones(6), "altitudes": torch.ones(3, dtype=torch.int64)}
            logger.log(step, metrics, counts)
            assert reads == ["tolist"] * (step // 4)
    assert reads == ["tolist"] * 2


def test_buffers_may_be_reused_before_they_are_read(tmp_path: Path) -> None:
    value, count = torch.zeros((), dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    with TrainingLogger(tmp_path, scalar_interval=2, histogram_interval=2) as logger:
        value.fill_(1.0)
        count.copy_(torch.tensor([1.0, 0.0]))
        logger.log(1, {"return": value}, {"actions": count})
        value.fill_(2.0)
        count.copy_(torch.tensor([0.0, 5.0]))
        assert logger.log(2, {"return": value}, {"actions": count}) == {"return": 1.5}
    assert count.tolist() == [0.0, 5.0]
    (event,) = events(tmp_path).Histograms("policy/actions")
    assert event.histogram_value.num == 6


def test_metrics_of_many_types_are_read_exactly(tmp_path: Path) -> None:
    metrics = {
        "kl": torch.tensor(1.5, dtype=torch.bfloat16),
        "episodes": torch.tensor(2**40 + 1),
        "actor_loss": torch.tensor(2.0, requires_grad=True),
        "critic_loss": torch.tensor(float("nan")),
    }
    with TrainingLogger(tmp_path) as logger:
        written = logger.log(1, metrics)
    assert np.isnan(written.pop("critic_loss"))
    assert written == {"kl": 1.5, "episodes": 2**40 + 1, "actor_loss": 2.0}
    ((step, value),) = scalars(tmp_path, "loss/critic")
    assert step == 1
    assert np.isnan(value)


def test_wrong_metrics_are_refused_by_name(tmp_path: Path) -> None:
    with TrainingLogger(tmp_path, bin_values={"altitudes": (5.0, 10.0)}) as logger:
        with pytest.raises(ValueError, match=r"metric 'kl' has shape \(2,\), not a scalar"):
            logger.log(1, {"kl": torch.ones(2)})
        with pytest.raises(ValueError, match=r"counts 'altitudes' have shape \(3,\)"):
            logger.log(1, {}, {"altitudes": torch.ones(3)})


def test_histograms_are_sums_over_the_interval(tmp_path: Path, device: torch.device) -> None:
    with TrainingLogger(
        tmp_path, histogram_interval=2, bin_values={"altitudes": (5.0, 10.0, 20.0)}
    ) as logger:
        for step in (1, 2, 3, 4, 5):
            counts = {
                "actions": torch.tensor([1, 0, step], device=device),
                "altitudes": torch.tensor([0, 2, 1], device=device),
            }
            logger.log(step, {}, counts)
    log = events(tmp_path)
    actions = [(e.step, e.histogram_value) for e in log.Histograms("policy/actions")]
    assert [step for step, _ in actions] == [2, 4, 5]
    assert [list(h.bucket) for _, h in actions] == [[2, 0, 3], [2, 0, 7], [1, 0, 5]]
    assert list(actions[0][1].bucket_limit) == [0.5, 1.5, 2.5]
    altitudes = log.Histograms("policy/altitudes")[0].histogram_value
    # two steps of 2 at 10 m and 1 at 20 m: 6 readings, 4·10 + 2·20 = 80, 4·100 + 2·400 = 1200
    assert (altitudes.num, altitudes.sum, altitudes.sum_squares) == (6, 80, 1200)
    # edges lie half-way between the altitudes, and as far outside the ends
    assert list(altitudes.bucket_limit) == [7.5, 15.0, 25.0]
    assert (altitudes.min, altitudes.max) == (2.5, 25.0)


def test_counts_over_bins_that_have_changed_are_dropped(tmp_path: Path) -> None:
    bins = {"altitudes": (5.0, 10.0)}
    with TrainingLogger(tmp_path / "a", histogram_interval=9, bin_values=bins) as logger:
        logger.log(1, {}, {"altitudes": torch.tensor([1, 2]), "actions": torch.tensor([3, 4])})
        state = logger.state_dict()
    bins = {"altitudes": (5.0, 10.0, 20.0)}
    with TrainingLogger(tmp_path / "b", histogram_interval=2, bin_values=bins) as logger:
        logger.load_state_dict(state, "cpu")
        logger.log(2, {}, {"altitudes": torch.ones(3), "actions": torch.tensor([1, 0])})
    log = events(tmp_path / "b")
    found = {name: log.Histograms(f"policy/{name}")[0].histogram_value for name in state["counts"]}
    assert found["altitudes"].num == 3
    assert list(found["actions"].bucket) == [4, 4]


@pytest.mark.parametrize(("interval", "counts"), [(0, [3, 1]), (1, [0, 0])])
def test_no_histogram_without_interval_or_counts(
    tmp_path: Path, interval: int, counts: list[int]
) -> None:
    with TrainingLogger(tmp_path, histogram_interval=interval) as logger:
        logger.log(1, {"return": 1.0}, {"actions": torch.tensor(counts)})
    assert events(tmp_path).Tags()["histograms"] == []


def test_one_altitude_is_one_bin(tmp_path: Path) -> None:
    with TrainingLogger(tmp_path, bin_values={"altitudes": (5.0,)}) as logger:
        logger.log(1, {}, {"altitudes": torch.tensor([4])})
    (event,) = events(tmp_path).Histograms("policy/altitudes")
    assert list(event.histogram_value.bucket_limit) == [5.5]
    assert (event.histogram_value.min, event.histogram_value.num) == (4.5, 4)


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5, 4), (4, 5)])
def test_a_figure_is_shown_with_its_pixels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    cmap: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if len(shape) == 2 else {}
    matplotlib.image.imsave(tmp_path / "mission.png", pixels, **cmap)
    with TrainingLogger(tmp_path / "log") as logger:
        logger.figure(3, "mission", tmp_path / "mission.png")
    (event,) = events(tmp_path / "log").Images("figures/mission")
    assert (event.step, event.height, event.width) == (3, 4, 5)
    (tmp_path / "shown.png").write_bytes(event.encoded_image_string)
    shown, original = (
        matplotlib.image.imread(tmp_path / name) for name in ("shown.png", "mission.png")
    )
    assert np.array_equal(shown, original)


@pytest.mark.parametrize("device", ["cpu", "meta"])  # nothing can be read from the latter
def test_an_exception_passes_and_what_was_written_stays(tmp_path: Path, device: str) -> None:
    def train(logger: TrainingLogger) -> None:
        logger.write(1, {"validation_f1": 0.5})
        logger.log(1, {"return": torch.ones((), device=device)})
        raise RuntimeError("device lost")

    logger = TrainingLogger(tmp_path, scalar_interval=10)
    with pytest.raises(RuntimeError, match="device lost"), logger:
        train(logger)
    assert scalars(tmp_path, "validation/f1") == [(1, 0.5)]
    assert scalars(tmp_path, "return/episode") == []  # a resumed training writes it whole
