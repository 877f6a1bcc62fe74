"""Networks of one shape as one, the weights of each in a row: a kernel serves all of them.

Convolutions become grouped ones by `torch.func.vmap`, as in horizontally fused training (Wang et
al. 2021, HFTA).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from marl_framework.algorithms.optimisers import DescentRule, adam_states
from marl_framework.networks.convolutional import without_kernels


class StackedNetworks:
    """The weights of L networks, and what Adam knows of them; `store` writes them back.

    Args:
        networks: alike in all but their weights; the last layer of each, `head`, runs in float32.
        precision: of all other layers.
        optimizers: fused Adam of each network; none for networks that do not learn.

    Attributes:
        weights: [L, P] float32, those of heads last.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        precision: torch.dtype,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self._networks, self._optimizers = networks, optimizers
        self._alike = without_kernels(networks[0])
        self._precision = precision
        shapes = {name: p.shape for name, p in self._alike.named_parameters()}
        self._names = sorted(shapes, key=_is_head)
        self._shapes = [shapes[name] for name in self._names]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._hidden = sum(not _is_head(name) for name in self._names)
        self.load()

    def load(self) -> None:
        """Take the weights as the networks and optimisers have them."""
        states = self._states()
        learns = bool(states)
        self.weights = torch.stack([_row(row) for row in self._rows()]).requires_grad_(learns)
        if learns:
            self._steps = torch.stack([row[0]["step"] for row in states])
            self._mean, self._square = (
                torch.stack([_row([state[name] for state in row]) for row in states])
                for name in ("exp_avg", "exp_avg_sq")
            )

    @torch.no_grad()
    def store(self) -> None:
        """Give networks and optimisers what was learned."""
        states = self._states()
        places = [parameter for row in self._rows() for parameter in row]
        values = [part for row in self.weights for part in self._parts(row)]
        for name, rows in (("exp_avg", self._mean), ("exp_avg_sq", self._square)):
            places += [state[name] for row in states for state in row]
            values += [part for row in rows for part in self._parts(row)]
        for row, step in zip(states, self._steps, strict=True):
            places += [state["step"] for state in row]
            values += [step] * len(row)
        torch._foreach_copy_(places, values)

    def _rows(self) -> list[list[Tensor]]:
        """Return the parameters of each network."""
        known = [dict(network.named_parameters()) for network in self._networks]
        return [[each[name] for name in self._names] for each in known]

    def _states(self) -> list[list[dict[str, Tensor]]]:
        """Return what the optimisers know of them."""
        pairs = zip(self._optimizers, self._rows(), strict=False)
        return [adam_states(optimizer, row) for optimizer, row in pairs]

    def _parts(self, row: Tensor) -> Iterator[Tensor]:
        """Yield the parameters that a row [P] holds."""
        for part, shape in zip(row.split(self._sizes), self._shapes, strict=True):
            yield _shaped(part, shape)

    def __call__(self, maps: Tensor) -> Tensor:
        """Return the outputs of all networks [L, B, …] of maps [L, B, C, X, Y]."""
        # In this order of memory, grouped convolutions find channels last.
        maps = maps.to(self._precision).permute(1, 3, 4, 0, 2).contiguous()
        outputs: Tensor = vmap(self._run)(self.weights, maps.permute(3, 0, 4, 1, 2))
        return outputs

    def _run(self, weights: Tensor, maps: Tensor) -> Tensor:
        """Return the outputs of one network."""
        sizes, hidden = self._sizes, self._hidden
        body, head = weights.split([sum(sizes[:hidden]), sum(sizes[hidden:])])
        parts = (*body.to(self._precision).split(sizes[:hidden]), *head.split(sizes[hidden:]))
        given = {
            name: _shaped(part, shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }
        outputs: Tensor = functional_call(self._alike, given, (maps,))
        return outputs

    def descend(
        self, losses: Tensor, maximum_norm: float, decide: DescentRule
    ) -> tuple[Tensor, Tensor]:
        """Make a step of each optimiser; see `optimisers.descend`.

        Args:
            losses: [L].
            maximum_norm: gradients are scaled down to it.
            decide: what optimisers get.

        Returns:
            The gradient norms before clipping [L], and 1 where numbers were not finite, else 0.
        """
        (gradients,) = torch.autograd.grad(losses.sum(), self.weights)
        losses = losses.detach()
        norms = torch.linalg.vector_norm(gradients, dim=1)
        scale, leave, bad = vmap(lambda loss, norm: decide(loss, norm, None, maximum_norm))(
            losses, norms
        )
        leave, counts = leave.float(), 1 - leave.float()
        self._steps += counts
        rows = (self.weights.detach(), gradients, self._mean, self._square)
        for number, optimizer in enumerate(self._optimizers):
            (group,) = optimizer.param_groups
            beta1, beta2 = group["betas"]
            weights, gradient, mean, square = ([row[number]] for row in rows)
            torch._fused_adam_(
                weights,
                gradient,
                mean,
                square,
                [],
                [self._steps[number]],
                lr=float(group["lr"]),
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=group["amsgrad"],
                maximize=group["maximize"],
                grad_scale=scale[number].float(),
                found_inf=leave[number],
            )
        return norms, bad.float()


def _is_head(name: str) -> bool:
    """Return whether a parameter is one of the last layer."""
    return "head" in name.split(".")


def _row(parameters: Sequence[Tensor]) -> Tensor:
    """Return the numbers of parameters one after the other, those of kernels with channels last."""
    return torch.cat(
        [(p.permute(0, 2, 3, 1) if p.dim() == 4 else p).detach().flatten() for p in parameters]
    )


def _shaped(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Return a parameter as `_row` holds it."""
    if len(shape) != 4:
        return numbers.view(shape)
    out, channels, x, y = shape
    return numbers.view(out, x, y, channels).permute(0, 3, 1, 2)
