"""Optimiser steps: clipped, and skipped if numbers are not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

DescentRule = Callable[[Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor, Tensor]]
"""Of (loss, norm, halted, maximum_norm): what `descend` divides by, leaves and calls bad."""


def make_adam(network: nn.Module, rate: float, recorded: bool) -> torch.optim.Optimizer:
    """Return Adam for what a network learns; `recorded` in CUDA graphs, its rate is a tensor."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    device = parameters[0].device
    return torch.optim.Adam(
        parameters,
        lr=torch.tensor(rate, device=device) if recorded else rate,
        fused=device.type in ("cpu", "cuda"),
        capturable=recorded,
    )


def load_scaler(scaler: torch.amp.GradScaler, state: Mapping[str, Any]) -> None:
    """Load a scaler's state; it stays fresh where either run has none, without float16."""
    if scaler.is_enabled() and state:
        scaler.load_state_dict(dict(state))


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimiser's state into its parameters' order of memory; rates stay as they are.

    A run may go on on another device, whose networks have another order.
    """
    groups = optimizer.state_dict()["param_groups"]  # the configuration may have been changed
    optimizer.load_state_dict({**state, "param_groups": groups})
    for parameter, known in optimizer.state.items():
        for name, value in known.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                known[name] = torch.empty_like(parameter).copy_(value)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters for the next steps."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # which recordings read
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def descend(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    maximum_norm: float,
    halted: Tensor | None = None,
    decision: DescentRule | None = None,
) -> tuple[Tensor, Tensor]:
    """Make one optimiser step, unless loss or gradient is not finite, or it is halted.

    The device decides and the host never waits: a fused optimiser leaves everything unchanged if
    its `found_inf` is 1, and divides gradients by its `grad_scale`, so that clipping needs no pass
    of its own. Optimisers that are not fused (`meta`) make every step. Overflowing gradients of
    scaled float16 losses are expected; the scaler skips them and lowers its scale.

    Args:
        loss: whose gradients the network has; parameters without one stay as they are.
        optimizer: of the network, one group of parameters.
        scaler: of the loss.
        maximum_norm: gradients are scaled down to it.
        halted: above 0 to leave the network as it is.
        decision: what a fused optimiser gets, from fewer kernels than plain operators.

    Returns:
        The gradient norm before clipping, and 1 where numbers were not finite, else 0.
    """
    (group,) = optimizer.param_groups
    parameters = [p for p in group["params"] if p.grad is not None]
    if scaler.is_enabled() or not group["fused"]:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, maximum_norm)
        bad = ~(loss if scaler.is_enabled() else loss + norm).isfinite()
        scaler.step(optimizer)
    else:
        norm = _norm([p.grad for p in parameters])
        scale, leave, bad = (decision or decide)(loss, norm, halted, maximum_norm)
        _step(optimizer, parameters, scale.float(), leave.float())
    return norm, bad.float()


def decide(
    loss: Tensor, norm: Tensor, halted: Tensor | None, maximum_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what to divide gradients by, whether to leave the network, and whether all is bad."""
    bad = ~(loss + norm).isfinite()
    leave = bad if halted is None else bad | (halted > 0)
    return ((norm + 1e-6) / maximum_norm).clamp(min=1), leave, bad


def _norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients: few kernels on a GPU, few passes over them on a CPU."""
    if gradients[0].device.type != "cpu":
        return nn.utils.get_total_norm(gradients)
    flat = [gradient.flatten() for gradient in gradients]
    return torch.stack([torch.dot(g, g) for g in flat]).sum().sqrt()


@torch.no_grad()
def _step(
    optimizer: torch.optim.Optimizer,
    parameters: list[Tensor],
    grad_scale: Tensor,
    found_inf: Tensor,
) -> None:
    """Make a step of fused Adam or AdamW by its function, without the hooks of `Optimizer.step`."""
    (group,) = optimizer.param_groups
    states = [optimizer.state[p] for p in parameters]
    for parameter, state in zip(parameters, states, strict=True):
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
    beta1, beta2 = group["betas"]
    adam(
        parameters,
        [p.grad for p in parameters if p.grad is not None],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        fused=True,
        capturable=group["capturable"],
        grad_scale=grad_scale,
        found_inf=found_inf,
        amsgrad=group["amsgrad"],
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        decoupled_weight_decay=group["decoupled_weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )
