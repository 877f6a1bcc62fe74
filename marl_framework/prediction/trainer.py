"""Trains a map predictor on missions that it flies itself, with the search planner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.optimisers import load_optimizer, load_scaler
from marl_framework.config.errors import ConfigError, found_at
from marl_framework.config.model import Config
from marl_framework.device import grad_scaler, resolve_precision
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.networks.convolutional import place
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.predictor import predictor_state
from marl_framework.planners.random_flight import RandomPlanner
from marl_framework.planners.search.models import PredictedMap
from marl_framework.planners.search.planner import SearchPlanner, make_search
from marl_framework.prediction.calibration import Reliability
from marl_framework.prediction.examination import examine
from marl_framework.prediction.figures import Picture, predictions_figure, reliability_figure
from marl_framework.prediction.samples import Samples, fly
from marl_framework.runs.folder import RunFolder
from marl_framework.training.rounds import RoundTrainer


class PredictorTrainer(RoundTrainer):
    """Flies rounds of missions and fits the predictor to them.

    The loss of a belief is the mean over lattice positions of (ρ·H − target)²: H is the entropy
    around the position, ρ the share of it that the network says lies in the region of interest,
    and the target the entropy that truly lies there. So ρ becomes the expected share.

    Args:
        config: missions and `prediction`.
        device: where everything lives.

    Attributes:
        network: the predictor.
    """

    name = "prediction"
    mark = "samples"

    def __init__(self, config: Config, device: torch.device) -> None:
        if config.experiment.baselines.search.prior is not None:
            raise ConfigError(
                "experiment.baselines.search.prior: a predictor is made without one; leave it out"
            )
        super().__init__(config, device)
        self._settings = settings = config.prediction
        self._worlds = self._environments("training")
        lattice = self._worlds[0].lattice
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            self.network = place(MapPredictor(settings.width), config.compute, device)
        self.modules: Mapping[str, nn.Module] = {"predictor": self.network}
        self._view = LatticeView(config, lattice, PARTS)
        self._model = PredictedMap(self._view, self.network, config.compute.precision)
        flight = config.experiment.baselines.search
        search = make_search(self._view, flight)
        self._planners = (
            SearchPlanner("search", self._view, self._model, search, flight.plan_memory),
            RandomPlanner(lattice),
        )
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self._scaler = grad_scaler(device, resolve_precision(config.compute.precision, device))
        self._samples: Samples | None = None
        self._weights_read: dict[str, str] = {}
        for number in range(len(settings.worlds)):
            self._weights_read |= files_read(_in_world(config, number))
        self._symmetries = 8 if config.geometry.quarter_turns else 4

    def round(self) -> dict[str, float]:
        """Fly missions over all worlds, then learn from all flown so far.

        Returns:
            `roi_entropy_<number>` of each world, over missions that the predictor flew; of the
            new beliefs, which it had not seen, the root mean squared error `error` of the
            prediction and of the belief p·H(p), `belief_error`, and the expected calibration
            error `calibration_error`; the mean `loss`, and `skipped_updates`, whose numbers were
            not finite.
        """
        found: dict[str, float] = {}
        new: list[Samples] = []
        share = self._settings.random_share if self.rounds else 1.0
        for number, world in enumerate(self._worlds):
            samples, left, planned = fly(world, self._view, self._planners, share, self._generator)
            new.append(samples)
            if planned.any():
                found[f"roi_entropy_{number}"] = float(left[planned].mean())
        fresh = Samples.joined(new)
        found |= self._errors(fresh)
        earlier = [] if self._samples is None else [self._samples]
        self._samples = Samples.joined([*earlier, fresh])
        found |= self._learn(self._samples)
        self.rounds += 1
        return found

    def _learn(self, samples: Samples) -> dict[str, float]:
        """Make the updates of a round; return mean loss and skipped updates."""
        symmetries = self._draw(self._symmetries, self._settings.updates).tolist()

        def loss_of(update: int) -> Tensor:
            index = self._draw(len(samples), self._settings.batch_size)
            seen, target = samples.batch(index, symmetries[update])
            return (self._model.predict(seen) - target).square().mean()

        made = self._make_updates(loss_of, math.inf)
        return {name: float(value) for name, value in made.items()}

    def _draw(self, below: int, number: int) -> Tensor:
        return torch.randint(below, (number,), generator=self._generator, device=self.device)

    @torch.no_grad()
    def _errors(self, samples: Samples) -> dict[str, float]:
        squares = torch.zeros(2, device=self.device)
        reliability = Reliability(self.device)
        for index in torch.arange(len(samples), device=self.device).split(1024):
            seen, target = samples.batch(index, 0)
            predicted = self._model.predict(seen)
            guesses = torch.stack((predicted, seen.coarse[:, 2]))
            reliability.add(seen.coarse[:, 1], predicted, target)
            squares += (guesses - target).square().sum((1, 2, 3))
        error, belief = (squares / samples.target.numel()).sqrt().tolist()
        calibration = reliability.error()
        return {"error": error, "belief_error": belief, "calibration_error": calibration}

    def examine(self) -> tuple[list[Picture], Reliability]:
        """Look at the predictor in missions that it has not learned from; see `examine`."""
        return examine(self._environments("validation"), self._view, self._model, self._planners[0])

    def describe(self, found: Mapping[str, float]) -> str:
        """Return the line of the log for what a round found."""
        flown = [value for name, value in found.items() if name.startswith("roi_entropy")]
        mean = f"{sum(flown) / len(flown):.4f}" if flown else "–"
        return (
            f"round {self.rounds}/{self._settings.rounds} | ROI entropy {mean} | error "
            f"{found['error']:.4f}, of the belief {found['belief_error']:.4f} | calibration error "
            f"{found['calibration_error']:.4f}"
        )

    def finish(self, run: RunFolder) -> dict[str, float]:
        """Draw what the predictor expects of missions that it has not learned from."""
        pictures, reliability = self.examine()
        predictions_figure(pictures, self.config, run.figures / "predictions.png")
        reliability_figure(reliability, run.figures / "reliability.png")
        return {"examined_calibration_error": reliability.error()}

    def _environments(self, split: str) -> list[MissionEnvironment]:
        """Return the missions of each world: the largest team in the longest missions."""
        missions, worlds = self._settings.missions, range(len(self._settings.worlds))
        config = self.config.of_mission(
            self.config.missions.most_agents, max(self.config.missions.budgets)
        )

        def world(number: int) -> MissionEnvironment:
            with found_at(f"prediction.worlds[{number}]"):
                there = _in_world(config, number)
                return MissionEnvironment(there, missions, self.device, split, rank=number)

        return [world(number) for number in worlds]

    def mission_streams(self) -> list[torch.Generator]:
        """Return the generators of all missions."""
        return [world.generator for world in self._worlds]

    def learned_state(self) -> dict[str, Any]:
        """Return network, optimiser and all beliefs flown so far."""
        kept = None if self.is_over() else self._samples
        return {
            **predictor_state(self.network, self._settings.width),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "samples": None if kept is None else dict(vars(kept)),
        }

    def load_learned_state(self, state: Mapping[str, Any]) -> None:
        """Load what `learned_state` returned."""
        self.network.load_state_dict(state["predictor"])
        load_optimizer(self._optimizer, state["optimizer"])
        load_scaler(self._scaler, state["scaler"])
        if state["samples"] is not None:
            columns = {name: part.to(self.device) for name, part in state["samples"].items()}
            self._samples = Samples(**columns)


def _in_world(config: Config, number: int) -> Config:
    sensor = config.sensor.model_copy(update={"simulation": config.prediction.worlds[number]})
    return config.model_copy(update={"sensor": sensor})
