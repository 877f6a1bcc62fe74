"""The operators around Triton kernels mutate and return what their schemas say.

Not collected: `test_triton.py` runs this file with `TRITON_INTERPRET=1`.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from marl_framework.algorithms.batch import Transitions
from marl_framework.algorithms.judging import TritonLosses
from marl_framework.kernels.area import part_sums
from marl_framework.kernels.policies import choose_actions
from marl_framework.kernels.versions import Version
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.fusion import Fusion
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries
from tests.small import small_config

assert os.environ.get("TRITON_INTERPRET") == "1"

OPERATORS = {
    "read_windows", "fuse_own", "fuse_global", "draw_actor_maps", "draw_critic_maps",
    "choose_actions", "sum_parts", "take_turned", "policy_advantages", "actor_gradient",
    "critic_gradient", "descent_rule",
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """Keeps the arguments of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "marl_framework":
            copies = tree_map(lambda a: a.clone() if isinstance(a, Tensor) else a, args)
            self.calls[func.overloadpacket._qualified_op_name.split("::")[1]] = func, copies
        return func(*args, **(kwargs or {}))


def test_operators_keep_the_promises_of_their_schemas() -> None:
    config = small_config(compute={"compile": False}, dims=(10.0, 10.0), pixels=(6, 6), agents=2)
    env = MissionEnvironment(config, 2, "cpu")
    state, draws = env.reset(env.draw_reset()), env.draw_step()
    builder = ObservationBuilder(config, env.lattice, env.camera, Version.TRITON)
    actions, mask = torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2, 6, dtype=torch.bool)
    logits, uniform, probabilities = torch.rand(3, 2, 2, 6)
    floor, one = torch.tensor(0.1, dtype=torch.float64), torch.ones(())
    losses = TritonLosses(torch.device("cpu"))
    with Recorder() as recorder:
        fusion = Fusion(config, env.camera, Version.TRITON)
        fusion.update(state, draws.sensor, torch.ones(2, dtype=torch.bool))
        seen, own = builder.actor(state), builder.critic_only(state, actions)
        missions = state.positions, state.moves, state.active, env.lattice.offsets
        choose_actions(logits, uniform, floor, *missions, actions, mask, probabilities)
        part_sums(Version.TRITON, torch.rand(2, 5, 4), torch.tensor([2, 5]), torch.tensor([4]))
        flown = Transitions(
            seen.flatten(0, 1),
            own.flatten(0, 1),
            actions.flatten(),
            mask.flatten(0, 1),
            probabilities.flatten(0, 1),
            targets=torch.rand(4),
        )
        index = torch.arange(4)
        batch = Symmetries(config, "cpu", in_kernel=True).take(flown, index, index)
        outputs = logits.flatten(0, 1)
        policy, _, advantages = losses.judge(outputs, batch, outputs, floor, batch.targets)
        losses.actor(policy, batch, advantages, floor, 0.1, 0.2)
        losses.critic(outputs, batch)
        losses.decide(one, one, None, 10.0)
    assert set(recorder.calls) == OPERATORS
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator, arguments in recorder.calls.values():
        torch.library.opcheck(operator, arguments, test_utils=tests)
