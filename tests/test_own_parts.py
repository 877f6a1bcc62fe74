"""Terrains, rewards and planners of a user's own, by dotted path."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from marl_framework import evaluate
from marl_framework.config.errors import ConfigError
from marl_framework.evaluation.flight import MissionStreams
from marl_framework.main import main
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.mission.terrains.mixture import Terrain
from marl_framework.planners import Decision
from marl_framework.planners.registry import make_planner
from tests.custom_parts import MODULE, Broken
from tests.small import random_actions, small_config


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the current folder can be imported, as with `python -m`."""
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "needy.py").write_text("import surely_not_installed\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("broken", "needy"):
        monkeypatch.delitem(sys.modules, name, raising=False)


DISCS = f"{MODULE}.Discs"


def train(name: str, *settings: str) -> int:
    options = [part for text in settings for part in ("--set", text)]
    return main(["--config", "params_test", "--device", "cpu", "--run-name", name, *options])


def world(*kinds: str, function: str | None = None) -> MissionEnvironment:
    config = small_config(
        sensor={"simulation": {"kinds": kinds}, "pixel": {"number_x": 12, "number_y": 12}},
        experiment={"reward": {"function": function}},
    )
    return MissionEnvironment(config, 8, "cpu")


def test_own_terrain_is_flown_over_as_it_was_built() -> None:
    env = world(DISCS)
    draws = env.draw_reset()
    state = env.reset(draws)
    (drawn,) = draws.terrain.numbers
    rows, cols = (torch.linspace(0, 1, n) for n in env.camera.shape)
    for e in range(8):
        near = (rows[:, None] - drawn[e, 0]) ** 2 + (cols - drawn[e, 1]) ** 2 < 0.1
        assert torch.equal(state.truth[e], near)
    assert 0 < state.truth.float().mean() < 0.5


def test_own_and_known_kinds_mix_and_each_mission_gets_its_own_kind() -> None:
    env = world("split", DISCS)
    draws = env.terrain.draw(64, env.generator)
    truth = env.terrain.build(draws)
    alone = world(DISCS).terrain
    drawn = env.terrain.numbers(draws, DISCS)
    discs = alone.build(type(draws)(torch.zeros_like(draws.kind), (drawn,)))
    own = draws.kind == env.terrain.kinds.index(DISCS)
    assert 0 < own.sum() < 64
    assert torch.equal(truth[own], discs[own])
    assert not torch.equal(truth[~own], discs[~own])


def test_own_terrain_is_the_same_for_every_batch_size() -> None:
    config = world(DISCS, "band").config
    whole = MissionEnvironment(config, 6, "cpu", "test")
    part = MissionEnvironment(config, 2, "cpu", "test")
    all_at_once = whole.reset(MissionStreams(whole, 5).draw_reset()).truth
    later = part.reset(MissionStreams(part, 5, first=2).draw_reset()).truth
    assert torch.equal(all_at_once[2:4], later)


def test_maps_built_in_chunks_are_the_same() -> None:
    env = world(DISCS)
    draws = env.terrain.draw(9, env.generator)
    whole = env.terrain.build(draws)
    env.terrain.most_at_once = 2
    assert torch.equal(env.terrain.build(draws), whole)


def test_own_reward_is_paid_and_nothing_else_changes() -> None:
    ours, usual = world("split", function=f"{MODULE}.low"), world("split")
    states = [env.reset() for env in (ours, usual)]
    actions = random_actions(usual, states[1], usual.generator)
    ours.generator.set_state(usual.generator.get_state())
    results = [env.step(state, actions) for env, state in zip((ours, usual), states, strict=True)]
    high = states[0].positions[..., 2].float().mean(1)
    paid = results[0].absolute - high + 10 * actions[:, 0]
    torch.testing.assert_close(results[0].reward, paid)
    assert torch.equal(results[0].absolute, results[1].absolute)
    assert torch.equal(states[0].beliefs, states[1].beliefs)


def test_own_planner_is_compared_with_the_others(tmp_path: Path) -> None:
    options = ["--policies", f"{MODULE}.Westward,random", "--missions", "3", "--no-figures"]
    fixed = ["--config", "params_test", "--device", "cpu", "--out", "e"]
    assert evaluate.main([*fixed, *options]) == 0
    found = json.loads((tmp_path / "e/results.json").read_text())["summary"]
    assert list(found) == [f"{MODULE}.Westward", "random"]


def test_own_planner_may_let_uavs_that_do_not_fly_do_anything() -> None:
    env = MissionEnvironment(small_config(missions={"n_agents": (1, 3)}), 8, "cpu")
    state = env.reset()
    assert not state.active.all()
    decision = make_planner(f"{MODULE}.Careless", env).act(state, env.generator)
    assert not env.lattice.boundary_mask(state.positions)[~state.active, 0].any()
    assert (decision.actions[~state.active] == 0).all()


def test_own_planner_is_flown_by_its_mission_type(tmp_path: Path) -> None:
    assert train("w", f"{TYPE}={MODULE}.Westward") == 0
    results = json.loads((tmp_path / "runs/w/results.json").read_text())
    assert results["settings"]["missions"] == 4  # evaluation.missions


def test_an_own_planner_that_returns_a_plain_tuple_flies_what_it_chose() -> None:
    env = world("split")
    state = env.reset()
    planner = make_planner(f"{MODULE}.Westward", env)
    decision = planner.act(state, env.generator)
    assert isinstance(decision, Decision)
    assert (decision.probabilities, decision.scores) == (None, None)
    score = -env.lattice.offsets[:, 0].float()
    wanted = score.masked_fill(~decision.masks, -9).argmax(-1)
    assert torch.equal(decision.actions, wanted)
    assert (env.lattice.boundary_mask(state.positions) & ~decision.masks)[:, 0].sum() == 0


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Listed", "list"),
        ("Alone", "Tensor"),
        ("Talkative", "tuple"),
        ("Flat", "actions .*[4, 2] int64, .*[4] int64"),
        ("Floating", "actions .*[4, 2] int64, .*[4, 2] float32"),
        ("Maskless", "masks .*[4, 2, 6] bool, .*NoneType"),
        ("Narrow", "masks .*[4, 2, 6] bool, .*[4, 2, 2] bool"),
        ("Worded", "scores .*[4, 2, 6], .*str"),
        ("Beyond", "action"),
        ("Off", "action"),
    ],
)
def test_an_own_planner_that_returns_nonsense_is_one_clear_line(refused, name, named) -> None:
    line = refused(train, "w", f"experiment.policy={MODULE}.{name}")
    assert line.startswith(f"error: planner: {MODULE}.{name}.act ")
    assert re.search(re.sub(r"([\[\]])", r"\\\1", named), line)


