"""Planners expect the error rates that UAVs have learned (`sensor.model.adapt`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.state import MissionState
from marl_framework.planners.protocol import Decision
from marl_framework.planners.registry import make_planner
from tests.mission.asymmetric import ASYMMETRIC
from tests.planners.missions import flown
from tests.small import small_config
from tests.teams import save_predictor

CAUTIONS = (0.2, 0.6, 1.0)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("policy", ["search", "information_gain"])
def test_a_learned_caution_is_as_a_configured_one(
    tmp_path: Path, policy: str, compiled: bool
) -> None:
    predictor = str(save_predictor(tmp_path / "predictor.pt", small_config()))

    def decide(state: MissionState, caution: float | None) -> Decision:
        env = MissionEnvironment(config(caution), len(state.t), "cpu", "test")
        return make_planner(policy, env).act(state, torch.Generator())

    def config(caution: float | None) -> Config:
        model = {**ASYMMETRIC["model"], "adapt": caution is None}
        baselines = {"search": {"predictor": predictor, "rate_actions": True}}
        return small_config(
            sensor={**ASYMMETRIC, "model": model},
            mapping={"caution": caution or 1.0},
            experiment={"baselines": baselines},
            compute={"compile": compiled},
        )

    state = flown(MissionEnvironment(config(None), 3, "cpu", "test"))
    state.caution.copy_(torch.tensor(CAUTIONS).unsqueeze(1).expand_as(state.caution))
    learned = decide(state, None)
    assert learned.scores is not None
    for e, caution in enumerate(CAUTIONS):
        configured = decide(state[e : e + 1], caution)
        torch.testing.assert_close(learned.scores[e], configured.scores[0], rtol=1e-4, atol=1e-4)
        assert torch.equal(learned.actions[e], configured.actions[0])
    assert not torch.allclose(learned.scores[0], decide(state[:1], 1.0).scores[0], rtol=0.1)
