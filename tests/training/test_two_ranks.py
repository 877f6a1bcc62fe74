"""Two processes that train together, started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marl_framework.main import main
from marl_framework.training.trainer import Trainer
from tests.algorithms.making import concatenate
from tests.training.steps import at_step
from tests.training.two_ranks import (
    CASES,
    STOP,
    arguments,
    described,
    learn,
    rollout_apart,
    rollout_of,
    rollout_of_some,
    shown_of,
)

pytestmark = pytest.mark.soak  # processes that start for half a minute
ROOT = Path(__file__).parents[2]
SECONDS = 500


def torchrun(*arguments: str | Path, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Start two ranks and wait for them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*command, f"--max-restarts={restarts}", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left, and one rank before and after them."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as monkeypatch:
        with monkeypatch.context() as first:
            first.setattr(Trainer, "make_steps", at_step(STOP, Trainer.interrupt))
            assert main(arguments(folder / "runs", "grown")) == 130
        done = torchrun(ROOT / "tests/training/two_ranks.py", folder)
        assert done.returncode == 0, done.stderr
        assert main(arguments(folder / "runs", "shrunk", "--resume")) == 0
    return folder


@pytest.fixture(scope="module")
def tensors(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def read(folder: Path, name: str, file: str = "summary.json") -> dict[str, Any]:
    return json.loads((folder / "runs" / name / file).read_text())


def checkpoint(folder: Path, name: str) -> dict[str, Any]:
    return torch.load(folder / "runs" / name / "checkpoints" / "last.pt", weights_only=True)


@pytest.fixture
def _exactly():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_exactly")
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_one_rank_with_the_missions_of_both(tensors, case: str) -> None:
    alone = learn(concatenate([rollout_of(0), rollout_of(1)]), case)
    for rank in tensors:
        found = rank["learned"][case]
        for ours, reference in zip(found["gradients"], alone["gradients"], strict=True):
            assert ours.dtype == torch.float64
            torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(found["losses"], alone["losses"], rtol=1e-6, atol=1e-12)
    other = learn(rollout_of(0), case)  # the missions of one rank alone give something else
    assert not torch.allclose(other["gradients"][0], alone["gradients"][0], rtol=1e-3)


def test_both_ranks_have_the_same_weights_and_metrics_after_an_update(tensors) -> None:
    first, second = (rank["updated"]["state"] for rank in tensors)
    for network in ("actor", "critic", "target_critic"):
        assert not any(name.startswith("module.") for name in first[network])
        for name, weights in first[network].items():
            assert torch.equal(weights, second[network][name])
    first, second = (rank["updated"]["stats"] for rank in tensors)
    assert first == second
    assert {"critic_loss", "kl", "td_target", "skipped_updates"} <= set(first)


@pytest.mark.usefixtures("_exactly")
def test_metrics_are_those_of_one_rank_with_the_missions_of_both(tensors) -> None:
    alone = described(concatenate([rollout_apart(0), rollout_apart(1)]))
    assert {"td_target_std", "advantage_std", "explained_variance", "reward_std"} <= set(alone)
    for rank in tensors:
        assert set(rank["shown"]) == set(alone)
        for name, value in alone.items():
            torch.testing.assert_close(rank["shown"][name], value.double(), rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("_exactly")
def test_the_mean_reward_counts_the_steps_of_both_ranks(tensors) -> None:
    both = [rollout_of_some(rank) for rank in (0, 1)]
    steps = sum(rollout.active.any(-1).sum() for rollout in both)
    mean = sum(rollout.rewards.sum() for rollout in both) / steps
    apart = sum(shown_of(rollout)["reward"] for rollout in both) / 2  # where each counts its own
    assert abs(mean - apart) > 0.05
    for rank in tensors:
        torch.testing.assert_close(rank["reward"], mean)


def test_one_folder_and_event_file_with_missions_of_both_ranks(folder: Path, said) -> None:
    assert [rank["whole"]["code"] for rank in said] == [0, 0]
    names = {path.name for path in (folder / "runs").iterdir()}
    assert names == {"whole", "split", "shrunk", "grown", "sac"}
    found = read(folder, "whole")
    assert found["machine"]["ranks"] == 2
    assert found["results"]["finished"]
    assert found["results"]["transitions"] == 8 * 4 * 2 * 4  # steps × missions × UAVs × moves
    run = folder / "runs" / "whole"
    assert len(list((run / "tensorboard").iterdir())) == 1
    assert len(list(run.rglob("*.pt"))) == 5  # three numbered, the last and the best
    log = EventAccumulator(str(run / "tensorboard"))
    log.Reload()
    assert [event.step for event in log.Scalars("return/episode")] == [2, 4, 6, 8]
    assert [event.value for event in log.Scalars("time/episodes")] == [6.0, 14.0, 22.0, 30.0]
    state = checkpoint(folder, "whole")
    assert state["ranks"] == 2
    (other,) = state["other_generators"]
    assert not torch.equal(state["generators"]["missions"], other["missions"])


def test_two_ranks_learn_from_stored_missions(folder: Path, said) -> None:
    assert [rank["sac"] for rank in said] == [{"code": 0, "error": ""}] * 2
    assert read(folder, "sac")["results"]["finished"]


def test_a_signal_to_one_rank_stops_both_after_the_step(folder: Path, said) -> None:
    assert [rank["stopped"]["code"] for rank in said] == [130, 130]
    assert said[0]["stopped"]["error"].startswith("interrupted; the state of the run is in")
    assert said[1]["stopped"]["error"] == ""
    assert read(folder, "shrunk", "environment.json")["resumed"][0]["training_step"] == STOP


def test_two_ranks_go_on_bit_for_bit(folder: Path, said) -> None:
    assert [rank["split"] for rank in said] == [{"code": 0, "error": ""}] * 2
    assert read(folder, "split")["results"] == read(folder, "whole")["results"]


@pytest.mark.parametrize(("name", "ranks"), [("grown", 2), ("shrunk", 1)])
def test_a_run_goes_on_with_another_number_of_ranks(folder: Path, said, name, ranks) -> None:
    found = read(folder, name)
    assert found["results"]["finished"]
    assert found["results"]["training_steps"] == 8
    assert found["results"]["episodes"] == 8 * 4
    assert found["machine"]["ranks"] == ranks
    if name == "grown":
        assert [rank["grown"]["code"] for rank in said] == [0, 0]
        assert "continues on 2 ranks after 1" in said[0]["grown"]["error"]
        assert said[1]["grown"]["error"] == ""


def test_the_stream_of_a_rank_that_is_gone_is_kept_for_its_return(folder: Path) -> None:
    gone, kept = (checkpoint(folder, name)["other_generators"] for name in ("shrunk", "split"))
    assert len(gone) == len(kept) == 1
    assert checkpoint(folder, "shrunk")["ranks"] == 1
    assert not torch.equal(gone[0]["missions"], kept[0]["missions"])  # it flew on in the latter


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("again", "run name whole: "),
        ("saved", "logging.save_replay: not supported with several ranks"),
        ("missions", "environment.num_envs: 3 missions cannot be divided equally among 2 ranks"),
        ("nccl", "compute.distributed_backend: nccl requires GPUs"),
        ("gpu", "compute.device: cuda:0 is a single GPU"),
        ("flown", "torchrun: 2 ranks"),
    ],
)
def test_bad_input_is_one_line_of_the_first_rank(said, name: str, words: str) -> None:
    assert [rank[name]["code"] for rank in said] == [2, 2]
    assert said[0][name]["error"].startswith(f"error: {words}")
    assert said[0][name]["error"].count("\n") == 1
    assert said[1][name]["error"] == ""


def test_no_thread_of_the_process_group_outlives_it(said) -> None:
    for rank in said:  # one that frees a tensor as the interpreter ends aborts the process
        during, after = (any("gloo" in n for n in rank["threads"][w]) for w in ("during", "after"))
        assert during
        assert not after
