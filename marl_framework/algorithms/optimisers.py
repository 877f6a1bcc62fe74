"""Training of one network: gradients over micro-batches and ranks, and clipped Adam steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from marl_framework.algorithms.ranks import (
    exchange_gradients,
    mean_over_ranks,
    with_shared_gradients,
)
from marl_framework.config.learning import OptimizerConfig
from marl_framework.kernels.policies import NORM_FLOOR

DescentRule = Callable[[Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor, Tensor]]
"""Signature of `step_rule` and its kernel: (loss, norm, halted, maximum_norm)."""


class Step(NamedTuple):
    """Result of an update: loss over all ranks, unclipped gradient norm, 1 if not finite."""

    loss: Tensor
    norm: Tensor
    bad: Tensor


class Learner:
    """Trainer of one network with Adam.

    All networks share the `scaler`. `rule` is `step_rule` or its kernel; `recorded` says whether
    updates are recorded as CUDA graphs.

    Attributes:
        network: the same network, but averages gradients over all ranks.
        rate: configured learning rate.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: OptimizerConfig,
        device: torch.device,
        scaler: torch.amp.GradScaler,
        rule: DescentRule,
        recorded: bool,
    ) -> None:
        self.network = with_shared_gradients(network, device)
        self.rate = settings.learning_rate
        self.optimizer = make_adam(network, self.rate, recorded)
        self._max_norm, self._scaler, self._rule = settings.gradient_norm, scaler, rule

    def backward(self, sizes: Sequence[int], compute_loss: Callable[[int], Tensor]) -> Tensor:
        """Compute gradients of a batch's mean loss over all ranks; return this loss.

        `sizes` are the numbers of transitions in the micro-batches; `compute_loss` returns the mean
        loss of the micro-batch with an index.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses, last = [], len(sizes) - 1
        for index, size in enumerate(sizes):
            with exchange_gradients(self.network, now=index == last):
                loss = compute_loss(index)
                if last:  # weight each micro-batch by its share of the batch
                    loss = loss * (size / sum(sizes))
                self._scaler.scale(loss).backward()
            losses.append(loss.detach())
        return mean_over_ranks(torch.stack(losses).sum() if last else losses[0])

    def step(self, loss: Tensor, halted: Tensor | None = None) -> Step:
        """Apply the gradients of `loss`, unless `halted` is above 0; see `apply_gradients`."""
        options = self._max_norm, halted, self._rule
        return Step(loss, *apply_gradients(loss, self.optimizer, self._scaler, *options))


def make_adam(network: nn.Module, rate: float, recorded: bool) -> torch.optim.Optimizer:
    """Return Adam for trainable parameters; if `recorded` in CUDA graphs, its rate is a tensor."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    device = parameters[0].device
    optimizer = torch.optim.Adam(
        parameters,
        lr=torch.tensor(rate, device=device) if recorded else rate,
        fused=device.type in ("cpu", "cuda"),
        capturable=recorded,
    )
    set_rate(optimizer, rate)
    return optimizer


def load_scaler(scaler: torch.amp.GradScaler, state: Mapping[str, Any]) -> None:
    """Load a gradient scaler's state if both runs use float16."""
    if scaler.is_enabled() and state:
        scaler.load_state_dict(dict(state))


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimiser's state in the memory layout of the parameters; keep the learning rate."""
    groups = optimizer.state_dict()["param_groups"]  # keeps the current configuration
    optimizer.load_state_dict({**state, "param_groups": groups})
    for parameter, known in optimizer.state.items():
        for name, value in known.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                known[name] = torch.empty_like(parameter).copy_(value)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters for the next steps.

    On a GPU the rate is rounded to float32, so that eager and recorded steps are equal.
    """
    rounded = float(torch.tensor(rate, dtype=torch.float32, device="cpu"))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # CUDA graphs read this tensor
            group["lr"].fill_(rate)
        else:
            group["lr"] = rounded if group["params"][0].device.type == "cuda" else rate


def apply_gradients(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    maximum_norm: float,
    halted: Tensor | None = None,
    rule: DescentRule | None = None,
) -> tuple[Tensor, Tensor]:
    """Make one optimiser step; skip it if loss or gradient is not finite, or if it is halted.

    The host never waits for the device: a fused optimiser divides gradients by its `grad_scale` and
    skips the step if its `found_inf` is 1. Optimisers that are not fused (device `meta`) make every
    step. With float16, the scaler skips steps with overflowing gradients.

    `loss` is that of the stored gradients; parameters without a gradient do not change. A scalar
    `halted` above 0 skips the step, except in float16. `rule` is `step_rule` or its kernel. Returns
    the gradient norm before clipping, and 1 if loss or norm was not finite, else 0.
    """
    (group,) = optimizer.param_groups
    parameters = [p for p in group["params"] if p.grad is not None]
    if scaler.is_enabled() or not group["fused"]:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, maximum_norm)
        bad = ~(loss if scaler.is_enabled() else loss + norm).isfinite()
        scaler.step(optimizer)
    else:
        norm = gradient_norm([p.grad for p in parameters])
        scale, skip, bad = (rule or step_rule)(loss, norm, halted, maximum_norm)
        vars(optimizer).update(grad_scale=scale.float(), found_inf=skip.float())
        optimizer.step()
    return norm, bad.float()


def step_rule(
    loss: Tensor, norm: Tensor, halted: Tensor | None, maximum_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients' divisor, whether to skip, and whether loss or norm is not finite."""
    bad = ~(loss + norm).isfinite()
    skip = bad if halted is None else bad | (halted > 0)
    return ((norm + NORM_FLOOR) / maximum_norm).clamp(min=1), skip, bad


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm over all gradients, by the fastest way on a GPU or a CPU."""
    if gradients[0].device.type != "cpu":
        return nn.utils.get_total_norm(gradients)
    return torch.stack([torch.dot(g, g) for g in map(_flat, gradients)]).sum().sqrt()


def _flat(tensor: Tensor) -> Tensor:
    """Return all elements in memory order; a view unless the tensor has gaps."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).flatten()
