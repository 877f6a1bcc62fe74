"""The channel of forbidden moves."""

from itertools import product

import pytest
import torch

from marl_framework.algorithms.batch import Transitions
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries
from tests.small import small_config


@pytest.mark.parametrize("actions", [4, 6, 9, 27])
def test_it_shows_the_share_of_moves_that_are_forbidden(actions: int) -> None:
    obstacles, options = {"obstacles": {"number": 5}}, {"observation": {"no_fly": True}}
    config = small_config(
        actions=actions, agents=2, dims=(30.0, 20.0), constraints=obstacles, **options
    )
    env = MissionEnvironment(config, 3, "cpu")
    state = env.reset(env.draw_reset())
    maps = ObservationBuilder(env.config, env.lattice, env.camera).actor(state)
    absolute = maps[:, :, env.config.observation.actor_channels.index("no_fly")]
    x, y, z = env.lattice.shape
    table, values = env.lattice.table(), set()
    for e, i, j in product(range(3), range(x), range(y)):
        known = [(k, a) for k in range(z) for a in range(actions) if table[i, j, k, a]]
        closed = sum(not state.moves[e, i, j, k, a] for k, a in known) / len(known)
        values.add(round(closed, 3))
        for n in range(2):
            assert absolute[e, n, i, j].item() == pytest.approx(closed, abs=1e-6)
    assert {0.0} < values  # some are closed, not all


def test_it_turns_as_moves_do() -> None:
    """The moves of all places, turned one by one, close as much as the turned channel shows."""
    obstacles = {"obstacles": {"number": 6}}
    env = MissionEnvironment(small_config(agents=1, constraints=obstacles), 3, "cpu")
    moves, table = env.reset(env.draw_reset()).moves[0, :, :, 1], env.lattice.table()[:, :, 1]
    cells = 49
    share = moves.sum(-1) / table.sum(-1)
    numbers = torch.arange(cells, dtype=torch.float32).view(7, 7)
    batch = Transitions(
        observations=torch.stack((numbers, share)).expand(cells, 2, 7, 7),
        critic_maps=torch.zeros(cells, 5, 7, 7),
        actions=torch.zeros(cells, dtype=torch.int64),
        masks=moves.flatten(0, 1),
        old_probabilities=torch.zeros(cells, 6),
        targets=torch.zeros(cells),
    )
    symmetries = Symmetries(env.config, "cpu")
    assert len(symmetries) == 8
    for which in range(8):
        turned = symmetries.apply(batch, torch.full((cells,), which))
        sources, shown = turned.observations[0]
        there = turned.masks[sources.long()]
        assert not (there & ~table).any()  # nothing leads off the lattice
        torch.testing.assert_close(there.sum(-1) / table.sum(-1), shown)
