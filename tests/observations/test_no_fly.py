"""The channels that show where nobody may fly."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import shapely
import torch
from torch import Tensor

from marl_framework.algorithms.batch import Transitions
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.symmetry import Symmetries
from tests.mission.zones import feature, write_zones, zone_config

SEEN = {"no_fly": True, "centred_no_fly": True}


def flown(path: Path | None, number: int, **options: object) -> tuple[MissionEnvironment, Tensor]:
    """Missions that have started, and the two channels [E, N, 2, X, Y]."""
    config = zone_config(path, number, observation=SEEN, **options)
    env = MissionEnvironment(config, 3, "cpu")
    state = env.reset(env.draw_reset())
    builder = ObservationBuilder(config, env.lattice, env.camera)
    places = [builder.actor_channels.index(name) for name in SEEN]
    return env, builder.actor(state)[:, :, places]


@pytest.mark.parametrize("actions", [4, 6, 9, 27])
def test_they_show_the_share_of_moves_that_are_forbidden(actions: int) -> None:
    env, _ = flown(None, 5, actions=actions, agents=2, dims=(30.0, 20.0))
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


def test_a_place_closed_at_all_altitudes_is_one(tmp_path: Path) -> None:
    path = write_zones(tmp_path / "z.json", feature(shapely.box(9, 9, 16, 11)))
    _, maps = flown(path, 0, agents=1)
    assert (maps[:, 0, 0, 2:4, 2] == 1).all()
    assert (maps[:, 0, 0, 1, 2] > 0).all()  # one neighbour is closed
    assert (maps[:, 0, 0, 1, 2] < 0.5).all()
    assert (maps[:, 0, 0, 5:] == 0).all()


def test_they_turn_as_moves_do() -> None:
    """The moves of all places, turned one by one, close as much as the turned channel shows."""
    env, _ = flown(None, 6, agents=1)
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
