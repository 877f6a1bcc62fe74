"""Train a map predictor on missions flown by the search planner with this predictor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marl_framework.algorithms.optimisers import load_optimizer, load_scaler
from marl_framework.config.errors import found_at
from marl_framework.config.model import Config
from marl_framework.device import grad_scaler, resolve_precision
from marl_framework.evaluation.metrics import roi_entropy
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.files import files_read
from marl_framework.mission.state import MissionState
from marl_framework.networks.convolutional import place
from marl_framework.networks.map_predictor import PARTS, MapPredictor
from marl_framework.observations.lattice_view import LatticeView
from marl_framework.observations.prediction import predictor_state
from marl_framework.planners.random_flight import RandomPlanner
from marl_framework.planners.search.beam import BeamSearch
from marl_framework.planners.search.models import PredictedMap
from marl_framework.planners.search.planner import SearchPlanner
from marl_framework.prediction import examination
from marl_framework.prediction.samples import Samples, fly
from marl_framework.runs.folder import RunFolder
from marl_framework.training.rounds import RoundTrainer


class PredictorTrainer(RoundTrainer):
    """Flies missions in rounds and fits the predictor to all samples.

    The loss of a sample is the mean of (ρ·H − target)² over lattice positions: H is the entropy
    around the position, ρ the network's estimate of the share of H in the region of interest, and
    the target the true entropy in that region. Minimising the loss makes ρ the expected share.
    """

    name = "prediction"
    mark = "samples"

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self._settings = settings = config.prediction
        self._worlds = self._environments("training")
        self.streams = [*(world.generator for world in self._worlds), self._generator]
        lattice = self._worlds[0].lattice
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.environment.seed)
            self.network = place(MapPredictor(settings.width), config.compute, device)
        self.modules: Mapping[str, nn.Module] = {"predictor": self.network}
        self._view = view = LatticeView(config, lattice, PARTS)
        self._model = PredictedMap(view, self.network, config.compute.precision)
        search = config.experiment.baselines.search
        search = search.model_copy(update={"presumed_share": 0.0, "presumed_beside_plan": 0.0})
        paths = BeamSearch(view, search.beams)
        self._planner = SearchPlanner("search", view, self._model, paths, search)
        self._random = RandomPlanner(lattice)
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self._scaler = grad_scaler(device, resolve_precision(config.compute.precision, device))
        self._samples: Samples | None = None
        self._weights_read: dict[str, str] = {}
        for world in self._worlds:
            self._weights_read |= files_read(world.config)
        self._symmetries = 8 if config.geometry.quarter_turns else 4

    def round(self) -> dict[str, float]:
        """Fly missions in all worlds, then learn from all samples so far.

        Returns `roi_entropy_<number>` of each world, over missions flown with the predictor. For
        the new samples, before the updates: root mean squared `error` of the prediction and
        `belief_error` of p·H(p), and the expected `calibration_error`. For the updates: mean `loss`
        and number of `skipped_updates` that were not finite.
        """
        new, final = zip(*map(self._fly, self._worlds), strict=True)
        results = {f"roi_entropy_{k}": float(e.mean()) for k, e in enumerate(final) if len(e)}
        fresh = Samples.join(list(new))
        results |= self._errors(fresh)
        earlier = [] if self._samples is None else [self._samples]
        self._samples = Samples.join([*earlier, fresh])
        results |= self._learn(self._samples)
        self.rounds += 1
        return results

    def _fly(self, world: MissionEnvironment) -> tuple[Samples, Tensor]:
        """Fly missions; a share of the missions, all in the first round, is flown at random.

        Returns samples of every UAV before each move and after the last, and the final ROI entropy
        of the missions flown with the predictor.
        """
        draws = torch.rand(world.num_envs, generator=self._generator, device=self.device)
        at_random = draws < (self._settings.random_share if self.rounds else 1.0)

        def act(state: MissionState) -> Tensor:
            planned = self._planner.act(state, self._generator).actions
            random = self._random.act(state, self._generator).actions
            return random.where(at_random.unsqueeze(1), planned)

        samples: list[Samples] = []
        for state in fly(world, act):
            samples.append(Samples.of(self._view, state))
        return Samples.join(samples), roi_entropy(state.global_belief, state.truth)[~at_random]

    def _learn(self, samples: Samples) -> dict[str, float]:
        symmetries = self._draw_integers(self._symmetries, self._settings.updates).tolist()

        def loss_of(update: int) -> Tensor:
            index = self._draw_integers(len(samples.target), self._settings.batch_size)
            features, target = samples.batch(index, symmetries[update])
            return (self._model.predict(features) - target).square().mean()

        metrics = self._make_updates(loss_of, math.inf)
        return {name: float(value) for name, value in metrics.items()}

    def _draw_integers(self, below: int, number: int) -> Tensor:
        return torch.randint(below, (number,), generator=self._generator, device=self.device)

    @torch.no_grad()
    def _errors(self, samples: Samples) -> dict[str, float]:
        squares = torch.zeros(2, device=self.device)
        reliability = examination.Reliability(self.device)
        for index in torch.arange(len(samples.target), device=self.device).split(1024):
            features, target = samples.batch(index, 0)
            predicted = self._model.predict(features)
            estimates = torch.stack((predicted, features.coarse[:, 2]))
            reliability.add(features.coarse[:, 1], predicted, target)
            squares += (estimates - target).square().sum((1, 2, 3))
        error, belief = (squares / samples.target.numel()).sqrt().tolist()
        calibration = reliability.error()
        return {"error": error, "belief_error": belief, "calibration_error": calibration}

    def examine(self) -> tuple[list[examination.Picture], examination.Reliability]:
        """Examine the predictor in validation missions; see `examination.examine`."""
        worlds = self._environments("validation")
        return examination.examine(worlds, self._view, self._model, self._planner)

    def describe(self, results: Mapping[str, float]) -> str:
        """Format the metrics of a round as a line to print."""
        final = [value for name, value in results.items() if name.startswith("roi_entropy")]
        mean = f"{sum(final) / len(final):.4f}" if final else "–"
        return (
            f"round {self.rounds}/{self._settings.rounds} | ROI entropy {mean} | error "
            f"{results['error']:.4f}, of the belief {results['belief_error']:.4f} | calibration "
            f"error {results['calibration_error']:.4f}"
        )

    def finish(self, run: RunFolder) -> dict[str, float]:
        """Examine the predictor in validation missions, and draw figures."""
        pictures, reliability = self.examine()
        examination.predictions_figure(pictures, self.config, run.figures / "predictions.png")
        examination.reliability_figure(reliability, run.figures / "reliability.png")
        return {"examined_calibration_error": reliability.error()}

    def _environments(self, split: str) -> list[MissionEnvironment]:
        """Build the environment of each world, with the largest team and the longest missions."""
        config, missions = self.config, self._settings.missions
        config = config.of_mission(config.missions.most_agents, max(config.missions.budgets))
        worlds = []
        for number, simulation in enumerate(self._settings.worlds):
            sensor = config.sensor.model_copy(update={"simulation": simulation})
            world_config = config.model_copy(update={"sensor": sensor})
            with found_at(f"prediction.worlds[{number}]"):
                world = MissionEnvironment(world_config, missions, self.device, split, rank=number)
            worlds.append(world)
        return worlds

    def own_state(self) -> dict[str, Any]:
        """Return the state of network and optimiser, all samples and random streams."""
        samples = None if self.is_over() else self._samples
        return {
            **super().own_state(),
            **predictor_state(self.network, self._settings.width),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "samples": None if samples is None else samples._asdict(),
        }

    def load_own_state(self, state: Mapping[str, Any], report: Callable[[str], None]) -> None:
        """Load what `own_state` returned."""
        self.network.load_state_dict(state["predictor"])
        load_optimizer(self._optimizer, state["optimizer"])
        load_scaler(self._scaler, state["scaler"])
        if (samples := state["samples"]) is not None:
            self._samples = Samples(**{n: tensor.to(self.device) for n, tensor in samples.items()})
        super().load_own_state(state, report)