KIND = "sensor.simulation.kinds"
REWARD = "experiment.reward.function"
TYPE = "experiment.policy"
SENSOR = "sensor.model.type"
ACTOR = "networks.actor.type"
BAD = [
    (KIND, "hills", "'split'"),
    (KIND, "nowhere.Discs", "nowhere"),
    (KIND, f"{MODULE}.sub.Discs", f"{MODULE}.sub"),
    (KIND, f"{MODULE}.Disks", "Discs"),
    (KIND, f"{MODULE}.number", "3"),
    (KIND, f"{MODULE}.Westward", "Westward(config, device, split)"),
    (KIND, f"{MODULE}.Nothing", "draw(num, generator)"),
    (KIND, f"{MODULE}.Shapeless", "Shapeless.build"),
    (KIND, f"{MODULE}.Drawless", "Drawless.draw"),
    (KIND, "broken.Discs", "ZeroDivisionError in line 1 of "),
    (KIND, "needy.Discs", "surely_not_installed"),
    (REWARD, "low", "low"),
    (REWARD, f"{MODULE}.high", "high"),
    (REWARD, f"{MODULE}.Westward", "Westward(state, actions, utility)"),
    (REWARD, f"{MODULE}.scalar", "[4]"),
    (TYPE, "dqn", "'learned'"),
    (TYPE, f"{MODULE}.Eastward", "Eastward"),
    (TYPE, f"{MODULE}.Nothing", "act(state, generator)"),
    (TYPE, f"{MODULE}.Hazy", "AttributeError"),  # which its constructor raises
    (TYPE, f"{MODULE}.spec", "Spectral"),
    (SENSOR, "radar", "'table', 'exponential'"),
    (SENSOR, f"{MODULE}.Radar", "Radar"),
    (SENSOR, f"{MODULE}.Westward", "AttributeError"),
    (SENSOR, f"{MODULE}.Nothing", "miss(altitude)"),
    (SENSOR, f"{MODULE}.Blind", "miss(5) + false_alarm(5)"),
    (SENSOR, f"{MODULE}.Stumbling", "fails at 5 m: ZeroDivisionError in line "),
]


@pytest.mark.parametrize(("key", "value", "named"), BAD)
def test_what_is_wrong_with_an_own_part_is_one_line(tmp_path, refused, key, value, named) -> None:
    line = refused(train, "bad", f"{key}=[{value}]" if key == KIND else f"{key}={value}")
    assert named in line
    assert (key if key != TYPE or "." not in value else "planner") in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", [KIND, TYPE, SENSOR, ACTOR, "experiment.algorithm"])
def test_an_error_in_the_constructor_of_an_own_part_is_one_line(tmp_path, refused, key) -> None:
    path = f"{MODULE}.Broken"
    line = refused(train, "bad", f"{key}=[{path}]" if key == KIND else f"{key}={path}")
    raised = Broken.__init__.__code__.co_firstlineno + 1
    expected = (path, "ZeroDivisionError", f"line {raised} of {sys.modules[MODULE].__file__}")
    assert all(part in line for part in expected)
    assert (key if key != TYPE else "planner") in line
    assert not (tmp_path / "runs").exists()


def test_an_own_terrain_that_reads_numbers_when_it_is_made_is_trained_over() -> None:
    assert train("measured", f"{KIND}=[{MODULE}.Measuring]") == 0


def test_tensors_that_the_module_of_an_own_algorithm_creates_have_values(tmp_path: Path) -> None:
    (tmp_path / "halving.py").write_text(
        "import torch\nfrom tests.custom_parts import Reinforce\nHALF = torch.tensor(0.5)\n"
        "class Halving(Reinforce):\n"
        "    def act(self, seen):\n"
        "        return HALF * super().act(seen)\n",
        encoding="utf-8",
    )
    assert train("halved", "experiment.algorithm=halving.Halving") == 0


def test_configurations_never_import_what_they_name() -> None:
    """A checkpoint's configuration is read without running code; only missions load parts."""
    config = small_config(
        experiment={"reward": {"function": "broken.reward"}},
        sensor={"simulation": {"kinds": ("broken.Terrain",)}},
    )
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        Terrain(config, "cpu", "training")
