"""Terrains, rewards and planners of a user's own, by dotted path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from marl_framework import evaluate
from marl_framework.config.errors import ConfigError
from marl_framework.evaluation.missions import MissionStreams
from marl_framework.main import main
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.terrains.mixture import Terrain
from marl_framework.planners import Decision
from marl_framework.planners.registry import make_planner
from tests.small import random_actions, small_config

MODULE = '''
import torch

class Discs:
    """A disc around a random point."""

    def __init__(self, config, device, split):
        self.rows, self.cols = (
            torch.linspace(0, 1, n, device=device) for n in config.geometry.map_shape
        )

    def draw(self, num, generator):
        return torch.rand(num, 2, generator=generator, device=self.rows.device)

    def build(self, draws):
        x, y = draws[:, 0, None, None], draws[:, 1, None, None]
        return (self.rows[:, None] - x) ** 2 + (self.cols - y) ** 2 < 0.1

def low(state, actions, utility):
    return utility.absolute - state.positions[..., 2].float().mean(1) + 10 * actions[:, 0]

class Westward:
    name = "westward"

    def __init__(self, environment):
        self.lattice = environment.lattice

    def act(self, state, generator):
        score = -self.lattice.offsets[:, 0].float()
        best = lambda i, mask: score.masked_fill(~mask, -9).argmax(-1)
        return self.lattice.choose_in_order(state.positions, best)

class Careless(Westward):
    """Flies west; UAVs that a mission does not have climb."""

    def act(self, state, generator):
        actions, masks = super().act(state, generator)
        return torch.where(state.active, actions, 0), masks

class Returning(Westward):
    """Flies west, and says so in a way of its own."""

    def act(self, state, generator):
        return self.say(*super().act(state, generator))

class Listed(Returning):
    def say(self, actions, masks):
        return [actions, masks]

class Alone(Returning):
    def say(self, actions, masks):
        return actions

class Talkative(Returning):
    def say(self, actions, masks):
        return actions, masks, None, None, "west"

class Flat(Returning):
    def say(self, actions, masks):
        return actions[:, 0], masks

class Floating(Returning):
    def say(self, actions, masks):
        return actions.float(), masks

class Maskless(Returning):
    def say(self, actions, masks):
        return actions, None

class Narrow(Returning):
    def say(self, actions, masks):
        return actions, masks[..., :2]

class Worded(Returning):
    def say(self, actions, masks):
        return actions, masks, None, "west"

class Beyond(Returning):
    def say(self, actions, masks):
        return actions + 100, masks

class Off(Returning):
    def say(self, actions, masks):
        return torch.zeros_like(actions), masks  # up, from the highest altitude

class Shapeless(Discs):
    def build(self, draws):
        return draws

class Drawless(Discs):
    def draw(self, num, generator):
        return [0.5]

class Blind:
    def __init__(self, config):
        pass

    def miss(self, altitude):
        return 0.5

    false_alarm = miss

class Nothing:
    def __init__(self, *arguments):
        pass

def scalar(state, actions, utility):
    return utility.absolute.mean()

number = 3
'''


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mine` can be imported, with what `python -m` finds in the current folder."""
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "needy.py").write_text("import surely_not_installed\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "broken", "needy"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)


def world(*kinds: str, function: str | None = None) -> MissionEnvironment:
    config = small_config(
        sensor={"simulation": {"kinds": kinds}, "pixel": {"number_x": 12, "number_y": 12}},
        experiment={"reward": {"function": function}},
    )
    return MissionEnvironment(config, 8, "cpu")


def test_own_terrain_is_flown_over_as_it_was_built() -> None:
    env = world("mine.Discs")
    draws = env.draw_reset()
    state = env.reset(draws)
    (drawn,) = draws.terrain.numbers
    rows, cols = (torch.linspace(0, 1, n) for n in env.camera.shape)
    for e in range(8):
        near = (rows[:, None] - drawn[e, 0]) ** 2 + (cols - drawn[e, 1]) ** 2 < 0.1
        assert torch.equal(state.truth[e], near)
    assert 0 < state.truth.float().mean() < 0.5


def test_own_and_known_kinds_mix_and_each_mission_gets_its_own_kind() -> None:
    env = world("split", "mine.Discs")
    draws = env.terrain.draw(64, env.generator)
    truth = env.terrain.build(draws)
    alone = world("mine.Discs").terrain
    drawn = env.terrain.numbers(draws, "mine.Discs")
    discs = alone.build(type(draws)(torch.zeros_like(draws.kind), (drawn,)))
    own = draws.kind == env.terrain.kinds.index("mine.Discs")
    assert 0 < own.sum() < 64
    assert torch.equal(truth[own], discs[own])
    assert not torch.equal(truth[~own], discs[~own])


def test_own_terrain_is_the_same_for_every_batch_size() -> None:
    config = world("mine.Discs", "band").config
    whole = MissionEnvironment(config, 6, "cpu", "test")
    part = MissionEnvironment(config, 2, "cpu", "test")
    all_at_once = whole.reset(MissionStreams(whole, 5).draw_reset()).truth
    later = part.reset(MissionStreams(part, 5, first=2).draw_reset()).truth
    assert torch.equal(all_at_once[2:4], later)


def test_maps_built_in_chunks_are_the_same() -> None:
    env = world("mine.Discs")
    draws = env.terrain.draw(9, env.generator)
    whole = env.terrain.build(draws)
    env.terrain._chunk = 2
    assert torch.equal(env.terrain.build(draws), whole)


def test_own_reward_is_paid_and_nothing_else_changes() -> None:
    ours, usual = world("split", function="mine.low"), world("split")
    states = [env.reset(env.draw_reset()) for env in (ours, usual)]
    actions = random_actions(usual, states[1], usual.generator)
    ours.generator.set_state(usual.generator.get_state())
    results = [
        env.step(state, actions, env.draw_step())
        for env, state in zip((ours, usual), states, strict=True)
    ]
    high = states[0].positions[..., 2].float().mean(1)
    paid = results[0].absolute - high + 10 * actions[:, 0]
    torch.testing.assert_close(results[0].reward, paid)
    assert torch.equal(results[0].absolute, results[1].absolute)
    assert torch.equal(states[0].beliefs, states[1].beliefs)


def test_own_reward_and_terrain_train_from_the_command_line(tmp_path: Path) -> None:
    own = ["sensor.simulation.kinds=[mine.Discs]", "experiment.reward.function=mine.low"]
    settings = [part for text in own for part in ("--set", text)]
    assert main(["--config", "params_test", "--device", "cpu", "--run-name", "t", *settings]) == 0
    results = json.loads((tmp_path / "runs/t/summary.json").read_text())["results"]
    assert results["finished"]


def test_own_planner_is_compared_with_the_others(tmp_path: Path) -> None:
    options = ["--policies", "mine.Westward,random", "--missions", "3", "--no-figures"]
    assert (
        evaluate.main(["--config", "params_test", "--device", "cpu", *options, "--out", "e"]) == 0
    )
    found = json.loads((tmp_path / "e/results.json").read_text())["summary"]
    assert list(found) == ["mine.Westward", "random"]


def test_own_planner_may_let_uavs_that_do_not_fly_do_anything() -> None:
    env = MissionEnvironment(small_config(missions={"n_agents": (1, 3)}), 8, "cpu")
    state = env.reset(env.draw_reset())
    assert not state.active.all()
    decision = make_planner("mine.Careless", env).act(state, env.generator)
    assert not env.lattice.boundary_mask(state.positions)[~state.active, 0].any()
    assert (decision.actions[~state.active] == 0).all()


def test_own_planner_is_flown_by_its_mission_type(tmp_path: Path) -> None:
    settings = ["--set", "experiment.policy=mine.Westward"]
    assert main(["--config", "params_test", "--device", "cpu", "--run-name", "w", *settings]) == 0
    results = json.loads((tmp_path / "runs/w/results.json").read_text())
    assert results["settings"]["missions"] == 4  # evaluation.missions


def test_an_own_planner_that_returns_a_plain_tuple_flies_what_it_chose() -> None:
    env = world("split")
    state = env.reset(env.draw_reset())
    planner = make_planner("mine.Westward", env)
    decision = planner.act(state, env.generator)
    assert isinstance(decision, Decision)
    assert (decision.probabilities, decision.scores) == (None, None)
    score = -env.lattice.offsets[:, 0].float()
    wanted = score.masked_fill(~decision.masks, -9).argmax(-1)
    assert torch.equal(decision.actions, wanted)
    assert (env.lattice.boundary_mask(state.positions) & ~decision.masks)[:, 0].sum() == 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Listed", "it returned a list"),
        ("Alone", "it returned a Tensor"),
        ("Talkative", "it returned a tuple"),
        ("Flat", "actions must be [4, 2] int64, got [4] int64"),
        ("Floating", "actions must be [4, 2] int64, got [4, 2] float32"),
        ("Maskless", "masks must be a tensor [4, 2, 6] bool, got NoneType"),
        ("Narrow", "masks must be [4, 2, 6] bool, got [4, 2, 2] bool"),
        ("Worded", "scores must be a tensor [4, 2, 6], got str"),
        (
            "Beyond",
            "an action is none of them, leaves the lattice, enters a zone or cannot be paid for",
        ),
        (
            "Off",
            "an action is none of them, leaves the lattice, enters a zone or cannot be paid for",
        ),
    ],
)
def test_an_own_planner_that_returns_nonsense_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, wrong: str
) -> None:
    settings = ["--set", f"experiment.policy=mine.{name}"]
    assert main(["--config", "params_test", "--device", "cpu", "--run-name", "w", *settings]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"error: planner: mine.{name}.act must return a Decision or (actions, masks): {wrong}"
    ]


