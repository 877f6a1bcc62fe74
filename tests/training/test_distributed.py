"""The place of a process among its ranks, and what cannot be shared among them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from marl_framework.algorithms.ranks import mean_over_ranks, number_of_ranks, with_shared_gradients
from marl_framework.config.errors import ConfigError
from marl_framework.device import Lack
from marl_framework.kernels import versions
from marl_framework.main import main
from marl_framework.runs.files import write_json
from marl_framework.runs.folder import RunFolder, job_of
from marl_framework.training.distributed import (
    is_lost_rank,
    joined,
    rank_device,
)
from marl_framework.training.memory import memory_estimate
from marl_framework.training.ranks import LeaderError, Ranks
from marl_framework.training.summary import describe_windows
from marl_framework.training.trainer import Trainer
from tests.small import config_with
from tests.test_device import pretend_gpus
from tests.training.steps import at_step
from tests.training.two_ranks import arguments

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_MAX_RESTARTS": "2",
    "TORCHELASTIC_RUN_ID": "mine",
}


def test_torchrun_tells_each_rank_its_place() -> None:
    assert Ranks.of(TORCHRUN) == Ranks(3, 4, 1, 2, restarts=1, may_restart=True, job="mine")
    assert not Ranks.of(TORCHRUN).leads
    assert Ranks.of({**TORCHRUN, "RANK": "0"}).leads


def test_without_torchrun_there_is_one_rank_that_leads() -> None:
    assert Ranks.of({"RANK": "3", "WORLD_SIZE": "4"}) == Ranks()
    assert Ranks().leads
    assert Ranks().any(True)
    assert not Ranks().any(False)
    assert Ranks().broadcast("x") == "x"
    assert Ranks().gather("x") == ["x"]
    assert Ranks().on_leader(lambda: "x") == "x"
    assert number_of_ranks() == 1
    value, network = torch.ones(2), torch.nn.Linear(2, 2)
    assert mean_over_ranks(value) is value
    assert with_shared_gradients(network, CPU) is network


def test_variables_that_make_no_sense_are_one_error() -> None:
    with pytest.raises(ConfigError, match="torchrun: invalid environment variables"):
        Ranks.of({**TORCHRUN, "WORLD_SIZE": "many"})


@pytest.mark.parametrize(
    ("missions", "ranks", "named"),
    [(4, 3, r"num_envs: 4 .* 3\b"), (4, 8, r"num_envs: .* 8\b"), (2048, 2048, "2048 .* 1024")],
)
def test_missions_must_be_shared_equally_by_few_enough_ranks(
    missions: int, ranks: int, named: str
) -> None:
    cpu = "compute.device=cpu"
    assert rank_device(config_with("environment.num_envs=6", cpu), Ranks(count=3)) == CPU
    with pytest.raises(ConfigError, match=named):
        rank_device(config_with(f"environment.num_envs={missions}", cpu), Ranks(count=ranks))


@pytest.mark.usefixtures("automatic")
def test_each_rank_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 2)
    for name in ("auto", "cuda"):
        config = config_with(f"compute.device={name}")
        assert rank_device(config, Ranks(3, 4, 1, 2)) == torch.device("cuda", 1)
    assert rank_device(config_with("compute.device=cpu"), Ranks(3, 4, 1, 2)) == CPU
    assert rank_device(config_with("compute.device=cuda:1"), Ranks()) == torch.device("cuda", 1)


@pytest.mark.usefixtures("automatic")
def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 1)
    with pytest.raises(ConfigError, match=r"2 ranks on a machine with 1 GPU; use --nproc_per_node"):
        rank_device(config_with("compute.device=auto"), Ranks(0, 2, 0, 2))


def test_nccl_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    with pytest.raises(ConfigError, match=r"compute\.distributed_backend: nccl requires GPUs"):
        rank_device(config_with("compute.distributed_backend=nccl", "compute.device=cpu"), Ranks())
    pretend_gpus(monkeypatch, 1)
    config = config_with("compute.distributed_backend=nccl", "compute.device=cuda")
    assert rank_device(config, Ranks()).type == "cuda"


def test_a_failure_of_the_leader_ends_the_others_with_its_code(monkeypatch) -> None:
    told = []
    monkeypatch.setattr(Ranks, "broadcast", lambda self, value: told.append(value) or value)

    fail = Mock(side_effect=ConfigError("no"))
    with pytest.raises(ConfigError):
        Ranks(0, 2).on_leader(fail)
    monkeypatch.setattr(Ranks, "broadcast", lambda self, value: told[-1])
    with pytest.raises(LeaderError) as caught:
        Ranks(1, 2).on_leader(fail)
    assert caught.value.exit_code == 2


def test_only_the_call_that_began_a_run_resumes_it(tmp_path: Path) -> None:
    again = Ranks(job="a", restarts=1)
    assert not again.resume(job_of(tmp_path))
    write_json(tmp_path / "environment.json", {"job": "a"})
    assert again.resume(job_of(tmp_path))
    assert not Ranks(job="a").resume(job_of(tmp_path))
    assert not Ranks(job="b", restarts=1).resume(job_of(tmp_path))


def test_restarts_need_a_name(monkeypatch: pytest.MonkeyPatch, refused) -> None:
    for name, value in {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    error = refused(main, ["--config", "params_test.yaml"])
    assert "--max-restarts" in error
    assert "--run-name" in error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (torch.distributed.DistBackendError("NCCL communicator was aborted"), True),
        (torch.distributed.DistBackendError("NCCL error: ncclRemoteError: A call failed"), True),
        (torch.distributed.DistBackendError("NCCL error: ncclUnhandledCudaError"), False),
        (RuntimeError("shapes do not match"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_a_lost_rank_is_told_from_other_errors(error: BaseException, expected: bool) -> None:
    assert is_lost_rank(error) is expected


STUCK = """
import signal, sys, threading
from marl_framework.training.ranks import Ranks
from marl_framework.training.signals import interruptible
with interruptible(lambda: None, Ranks(0, 2), 0.1):
    threading.Thread(target=lambda: signal.pthread_kill(threading.main_thread().ident,
        signal.SIGTERM)).start()
    {wait}
