"""What both ranks of `test_two_ranks.py` do, in one process group; leaves files for the tests.

torchrun --nproc_per_node=2 tests/training/two_ranks.py FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from marl_framework.algorithms.rollout import Rollout
from marl_framework.config.mission import RewardConfig
from marl_framework.main import main
from marl_framework.training import lifecycle
from marl_framework.training.distributed import joined
from marl_framework.training.ranks import Ranks
from marl_framework.training.summary import flown_metrics
from marl_framework.training.trainer import Trainer
from tests.algorithms.making import make, rollout_on
from tests.training.steps import at_step

SCHEDULE = (
    "learning.training_steps=8",
    "logging.checkpoint_interval=3",
    "logging.scalar_interval=2",
    "evaluation.interval=3",
    "evaluation.missions=2",
    "compute.device=cpu",
    "compute.precision=float32",
)
STOP = 5
"""Training step in which one rank is interrupted."""
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalised": {"normalize_advantages": True},
    "micro-batches": {"normalize_advantages": True, "micro_batch": 5},
    "clipped": {"clip_ratio": 0.2, "entropy_coefficient": 0.1, "kl_limit": 10.0},
    "mappo": {"algorithm": "mappo", "clip_ratio": 0.2, "normalize_advantages": True},
    "sac": {"algorithm": "sac", "save_replay": False},
    "qmix": {"algorithm": "qmix", "save_replay": False},
}


def arguments(runs: Path, name: str, *options: str) -> list[str]:
    settings = (*SCHEDULE, f"logging.directory={runs}")
    sets = [part for text in settings for part in ("--set", text)]
    return ["--config", "params_test.yaml", *sets, "--run-name", name, *options]


def rollout_of(rank: int) -> Rollout:
    return rollout_on(num_envs=6, seed=rank)


def learn(rollout: Rollout, case: str) -> dict[str, Any]:
    """Make one update on all transitions of a rollout; return its gradients and losses."""
    large = {"gradient_norm": 1e9}  # gradients as they are, unclipped
    once = {"data_passes": 1, "batch_number": 1}
    coma = make(actor=large, critic=large, **once, **CASES[case])
    if case in ("sac", "qmix"):  # each mission once instead of draws
        coma.passes = lambda flown, *_: iter([coma.transitions(flown)])
    stats = coma.update(rollout, 0.1)
    parameters = [p for module in coma.modules.values() for p in module.parameters()]
    return {
        "gradients": [p.grad for p in parameters if p.requires_grad],
        "losses": torch.stack((stats["critic_loss"], stats["actor_loss"])),
    }


def weights_after_an_update(rank: int) -> dict[str, Any]:
    """Make a whole update on transitions of one's own, shuffled in one's own order."""
    coma = make(normalize_advantages=True, batch_number=3)
    stats = coma.update(rollout_of(rank), 0.1, torch.Generator().manual_seed(rank))
    return {"state": coma.state_dict(), "stats": stats}


def described(rollout: Rollout) -> dict[str, torch.Tensor]:
    """Learn once from all transitions of a rollout; return what the log shows of them."""
    return {**make(batch_number=1, data_passes=1).update(rollout, 0.1), **shown_of(rollout)}


def rollout_apart(rank: int) -> Rollout:
    """Transitions of a rank whose rewards lie far from those of the other."""
    rollout = rollout_of(rank)
    return replace(rollout, rewards=(1 + 3 * rank) * rollout.rewards + 5 * rank)


def rollout_of_some(rank: int) -> Rollout:
    """The same, but the missions of the second rank end after their first step."""
    rollout = rollout_apart(rank)
    active = torch.ones_like(rollout.actions, dtype=torch.bool)
    active[1:] = rank == 0
    return replace(rollout, active=active, rewards=rollout.rewards * active.any(-1))


def shown_of(rollout: Rollout) -> dict[str, torch.Tensor]:
    """Return what the log shows of a rollout."""
    metrics = torch.zeros(*rollout.rewards.shape, 3)
    return flown_metrics(replace(rollout, metrics=metrics), RewardConfig(), 2)[0]


def stop_in(step: int) -> None:
    """Send a signal to the second rank alone, in one training step."""
    real = Trainer.make_steps

    def stop(trainer: Trainer) -> None:
        Trainer.make_steps = real
        if trainer.ranks.rank == 1:
            signal.raise_signal(signal.SIGTERM)

    Trainer.make_steps = at_step(step, stop)


def said(work: Callable[[], int]) -> dict[str, Any]:
    """Run a command; return its exit code and what it wrote to standard error."""
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        code = work()
    return {"code": code, "error": text.getvalue()}


def run(folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Train and fail in several ways; return what came out on this rank."""
    runs = folder / "runs"
    found = {"whole": said(lambda: main(arguments(runs, "whole")))}
    stop_in(STOP)
    found["stopped"] = said(lambda: main(arguments(runs, "split")))
    if ranks.leads:
        shutil.copytree(runs / "split", runs / "shrunk")
    for name in ("split", "grown"):
        found[name] = said(lambda name=name: main(arguments(runs, name, "--resume")))
    sac = ("--set", "experiment.algorithm=sac", "--set", "learning.training_steps=2")
    found["sac"] = said(lambda: main(arguments(runs, "sac", *sac)))
    for name, options in (
        ("again", ()),
        ("saved", ("--set", "experiment.algorithm=sac", "--set", "logging.save_replay=true")),
        ("missions", ("--set", "environment.num_envs=3")),
        ("nccl", ("--set", "compute.distributed_backend=nccl")),
        ("gpu", ("--set", "compute.device=cuda:0")),
        ("flown", ("--set", "experiment.policy=random")),
    ):
        found[name] = said(lambda options=options: main(arguments(runs, "whole", *options)))
    return found


def threads() -> list[str]:
    """Names of this process's threads, also of those that Python does not know."""
    tasks = Path("/proc/self/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks]


if __name__ == "__main__":
    folder, ranks = Path(sys.argv[1]), Ranks.of()
    torch.set_num_threads(1)
    Ranks.wait_for_leader = lambda _: None
    lifecycle.joined = lambda *_: contextlib.nullcontext()  # one group serves all that follows
    with joined("auto", torch.device("cpu"), ranks):
        torch.set_default_dtype(torch.float64)
        learned = {case: learn(rollout_of(ranks.rank), case) for case in CASES}
        shown = described(rollout_apart(ranks.rank))
        reward = shown_of(rollout_of_some(ranks.rank))["reward"]
        torch.set_default_dtype(torch.float32)
        updated = weights_after_an_update(ranks.rank)
        known = {"learned": learned, "shown": shown, "reward": reward, "updated": updated}
        torch.save(known, folder / f"{ranks.rank}.pt")
        found = run(folder, ranks)
        during = threads()
    found["threads"] = {"during": during, "after": threads()}
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))
