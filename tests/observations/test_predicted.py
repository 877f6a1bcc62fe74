"""Channels that show what a trained map predictor expects."""

from pathlib import Path
from typing import Any

import pytest
import torch

from marl_framework.algorithms.coma import COMAWrapper
from marl_framework.config.errors import ConfigError
from marl_framework.config.model import Config
from marl_framework.exporting.portable import PortableTeam
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import predictor_state
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.search.models import PredictedMap
from marl_framework.runs.checkpoint import save_checkpoint
from marl_framework.stage_timer import StageTimer
from marl_framework.training.trainer import Trainer
from tests.small import random_actions, small_config

ON = {"predicted": True, "centred_predicted": True, "global_predicted": True}


@pytest.fixture
def predictor(tmp_path: Path) -> Path:
    torch.manual_seed(4)
    file = tmp_path / "predictor.pt"
    save_checkpoint(file, predictor_state(MapPredictor(8), 8))
    return file


def config_with(predictor: Path, **sections: Any) -> Config:
    networks = {name: {"conv_channels": 8, "hidden_dim": 8} for name in ("actor", "critic")}
    return small_config(
        observation=ON, networks={**networks, "predictor": str(predictor)}, **sections
    )


def test_they_show_what_the_predictor_expects_of_own_and_global_beliefs(predictor: Path) -> None:
    config = config_with(predictor)
    env = MissionEnvironment(config, 2, "cpu")
    state = env.reset()
    env.step(state, random_actions(env, state, env.generator))
    builder = ObservationBuilder(config, env.lattice, env.camera)
    actions = torch.zeros(2, 3, dtype=torch.int64)
    critic = builder.critic(state, actions, builder.actor(state))
    seen = dict(zip(builder.critic_channels, critic.unbind(2), strict=True))
    torch.manual_seed(4)
    model = PredictedMap(LatticeView(config, env.lattice, PARTS), MapPredictor(8), "float32")
    expected = model.left(state)
    torch.testing.assert_close(seen["predicted"], expected)
    x, y = env.lattice.shape[:2]
    for e in range(2):
        shared = model.of(state.global_belief[e : e + 1])[0]
        for n, (ix, iy, _) in enumerate(state.positions[e].tolist()):
            centre = seen["centred_predicted"][e, n, x // 2, y // 2]
            torch.testing.assert_close(centre, expected[e, n, ix, iy])
            torch.testing.assert_close(seen["global_predicted"][e, n], shared)


def test_a_team_learns_and_flies_with_them(predictor: Path) -> None:
    learning = {"batch_size": 10, "batch_number": 2, "data_passes": 1, "symmetries": True}
    config = config_with(predictor, learning=learning)
    trainer = Trainer(config, torch.device("cpu"))
    before = [weights.clone() for weights in trainer.algorithm.modules["actor"].parameters()]
    trainer.make_steps(StageTimer(torch.device("cpu")))
    after = list(trainer.algorithm.modules["actor"].parameters())
    assert not all(map(torch.equal, before, after))

    env = MissionEnvironment(config, 4, "cpu")
    coma = COMAWrapper(config, config.network_sizes, torch.device("cpu"))
    builder = ObservationBuilder(config, env.lattice, env.camera)
    state = env.reset()
    chosen = LearnedPlanner(coma.act, builder, env.lattice).act(state, env.generator).actions
    team = PortableTeam(coma.actor, config, "cpu")
    assert torch.equal(team(*(getattr(state, name) for name in team.inputs))[0], chosen)


@pytest.mark.parametrize("networks", [{}, {"predictor": None}])  # as runs saved it once
def test_without_a_name_the_predictor_is_that_of_the_library(networks: dict[str, None]) -> None:
    config = small_config(observation={"global_predicted": True}, networks=networks)
    assert config.networks.predictor == "pretrained:predictor"
    env = MissionEnvironment(config, 1, "cpu")
    ObservationBuilder(config, env.lattice, env.camera)


def test_a_predictor_that_is_missing_is_refused(tmp_path: Path) -> None:
    config = config_with(tmp_path / "none")
    env = MissionEnvironment(config, 1, "cpu")
    with pytest.raises(ConfigError, match=r"networks\.predictor: .*none"):
        ObservationBuilder(config, env.lattice, env.camera)