print("ended by itself")
"""


@pytest.mark.parametrize(
    ("patience", "wait", "code", "said"),
    [("0.1", "threading.Semaphore(0).acquire()", 1, ""), ("1e6", "pass", 0, "ended by itself\n")],
)
def test_a_rank_that_waits_in_a_driver_ends_after_a_signal(
    patience: str, wait: str, code: int, said: str
) -> None:
    command = [sys.executable, "-c", STUCK.replace("0.1", patience).format(wait=wait)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, said)
    assert done.stderr.startswith("error: ") is bool(code)


def test_a_signal_waits_until_it_is_written_how_the_training_ended(tmp_path, monkeypatch) -> None:
    """torchrun ends all ranks as soon as one has: the others are about to say why."""
    write_status, killed = RunFolder.write_status, []

    def signalled(run: RunFolder, state: str, **known) -> None:
        if state == "failed":
            signal.raise_signal(signal.SIGTERM)
        write_status(run, state, **known)

    monkeypatch.setattr(Trainer, "make_steps", at_step(3, Mock(side_effect=RuntimeError("a bug"))))
    monkeypatch.setattr(RunFolder, "write_status", signalled)
    signal.signal(signal.SIGTERM, lambda *_: killed.append(True))
    with pytest.raises(RuntimeError, match="a bug"):
        main(arguments(tmp_path, "t"))
    assert not killed
    status = json.loads((tmp_path / "t" / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", "RuntimeError: a bug")


# --- memory ----------------------------------------------------------------------------------


def test_ranks_share_missions_and_transitions_but_not_weights() -> None:
    config = config_with("environment.num_envs=8")
    alone, shared = memory_estimate(config), memory_estimate(config, 4)
    assert shared["missions"] * 4 == pytest.approx(
        alone["missions"], rel=0.01
    )  # one table of moves
    assert shared["transitions"] * 4 == alone["transitions"]
    assert shared["weights"] == alone["weights"]


# One process on one of several GPUs


def test_a_training_makes_its_gpu_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for device in (CPU, torch.device("cuda", 1)):
        with joined("auto", device, Ranks()):
            pass
    assert chosen == [torch.device("cuda", 1)]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("lack", [None, Lack("not installed", "pip install"), Lack("old", "")])
def test_the_start_on_a_gpu_says_what_computes_windows(
    deterministic: bool, lack: Lack | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "triton_lacks", lambda device: lack)
    config = config_with(f"compute.deterministic={deterministic}".lower())
    line = describe_windows(config, torch.device("cuda", 0))
    assert ("Triton" in line) is (lack is None)
    assert ("compute.deterministic" in line) is (deterministic and lack is not None)
    if lack is not None:
        assert lack.reason in line
        assert line.endswith("; fix: pip install") is bool(lack.fix)
