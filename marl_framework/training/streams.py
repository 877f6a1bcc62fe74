"""Save and restore the random streams of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from marl_framework.mission.seeding import MAX_SEED, split_seed
from marl_framework.training.ranks import Ranks

_STEP = 648_053  # coprime to MAX_SEED - 1, so that other episodes give another seed


def stream_state(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
    """Return the states of the mission generator and of PyTorch's global generators."""
    on_gpu = device.type == "cuda"
    return {
        "missions": generator.get_state(),
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if on_gpu else None,
    }


def restore_stream(
    stream: Mapping[str, Any], generator: torch.Generator, device: torch.device
) -> None:
    """Restore the state returned by `stream_state`."""
    generator.set_state(stream["missions"])
    torch.set_rng_state(stream["torch"])
    if stream["device"] is not None:
        torch.cuda.set_rng_state(stream["device"], device)


def renew_stream(generator: torch.Generator, seed: int, made: int, number: int) -> None:
    """Seed a fresh stream for a training run that continues on another kind of device.

    The seed belongs to the training split, so it differs from all seeds of validation, test, other
    streams and the start of this training. Two coincidences remain: the training split of another
    `environment.seed`, and this training 2**20 - 1 missions or rounds later, use the same seed.

    `seed` is `environment.seed`, `made` the number of missions flown or rounds made, and `number`
    the index of the stream, such as the rank.
    """
    other = (seed + 1 + (made + 1) * _STEP % (MAX_SEED - 1)) % MAX_SEED
    generator.manual_seed(split_seed(other, "training", number))


def report_other_streams(
    state: Mapping[str, Any], device: torch.device, ranks: Ranks, report: Callable[[str], None]
) -> None:
    """Report why a resumed training flies other missions than without the interruption."""
    if state["device"] != device.type:
        report(
            f"warning: the run began on {state['device']} and continues on {device.type} with "
            "new random numbers"
        )
        return
    before = state.get("ranks", 1)
    if before != ranks.count:
        report(
            f"warning: the run continues on {ranks.count} rank{'s' if ranks.count > 1 else ''} "
            f"after {before}: from now on the missions differ from those of {before} "
            f"rank{'s' if before > 1 else ''}"
        )
