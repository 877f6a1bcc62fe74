"""Fly planners through missions of the published simulator (see `published_code`).

Every mission is flown by the published `IG_baseline.execute`, with its terrain, starts, noise,
mapping, communication and metrics. Only the methods that choose actions are replaced.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reference.plain_mission import LOWER, UPPER, binary_entropy
from benchmarks.reference.published_code import PublishedCode
from benchmarks.reference.replay import recorded_state
from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.model import Config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.sensor import error_rates
from marl_framework.mission.state import MissionState
from marl_framework.observations.builder import ObservationBuilder
from marl_framework.planners.protocol import Planner
from marl_framework.planners.team import Checkpoint, mission_config

Array = NDArray[Any]

TERRAINS = ("split", "mixed")
STARTS = ("published", "corners", "random")
CORNERS = ((10, 10), (40, 10), (40, 40), (10, 40))  # [m], a comment in its state_space.py
PLANES = Config().observation.actor_channels
"""Planes of the published observation."""

_KIND = "environment_type_idx = {}"  # choice of one of five kinds of terrain


@dataclass(frozen=True)
class Outcome:
    """Metrics of a mission after each round; round 0 is before any reading."""

    roi_entropy: list[float]
    f1: list[float]


# The world --------------------------------------------------------------------------------


class World:
    """The published simulator with a choice of terrain and starts.

    Args:
        code: the clone; functions for terrain and starts are replaced if necessary.
        terrain: one of `TERRAINS`: the published kind, or one of five kinds for each mission.
        starts: one of `STARTS`: as published, the corners of a comment, or distinct random cells.

    Raises:
        ConfigError: the clone's terrain cannot be mixed.
    """

    def __init__(self, code: PublishedCode, terrain: str = "split", starts: str = "published"):
        self.code = code
        self.params = code.params
        self.n_agents: int = self.params["experiment"]["missions"]["n_agents"]
        if terrain == "mixed":
            _mix_terrain(code)
        self._remember_terrain()
        space = code.get("agent.state_space")
        if starts == "corners":
            space.get_random_agent_state = lambda space, agent, trial: np.array(
                [*CORNERS[agent % len(CORNERS)], space.max_altitude]
            )
        elif starts == "random":
            space.get_random_agent_state = _distinct_start

    def _remember_terrain(self) -> None:
        """Cache the map of a mission: it is slow, and each flight computes it three times."""
        simulation = self.code.get("mapping.simulations")
        simulate = simulation.simulate_map
        known: dict[int, Array] = {}

        def remembered(simulation: Any, trial: int) -> Array:
            if trial not in known:
                known.clear()
                known[trial] = simulate(simulation, trial)
            np.random.seed(trial)  # the same state with and without the cache
            return known[trial].copy()

        simulation.simulate_map = remembered

    def flight(self, trial: int, module: str = "IG_baseline") -> Any:
        """Return an object of the published code that flies mission `trial` with `execute()`.

        The trial seeds both generators, so all policies have the same terrain and starts.
        """
        torch.manual_seed(trial)
        np.random.seed(trial)
        return self.code.get(module)(self.params, None, trial)

    def starts(self, trial: int) -> Array:
        """Return the starts of the UAVs [m], [N, 3]."""
        space = self.code.get("agent.state_space")(self.params)
        return np.stack([space.get_random_agent_state(i, trial) for i in range(self.n_agents)])

    def facts(self, trials: Sequence[int]) -> dict[str, Any]:
        """Return the differences between this world and ours, computed with its functions.

        Returns:
            `first_uav_starts` [m], `missions_with_shared_starts`, `last_rows_never_seen`,
            `last_columns_never_seen`, and `undecided_counts_as_found`: whether its F1 counts a
            cell with belief 0.5005 as one of interest.
        """
        starts = [self.starts(trial) for trial in trials]
        flight = self.flight(trials[0])
        grid = flight.grid_map
        edge = np.array([flight.params["environment"][side] for side in ("x_dim", "y_dim")])
        corner = np.array([*edge, flight.agent_state_space.max_altitude])
        _, (_, right, _, bottom) = flight.camera.project_field_of_view(
            corner, grid.resolution_x, grid.resolution_y
        )
        found = self.code.get("utils.utils")(np.array([[0.5005, 0.0]]), np.array([[1.0, 0.0]]))
        return {
            "first_uav_starts": sorted({tuple(map(int, start[0])) for start in starts}),
            "missions_with_shared_starts": sum(
                len({tuple(place) for place in start}) < len(start) for start in starts
            ),
            "last_rows_never_seen": grid.x_dim - bottom,
            "last_columns_never_seen": grid.y_dim - right,
            "undecided_counts_as_found": bool(found > 0),
        }


def _distinct_start(space: Any, agent: int, trial: int) -> Array:
    """Return a random start [m] at the highest altitude; those of a mission are distinct."""
    cells = np.random.default_rng(trial).permutation(space.space_x_dim * space.space_y_dim)
    x, y = divmod(int(cells[agent]), space.space_y_dim)
    return np.array([x * space.spacing, y * space.spacing, space.max_altitude])


def _mix_terrain(code: PublishedCode) -> None:
    """Draw the kind of terrain, which the published function sets to 0."""
    module = code.module("mapping.ground_truths")
    text = inspect.getsource(module.gaussian_random_field)
    if text.count(_KIND.format(0)) != 1:
        raise ConfigError(
            f"--terrain mixed: {module.__file__} lacks `{_KIND.format(0)}`; use split"
        )
    exec(text.replace(_KIND.format(0), _KIND.format("np.random.randint(5)")), vars(module))


# Its maps in our state --------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """State of the published simulator before a move, in its layout, x first."""

    t: int
    positions: Array
    """Positions of the UAVs [m], [N, 3]."""
    beliefs: Array
    """Own maps after fusing, [N, R, C]."""
    readings: Array
    """`map2communicate`: latest readings, 0.5 outside the footprint, [N, R, C]."""
    heard: Array
    """Whether i hears j, [N, N]."""
    global_belief: Array
    """Global belief, [R, C]."""
    truth: Array
    """Region of interest, [R, C]."""


class Bridge:
    """Converts situations of the published simulator for our planners.

    Args:
        config: the mission, see `flown_config`.

    Attributes:
        environment: environment of one mission, for planners.
    """

    def __init__(self, config: Config) -> None:
        self.environment = MissionEnvironment(config, 1, "cpu", "test")
        plain = config.model_copy(update={"observation": Config().observation})
        lattice, camera = self.environment.lattice, self.environment.camera
        self._planes = ObservationBuilder(plain, lattice, camera)
        self._config = config
        self._sector = torch.full((1, config.missions.most_agents), config.missions.most_agents)

    def state(self, situation: Situation) -> MissionState:
        """Return the situation as our state, E = 1."""
        case = {
            "t": np.array(situation.t),
            "positions_m": situation.positions,
            "truth": situation.truth == 1,
            "beliefs_before": situation.beliefs,
            "global_before": situation.global_belief,
            "measurements": situation.readings,
            "communication_range": np.array(self._config.experiment.uav.communication_range),
        }
        state = recorded_state(self.environment, self._config, [case])
        state.heard[0] = torch.from_numpy(situation.heard)
        if situation.t == 0:
            self._sector = self.environment.lattice.sectors.deal(state.positions, state.team_size)
        state.sector.copy_(self._sector)
        return state

    def planes(self, state: MissionState) -> Array:
        """Return our observations in the published planes, [N, X, Y, planes]."""
        return self._planes.actor(state)[0].movedim(1, -1).numpy()


def flown_config(code: PublishedCode, checkpoint: Checkpoint | None) -> Config:
    """Return the published mission as our configuration, with the networks of a checkpoint.

    Raises:
        ConfigError: the mission is not supported, or the team has another lattice or sensor.
    """
    with warnings.catch_warnings():  # of keys that we do not have
        warnings.simplefilter("ignore", ConfigWarning)
        flown = mission_config(str(code.params_file), [], None)
        _check_fit(f"--src: {code.params_file}", flown, code, flown)
        if checkpoint is None:
            return flown
        trained = mission_config(None, [], checkpoint)
        _check_fit(f"--checkpoint {checkpoint.path}: the team", trained, code, flown)
        return mission_config(str(code.params_file), [], checkpoint)


def _check_fit(whose: str, config: Config, code: PublishedCode, flown: Config) -> None:
    """Check that lattice, moves and sensor are those of the published simulator."""
    sensor = code.get("sensors.models.sensor_models")(code.params)

    def described(config: Config, noise: Iterable[float]) -> dict[str, str]:
        view, constraints = config.sensor.field_of_view, config.experiment.constraints
        numbers: dict[str, Iterable[float]] = {
            "lattice": config.geometry.lattice_shape,
            "spacing [m]": [constraints.spacing],
            "altitudes [m]": config.geometry.altitudes,
            "num_actions": [constraints.num_actions],
            "opening angles [degrees]": [view.angle_x, view.angle_y],
            "noise at these altitudes": noise,
        }
        return {name: ", ".join(f"{v:g}" for v in values) for name, values in numbers.items()}

    rates = error_rates(config)
    has = described(config, rates[:, 0] if (rates[:, 0] == rates[:, 1]).all() else rates.flatten())
    noise = [sensor.get_noise_variance(altitude) for altitude in flown.geometry.altitudes]
    for name, value in described(flown, noise).items():
        if has[name] != value:
            raise ConfigError(f"{whose} has {name} {has[name]}; the published simulator {value}")


# Policies ---------------------------------------------------------------------------------


def fly_published(flight: Any) -> Outcome:
    """Fly a mission with the published code, with the methods replaced on `flight`."""
    *_, entropies, scores = flight.execute()
    return Outcome([float(value) for value in entropies], [float(value) for value in scores])


class Pilot:
    """Chooses actions of a flight of the published code with one of our planners.

    Args:
        flight: from `World.flight`; its choices are replaced.
        bridge: converts its maps for the planner.
        planner: planner for the bridge's environment.
        generator: source of the planner's random choices.

    Attributes:
        differences: largest difference between the published observation and ours, by plane.
    """

    def __init__(
        self, flight: Any, bridge: Bridge, planner: Planner, generator: torch.Generator
    ) -> None:
        self.differences = dict.fromkeys(PLANES, 0.0)
        self._bridge, self._planner, self._generator = bridge, planner, generator
        self._truth = flight.mapping.simulated_map
        self._heard = np.zeros((flight.n_agents, flight.n_agents), dtype=bool)
        self._agents: Sequence[Any] = ()
        wrapper, mapping = flight.coma_wrapper, flight.mapping
        wrapper.build_observations = functools.partial(self._observe, wrapper.build_observations)
        mapping.fuse_map = functools.partial(self._fuse, mapping.fuse_map)
        flight.get_individual_ig = lambda position, mask, belief: ([], [])
        flight.get_relative_ig = lambda gains: gains
        flight.get_cell_utilities = self._choose

    def _observe(self, build: Callable[..., Any], mapping: Any, agents: Any, *rest: Any) -> Any:
        if not self._agents:
            self._agents = agents
            for agent in agents:
                agent.receive_messages = functools.partial(self._hear, agent.receive_messages)
        _, self._t, *_ = rest
        found = build(mapping, agents, *rest)
        self._observations = found[2]
        return found

    def _hear(self, receive: Callable[..., Any], log: Any, agent: int, t: int) -> Any:
        messages, belief = receive(log, agent, t)
        self._heard[agent] = [other in messages for other in range(len(self._heard))]
        return messages, belief

    def _fuse(self, fuse: Callable[..., Any], own: Any, others: Any, agent: Any, mode: str) -> Any:
        fused = fuse(own, others, agent, mode)
        if mode == "global":
            self._global = fused
        return fused

    def _choose(self, *_: Any) -> Array:
        """Return 1 for the action that the planner chooses, else 0, [N, A]."""
        situation = Situation(
            self._t,
            np.stack([agent.position for agent in self._agents]),
            np.stack([agent.local_map for agent in self._agents]),
            np.stack([agent.map2communicate for agent in self._agents]),
            self._heard,
            self._global,
            self._truth,
        )
        state = self._bridge.state(situation)
        theirs = np.stack([np.asarray(seen) for seen in self._observations])
        apart = np.abs(self._bridge.planes(state) - theirs).max(axis=(0, 1, 2))
        for plane, difference in zip(PLANES, apart, strict=True):
            self.differences[plane] = max(self.differences[plane], float(difference))
        decision = self._planner.act(state, self._generator)
        return np.eye(decision.masks.shape[-1])[decision.actions[0].numpy()]


class CorrectedGain:
    """Corrects the expected gain of the published information gain, on one flight.

    A positive reading of a cell with belief p gets the probability noise + p · (1 − 2 · noise),
    where the published code has p.

    Args:
        flight: from `World.flight`; its choices are replaced.
        shared: also count the next views of earlier UAVs in radio range, as our planner does: a
            view with some noise leaves the share H(noise) of the gain. UAVs then choose one after
            another, under the mask of the earlier UAVs' next positions.
    """

    def __init__(self, flight: Any, shared: bool) -> None:
        self._flight = flight
        self._earlier: list[tuple[Array, Array]] = []  # (position, goal) of earlier UAVs
        flight.get_individual_ig = self._choose if shared else self._gains
        if shared:
            flight.get_relative_ig = self._all_have_chosen
            flight.get_cell_utilities = lambda goals, gains: gains

    def _gains(self, place: Array, mask: Array, belief: Array) -> tuple[list[Any], list[float]]:
        """Return goals and expected gains of all actions; 0 if masked, as published."""
        left = self._left(place, belief.shape)
        goals: list[Any] = [0] * len(mask)
        gains = [0.0] * len(mask)
        for action in np.flatnonzero(mask):
            goals[action] = self._flight.action_space.action_to_position(place, action)
            gains[action] = self._gain(goals[action], belief, left)
        return goals, gains

    def _gain(self, goal: Array, belief: Array, left: Array) -> float:
        window, noise = self._window(goal), self._noise(goal)
        p = belief[window].copy()
        positive = noise + p * (1 - 2 * noise)
        gain = positive * self._drop(p, 1 - noise) + (1 - positive) * self._drop(p, noise)
        return float((gain * left[window]).sum())

    def _drop(self, p: Array, reading: float) -> Array:
        """Return the entropy that a reading removes, weighted by the new belief."""
        after = self._flight.mapping.update_cells(p.copy(), reading, None)
        weight = np.where(after > UPPER, 1, np.where(after < LOWER, 0, after))
        return weight * (binary_entropy(p) - binary_entropy(after))

    def _window(self, place: Array) -> tuple[slice, slice]:
        grid = self._flight.grid_map
        _, (left, right, top, bottom) = self._flight.camera.project_field_of_view(
            place, grid.resolution_x, grid.resolution_y
        )
        return slice(top, bottom), slice(left, right)

    def _noise(self, place: Array) -> float:
        return float(self._flight.sensor_model.get_noise_variance(place[2]))

    def _left(self, place: Array, shape: tuple[int, ...]) -> Array:
        """Return the share of each cell's gain that earlier UAVs in radio range leave, [R, C]."""
        left = np.ones(shape)
        reach = self._flight.params["experiment"]["uav"]["communication_range"]
        for other, goal in self._earlier:
            if np.linalg.norm(other - place) <= reach:
                left[self._window(goal)] *= binary_entropy(np.array(self._noise(goal)))
        return left

    def _choose(self, place: Array, _: Array, belief: Array) -> tuple[list[Any], list[float]]:
        """Return goals and gains under the mask of the earlier UAVs' choices."""
        flight = self._flight
        mask, _ = flight.action_space.get_action_mask(place)
        taken = [goal for _, goal in self._earlier]
        mask = flight.action_space.apply_collision_mask(
            place, mask, taken, flight.agent_state_space
        )
        goals, gains = self._gains(place, mask, belief)
        gains = [gain if free else -math.inf for gain, free in zip(gains, mask, strict=True)]
        self._earlier.append((place.copy(), goals[int(np.argmax(gains))]))
        return goals, gains

    def _all_have_chosen(self, gains: list[list[float]]) -> list[list[float]]:
        self._earlier.clear()
        return gains
