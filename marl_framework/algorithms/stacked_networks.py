"""Networks of one shape as one, the weights of each in a row: a kernel serves all of them.

Convolutions become grouped ones by `torch.func.vmap`, as in horizontally fused training (Wang et
al. 2021, HFTA).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from marl_framework.algorithms.optimisers import adam_states, decide
from marl_framework.networks.convolutional import without_kernels


class StackedNetworks:
    """The weights of L networks, and what Adam knows of them; `store` writes them back.

    Args:
        networks: alike in all but their weights; the last layer of each, `head`, runs in float32.
        precision: of all other layers.
        optimizers: Adam of each network; none for networks that do not learn.
        rates: learning rate of each optimiser.

    Attributes:
        weights: [L, P] float32, those of heads last.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        precision: torch.dtype,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        rates: Sequence[float] = (),
    ) -> None:
        self._networks, self._optimizers = networks, optimizers
        self._alike = without_kernels(networks[0])
        self._precision = precision
        shapes = {name: p.shape for name, p in self._alike.named_parameters()}
        self._names = sorted(shapes, key=lambda name: "head" in name.split("."))
        self._shapes = [shapes[name] for name in self._names]
        self._sizes = [shape.numel() for shape in self._shapes]
        hidden = sum("head" not in name.split(".") for name in self._names)
        self._halves = sum(self._sizes[:hidden]), sum(self._sizes[hidden:])
        self._hidden = hidden
        self.weights = torch.empty(())
        if optimizers:
            device = next(self._alike.parameters()).device
            self._rates = torch.tensor(rates, dtype=torch.float64, device=device)
            (self._group,) = optimizers[0].param_groups
        self.load()

    def load(self) -> None:
        """Take the weights as the networks and optimisers have them."""
        self.weights = torch.stack([_row(row) for row in self._rows()])
        states = self._states()
        if states:
            self._steps = torch.stack([row[0]["step"] for row in states])
            self._mean, self._square = (
                torch.stack([_row([state[name] for state in row]) for row in states])
                for name in ("exp_avg", "exp_avg_sq")
            )

    @torch.no_grad()
    def store(self) -> None:
        """Give networks and optimisers what was learned."""
        states = self._states()
        places, values = [p for row in self._rows() for p in row], [*self._parts(self.weights)]
        for name, found in (("exp_avg", "_mean"), ("exp_avg_sq", "_square")) if states else ():
            places += [state[name] for row in states for state in row]
            values += self._parts(getattr(self, found))
        for row, step in zip(states, self._steps if states else (), strict=True):
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

    def _parts(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the parameters that rows [L, P] hold."""
        for row in rows:
            for part, shape in zip(row.split(self._sizes), self._shapes, strict=True):
                yield part.view(shape)

    # Passes -------------------------------------------------------------------------------

    def run(self, weights: Tensor, maps: Tensor) -> Tensor:
        """Return the outputs of one network [B, …] of maps [B, C, X, Y].

        Args:
            weights: a row of `weights`; to be used inside `vmap`.
            maps: its input.
        """
        hidden, head = weights.split(self._halves)
        parts = hidden.to(self._precision).split(self._sizes[: self._hidden])
        parts += head.split(self._sizes[self._hidden :])
        triples = zip(self._names, parts, self._shapes, strict=True)
        given = {name: part.view(shape) for name, part, shape in triples}
        outputs: Tensor = functional_call(self._alike, given, (maps.to(self._precision),))
        return outputs

    @torch.no_grad()
    def __call__(self, maps: Tensor) -> Tensor:
        """Return the outputs of all networks [L, B, …] of maps [L, B, C, X, Y]."""
        outputs: Tensor = vmap(self.run)(self.weights, maps)
        return outputs

    # Learning -----------------------------------------------------------------------------

    @torch.no_grad()
    def descend(
        self,
        gradients: Tensor,
        losses: Tensor,
        maximum_norm: float,
        rate: float,
    ) -> tuple[Tensor, Tensor]:
        """Make a step of each optimiser; see `optimisers.descend`.

        Args:
            gradients: of the weights, [L, P].
            losses: [L].
            maximum_norm: gradients are scaled down to it.
            rate: what the configured learning rates are multiplied by.

        Returns:
            The gradient norms before clipping [L], and 1 where numbers were not finite, else 0.
        """
        norms = torch.linalg.vector_norm(gradients, dim=1)
        scale, leave, bad = decide(losses, norms, None, maximum_norm)
        counts = (~leave).to(gradients.dtype)
        goes = counts.unsqueeze(1)
        gradients = torch.where(leave.unsqueeze(1), 0.0, gradients / scale.unsqueeze(1))
        beta1, beta2 = self._group["betas"]
        self._steps += counts
        made = self._steps.double().clamp(min=1)
        self._mean.lerp_(gradients, (1 - beta1) * goes)
        self._square.lerp_(gradients.square(), (1 - beta2) * goes)
        first = self._rates * rate / (1 - beta1**made) * counts
        second = (1 - beta2**made).sqrt()
        first, second = (each.to(gradients.dtype).unsqueeze(1) for each in (first, second))
        step = self._mean / (self._square.sqrt() / second + self._group["eps"])
        self.weights = self.weights - first * step
        return norms, bad.to(gradients.dtype)


def _row(parameters: Sequence[Tensor]) -> Tensor:
    """Return the numbers of parameters one after the other."""
    return torch.cat([p.detach().flatten() for p in parameters])
