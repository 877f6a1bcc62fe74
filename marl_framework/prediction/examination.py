"""Looks at a trained predictor in missions that it has not learned from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marl_framework.config.mission import SimulationConfig
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.planners.protocol import Planner
from marl_framework.planners.search.models import PredictedMap
from marl_framework.prediction.calibration import Reliability
from marl_framework.prediction.figures import Picture
from marl_framework.prediction.samples import Samples, states


@torch.no_grad()
def examine(
    worlds: Sequence[MissionEnvironment], view: LatticeView, model: PredictedMap, planner: Planner
) -> tuple[list[Picture], Reliability]:
    """Fly missions; return a picture of each world, and how reliable the predictions were.

    A picture shows the first UAV of the first mission after half the moves.

    Args:
        worlds: environments of validation missions.
        view: their lattice.
        model: predicts.
        planner: flies.
    """
    device = worlds[0].device
    generator = torch.Generator(device).manual_seed(0)
    reliability = Reliability(device)
    pictures: list[Picture] = []
    for world in worlds:
        for move, state in enumerate(states(world, planner, generator)):
            seen, target = Samples.of(view, state).batch(slice(None), 0)
            predicted = model.predict(seen)
            reliability.add(seen.coarse[:, 1], predicted, target)
            if move == world.episode_length // 2:
                pictures.append(
                    Picture(
                        title=_title(world.config.sensor.simulation),
                        belief=state.beliefs[0, 0].clone(),
                        predicted=view.spread(predicted[0]),
                        realised=view.spread(target[0]),
                        truth=state.truth[0].clone(),
                    )
                )
    return pictures, reliability


def _title(simulation: SimulationConfig) -> str:
    rough = f" {simulation.cluster_radius:g}" if "random_field" in simulation.kinds else ""
    return ", ".join(simulation.kinds) + rough
