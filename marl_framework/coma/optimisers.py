"""The optimisers' steps: clipped, and left out where numbers are not finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def make_adam(network: nn.Module, rate: float, recorded: bool) -> torch.optim.Optimizer:
    """Return Adam for a network; `recorded` in CUDA graphs, its learning rate is a tensor."""
    device = next(network.parameters()).device
    return torch.optim.Adam(
        network.parameters(),
        lr=torch.tensor(rate, device=device) if recorded else rate,
        fused=device.type in ("cpu", "cuda"),
        capturable=recorded,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters for the next steps."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # which recordings read
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def descend(
    loss: Tensor,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    maximum_norm: float,
    halted: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Make one optimiser step, unless loss or gradient is not finite, or it is halted.

    The device decides, the host never waits: fused optimisers leave everything as it was where
    their `found_inf` is 1, and divide gradients by their `grad_scale` as they go over them, so
    that clipping needs no pass of its own; those that are not fused (`meta`) make every step.
    Overflowing gradients of scaled float16 losses are no reason to worry, the scaler skips them
    by itself and lowers its scale.

    Args:
        loss: whose gradients the network has.
        network: to be updated.
        optimizer: of the network.
        scaler: of the loss.
        maximum_norm: gradients are scaled down to it.
        halted: above 0 to leave the network as it is.

    Returns:
        The gradient norm before clipping, and 1 where numbers were not finite, else 0.
    """
    bad = ~loss.isfinite()
    if scaler.is_enabled() or not optimizer.defaults["fused"]:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(network.parameters(), maximum_norm)
        if not scaler.is_enabled():
            bad = bad | ~norm.isfinite()
    else:
        gradients = (p.grad for p in network.parameters())
        norm = nn.utils.get_total_norm([g for g in gradients if g is not None])
        bad = bad | ~norm.isfinite()
        leave = bad if halted is None else bad | (halted > 0)
        scale = ((norm + 1e-6) / maximum_norm).clamp(min=1)
        vars(optimizer).update(grad_scale=scale.float(), found_inf=leave.float())
    scaler.step(optimizer)
    return norm, bad.float()