KIND = "sensor.simulation.kinds=[{}]"
REWARD = "experiment.reward.function={}"
TYPE = "experiment.policy={}"
SENSOR = "sensor.model.type={}"
BAD = [
    (KIND, "hills", "must be one of 'split'"),
    (KIND, "nowhere.Discs", "there is no module nowhere"),
    (KIND, "mine.sub.Discs", "there is no module mine.sub"),
    (KIND, "mine.Disks", "module mine has no Disks; the nearest name there is Discs"),
    (KIND, "mine.number", "must be a class or a function, not 3"),
    (KIND, "mine.Westward", "must be callable as Westward(config, device, split)"),
    (KIND, "mine.Nothing", "draw(num, generator) and build(draws)"),
    (KIND, "mine.Shapeless", "mine.Shapeless.build must return [4, 103, 103] bool, got [4, 2]"),
    (KIND, "mine.Drawless", "mine.Drawless.draw must return [4, …], got list"),
    (KIND, "broken.Discs", "broken cannot be imported: ZeroDivisionError"),
    (KIND, "needy.Discs", "needy cannot be imported: ModuleNotFoundError: No module named"),
    (REWARD, "low", "must be a dotted path such as my_module.name"),
    (REWARD, "mine.high", "module mine has no high"),
    (REWARD, "mine.Westward", "must be callable as Westward(state, actions, utility)"),
    (REWARD, "mine.scalar", "one reward a mission, [4], got []"),
    (TYPE, "dqn", "must be one of 'learned'"),
    (TYPE, "mine.Eastward", "module mine has no Eastward"),
    (TYPE, "mine.Nothing", "it must have name and act(state, generator)"),
    (SENSOR, "radar", "must be one of 'table', 'exponential'"),
    (SENSOR, "mine.Radar", "module mine has no Radar"),
    (SENSOR, "mine.Nothing", "a sensor has miss(altitude) and false_alarm(altitude)"),
    (SENSOR, "mine.Blind", "mine.Blind: miss(5) + false_alarm(5) must be below 1, got 1"),
]


@pytest.mark.parametrize(("setting", "value", "wrong"), BAD)
def test_what_is_wrong_with_an_own_part_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, value: str, wrong: str
) -> None:
    text = setting.format(value)
    assert (
        main(["--config", "params_test", "--device", "cpu", "--run-name", "bad", "--set", text])
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert wrong in lines[0]
    assert not (tmp_path / "runs").exists()


def test_a_reward_of_the_wrong_shape_is_refused_where_it_is_paid() -> None:
    env = world("split", function="mine.scalar")
    state = env.reset(env.draw_reset())
    actions = random_actions(env, state, env.generator)
    with pytest.raises(ConfigError, match=r"one reward a mission, \[8\], got \[\]"):
        env.step(state, actions, env.draw_step())


def test_configurations_never_import_what_they_name() -> None:
    """A checkpoint's configuration is read without running code; only missions load parts."""
    config = small_config(
        experiment={"reward": {"function": "broken.reward"}},
        sensor={"simulation": {"kinds": ("broken.Terrain",)}},
    )
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        Terrain(config, "cpu", "training")
