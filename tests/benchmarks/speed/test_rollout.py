"""The benchmarks of speed: what they write, that their numbers agree, and what they count."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

from benchmarks import harness, rollout, scaling, training
from marl_framework.config.loading import load_config
from marl_framework.mission.environment import MissionEnvironment
from marl_framework.training.timing import StageTimer
from marl_framework.training.trainer import Trainer

CPU = torch.device("cpu")
BANDWIDTH = 1e10
SMALL = ["--config", "params_test.yaml", "--device", "cpu", "--seconds-per-row", "0.001"]
FLOAT32 = "compute.precision=float32"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Half a gigabyte is not copied, no process is started: tests of their own look at those."""
    monkeypatch.setattr(harness, "memory_bandwidth", lambda _: BANDWIDTH)
    monkeypatch.setattr(rollout, "in_fresh_process", lambda work: work())
    torch.set_num_threads(1)  # compiled loops take all cores when they are first called


@pytest.fixture(scope="module")
def config():
    return load_config("params_test.yaml", [FLOAT32])


def run(module, tmp_path, *arguments):
    """Run a benchmark in this process; return what it wrote."""
    out = tmp_path / "found.json"
    assert module.main([*SMALL, "--out", str(out), *arguments]) == 0
    found = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert found["schema"] == harness.SCHEMA
    assert found["suite"] == module.SUITE
    assert found["machine"]["memory_bandwidth"] == {"cpu": BANDWIDTH}
    return found


def positive(values):
    return all(isinstance(value, int | float) and value > 0 for value in values)


# Rollout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", rollout.POLICIES)
def test_rollout_writes_consistent_rows(policy, tmp_path, capsys, monkeypatch):
    for name, value in (("MOST_EAGER", 1), ("MEMORY_ENVS", (2, 4)), ("SETTLED", 2)):
        monkeypatch.setattr(rollout, name, value)
    found = run(
        rollout, tmp_path, "--num-envs", "3,1", "--policy", policy, "--episodes", "3",
        "--set", FLOAT32,
    )  # fmt: skip
    rows = found["rows"]
    assert [(r["num_envs"], r["compiled"]) for r in rows] == [(1, True), (1, False), (3, True)]
    for row in rows:
        assert row["agent_steps_per_s"] == pytest.approx(2 * row["joint_steps_per_s"])
        assert row["joint_steps_per_s"] * row["seconds_per_joint_step"] == pytest.approx(1)
        assert 0 < row["lower_quartile"] <= row["seconds_per_joint_step"] <= row["upper_quartile"]
        assert row["episodes"] >= 3
        assert tuple(row["stages"]) == rollout.STAGES
        assert positive(row["stages"][stage] for stage in rollout.STAGES[:-1])
        total = sum(row["stages"].values())
        assert row["reset_share"] == pytest.approx(row["stages"]["reset"] / total)
    assert isinstance(found["bytes_per_env"], float)
    growth = found["growth_over_episodes"]
    assert growth["episodes"] == [2, 3]
    assert growth["growth_bytes"] == growth["held_bytes"][1] - growth["held_bytes"][0]
    assert found["settings"]["policy"] == policy
    printed = capsys.readouterr().out
    assert "one move of all UAVs of one mission" in printed
    assert "One more mission takes" in printed


def test_random_policy_is_even_over_the_allowed_actions(config):
    flown = rollout.Flight(config, 5, CPU).episode()
    even = flown.masks / flown.masks.sum(-1, keepdim=True)
    assert torch.allclose(flown.probabilities, even)


def test_stages_are_watched_only_while_they_are_timed(config):
    flight = rollout.Flight(config, 2, CPU)
    policy, owned = flight._policy, set(vars(flight.environment))
    first = flight.stages(1)
    assert tuple(first) == rollout.STAGES
    assert flight._policy is policy
    assert set(vars(flight.environment)) == owned


def test_a_stage_inside_another_belongs_to_the_outer_one():
    clock = rollout._StageClock(CPU)
    now = 0.0

    def wait(seconds):
        nonlocal now
        now += seconds

    clock._timer = StageTimer(CPU, clock=lambda: now)
    inner = clock.around("inner", wait)

    def both():
        wait(1)
        inner(2)

    outer = clock.around("outer", both)

    def work():
        outer()
        inner(4)
        wait(8)

    for _ in range(2):  # every call starts anew
        assert clock.measure(work) == {"outer": 3, "inner": 4, "other": 8}


def test_memory_of_a_mission_is_the_slope_between_both_numbers(config, monkeypatch):
    few, many = rollout.MEMORY_ENVS
    peaks = {few: 1_000_000 + few * 700, many: 1_000_000 + many * 700}
    monkeypatch.setattr(rollout, "flight_peak", lambda _c, num, _d, _p: peaks[num])
    assert rollout.bytes_per_env(config, CPU, "random") == 700


def test_memory_is_measured_in_another_process(monkeypatch):
    monkeypatch.undo()
    assert rollout.in_fresh_process(os.getpid) != os.getpid()


def test_more_missions_than_memory_are_refused(config, monkeypatch, tmp_path, capsys):
    rows, cols = config.map_shape
    monkeypatch.setattr(harness, "free_memory", lambda _: 10 * rows * cols * (2 * 4 + 4 + 1))
    rollout.refuse_too_many(config, 10, CPU)
    arguments = [*SMALL, "--num-envs", "4,11", "--out", str(tmp_path / "o.json")]
    assert rollout.main(arguments) == harness.BAD_INPUT
    error = capsys.readouterr().err
    assert "there is room for 10 missions" in error
    assert not (tmp_path / "o.json").exists()


# Training ---------------------------------------------------------------------------------


def test_training_writes_consistent_numbers(tmp_path, capsys):
    found = run(training, tmp_path, "--steps", "2", "--precision", "float32")
    step, alone = found["seconds_per_training_step"], found["networks"]
    assert found["transitions_per_training_step"] == 4 * 2 * 4  # missions, UAVs, moves
    assert found["agent_transitions_per_s"] * step == pytest.approx(32)
    assert alone["agent_transitions_per_s"] * alone["seconds"] == pytest.approx(32)
    assert alone["flops_per_s"] * alone["seconds"] == pytest.approx(alone["flops"])
    assert 0 < found["lower_quartile"] <= step <= found["upper_quartile"]
    assert found["precision"] == "float32"
    assert found["settings"]["configuration"]["networks"]["precision"] == "float32"
    assert set(found["stages"]) == {"rollout", "update", "other"}
    assert set(alone["stages"]) == {"inference", "targets", "learning"}
    assert positive([*alone["stages"].values(), found["stages"]["rollout"]])
    assert positive([found["share_of_network_limit"], found["peak_memory_bytes"]])
    assert found["settings"]["inference_batches"] == {"8": 4}
    assert found["settings"]["learning_batches"] == {"16": 4}  # 2 batches, 2 passes
    assert "of the networks' limit" in capsys.readouterr().out


def test_share_is_the_median_over_pairs(config, monkeypatch):
    """Neither a slow step nor a fast machine in one pair moves it."""
    walls, alone = iter([1.0, 10.0, 2.0]), iter([0.5, 0.0, 4.0, 1.8])
    monkeypatch.setattr(StageTimer, "wall", lambda _: next(walls))
    monkeypatch.setattr(
        training.NetworksAlone, "seconds", lambda _: {"inference": 0.0, "learning": next(alone)}
    )
    monkeypatch.setattr(training.NetworksAlone, "flops", lambda _: 7)
    monkeypatch.setattr(training, "Trainer", StillTrainer)
    walls = iter([100.0, 1.0, 10.0, 2.0])  # the first warms up
    found = training.run(config, CPU, 3)
    assert found["share_of_network_limit"] == pytest.approx(0.5)  # of 0.5, 0, 2
    assert found["seconds_per_training_step"] == 2.0


class StillTrainer(Trainer):
    """Counts its training steps and makes none."""

    def _training_step(self, timer):
        self.episodes += self.task.num_envs
        return {}, {}


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["environment.num_envs=3", "learning.batch_size=20", "learning.batch_number=3"],
        ["learning.batch_number=16", "learning.batch_size=2", "learning.data_passes=1"],
    ],
)
def test_calls_alone_are_those_of_a_training_step(overrides):
    trainer = Trainer(load_config("params_test.yaml", [FLOAT32, *overrides]), CPU)
    calls = {"actor": [], "critic": [], "target_critic": []}
    for name, sizes in calls.items():

        def note(_module, inputs, _outputs, sizes=sizes):
            sizes.append((len(inputs[0]), torch.is_grad_enabled()))

        getattr(trainer.coma, name).register_forward_hook(note)
    trainer._training_step(StageTimer(CPU))
    expected = training.NetworkCalls.of(trainer.config, trainer._rollouts_per_step)
    learning = [(size, True) for size in expected.learning]
    assert calls["target_critic"] == [(size, False) for size in expected.targets]
    assert calls["critic"] == learning
    assert calls["actor"] == [(size, False) for size in expected.inference] + learning


def test_operations_of_the_networks(config):
    """Kernels 5, 4, 4 on 11 × 11 with 8 channels leave 7 × 7, 4 × 4, 1; then 8 → 8 → 6."""
    trainer = Trainer(config, CPU)
    alone = training.NetworksAlone(trainer)

    def layers(channels):
        return [
            channels * 8 * 5**2 * 7**2, 8 * 8 * 4**2 * 4**2, 8 * 8 * 4**2, 8 * 8, 8 * 6,
        ]  # fmt: skip

    actor, critic = (
        layers(n) for n in (trainer.coma.sizes.actor_channels, trainer.coma.sizes.critic_channels)
    )
    # Backward takes twice a forward pass, but nobody asks for the gradient of the inputs.
    learned = 3 * sum(actor) - actor[0] + 3 * sum(critic) - critic[0]
    calls = alone.calls
    expected = (
        sum(calls.inference) * sum(actor)
        + sum(calls.targets) * sum(critic)
        + sum(calls.learning) * learned
    )
    assert alone.flops() == 2 * expected


def test_peak_memory_notices_what_is_given_back_and_starts_anew():
    size = 64 * 2**20
    training.reset_peak_memory(CPU)
    before = training.peak_memory(CPU)
    block = np.ones(size, dtype=np.uint8)
    held = training.held_memory(CPU)
    del block
    assert training.peak_memory(CPU) >= before + 0.9 * size
    assert training.held_memory(CPU) <= held - 0.9 * size
    training.reset_peak_memory(CPU)
    assert training.peak_memory(CPU) <= before + 0.5 * size


# Scaling ----------------------------------------------------------------------------------


def test_scaling_writes_exponents_of_its_rows_and_a_figure(tmp_path, capsys):
    found = run(scaling, tmp_path, "--quick", "--set", FLOAT32)
    assert [axis["axis"] for axis in found["axes"]] == ["missions", "uavs", "cells", "positions"]
    for axis, described in zip(found["axes"], scaling.AXES, strict=True):
        sizes = [row["size"] for row in axis["rows"]]
        assert [row["value"] for row in axis["rows"]] == list(described.quick)
        assert sizes == sorted(set(sizes))
        assert all(r["lower_quartile"] <= r["seconds_per_step"] for r in axis["rows"])
        half = len(sizes) // 2 + 1
        fitted = np.polyfit(
            np.log(sizes[-half:]), np.log([r["seconds_per_step"] for r in axis["rows"]][-half:]), 1
        )
        assert axis["exponent"] == pytest.approx(fitted[0])
    by_name = {axis["axis"]: axis for axis in found["axes"]}
    assert [row["size"] for row in by_name["cells"]["rows"]] == [103**2, 207**2]
    assert [row["size"] for row in by_name["positions"]["rows"]] == [6**2, 11**2]
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "lattice positions" in capsys.readouterr().out


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 2.0])
def test_exponent_of_known_growth(exponent):
    sizes = [1, 2, 4, 8, 16, 32]
    grown = [1e-3 * size**exponent for size in sizes]
    assert scaling.fit_exponent(sizes, grown) == pytest.approx(exponent)
    assert scaling.fit_exponent(sizes[-2:], grown[-2:]) == pytest.approx(exponent)


def test_exponent_looks_at_the_larger_half_alone():
    sizes = [1, 2, 4, 8, 16, 32]
    seconds = [5.0, 5.0, 4.0, 8.0, 16.0, 32.0]
    assert scaling.fit_exponent(sizes, seconds) == pytest.approx(1)


def test_one_size_has_no_exponent():
    with pytest.raises(ValueError, match="two sizes"):
        scaling.fit_exponent([1], [1.0])


def test_every_size_suits_the_paper():
    config = load_config("params.yaml")
    for axis in scaling.AXES:
        changed = [
            training.with_overrides(config, *axis.setting(config, value)) for value in axis.values
        ]
        sizes = [axis.size(one) for one in changed]
        assert sizes == sorted(set(sizes))
    sides = scaling.AXES[-1].values
    assert sizes == [side**2 for side in sides]


def test_work_of_a_lonely_uav(config):
    """It hears nobody, and what it measures is all that is seen."""
    work = scaling.count_work(training.with_overrides(config, "experiment.missions.n_agents=1"))
    cells = work["cells_measured"]
    assert cells > 0
    assert work["cells_heard"] == 0
    assert work["cells_seen"] == cells
    assert work["bayes_updates"] == 2 * cells
    assert work["bytes"] == 15 * cells + 8 * cells + 4 * (9 + 15) * 11 * 11


def test_work_counts_each_seen_cell_once_and_each_message(config, monkeypatch):
    """All UAVs hear each other; the views are painted one cell after the other."""
    monkeypatch.setattr(scaling, "COUNTED", 2)
    loud = training.with_overrides(config, "experiment.uav.communication_range=.inf")
    views = []

    class Watched(MissionEnvironment):
        def step(self, state, actions, draws):
            result = super().step(state, actions, draws)
            for box in torch.stack(self.camera.footprint(state.positions), -1).tolist():
                view = np.zeros(self.camera.shape)
                for row0, row1, col0, col1, *_ in box:
                    view[row0:row1, col0:col1] += 1
                views.append(view)
            return result

    monkeypatch.setattr(scaling, "MissionEnvironment", Watched)
    work = scaling.count_work(loud)
    assert len(views) == 2 * loud.episode_length
    measured = sum(view.sum() for view in views) / len(views)
    assert work["cells_measured"] == pytest.approx(measured)
    assert work["cells_heard"] == pytest.approx(measured)  # the other one's, for two UAVs
    assert work["cells_seen"] == pytest.approx(sum((v > 0).sum() for v in views) / len(views))
    entropies = 2 * work["cells_seen"] + work["cells_measured"] + work["cells_heard"]
    assert work["logarithms"] == 4 * entropies  # params_test.yaml has the uncertainty maps


# Command lines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "arguments", "complaint"),
    [
        (rollout, ["--num-envs", "0"], "--num-envs 0: must lie in 1"),
        (rollout, ["--num-envs", "4,x"], "--num-envs 4,x: give whole numbers"),
        (rollout, ["--num-envs", "2000000"], "must lie in 1"),
        (rollout, ["--policy", "greedy"], "greedy"),
        (rollout, ["--episodes", "50"], "--episodes 50: must be above 50"),
        (rollout, ["--set", "networks.nonsense=1"], "nonsense"),
        (training, ["--steps", "0"], "--steps 0: must lie in 1"),
        (training, ["--steps", "many"], "many"),
        (training, ["--precision", "float8"], "float8"),
        (training, ["--precision", "float16"], "float16 needs a GPU"),
        (scaling, ["--seconds-per-row", "0"], "--seconds-per-row 0"),
        (scaling, ["--set", "environment.x_dim=3"], "lattice"),
        *(
            (module, arguments, complaint)
            for module in (rollout, training, scaling)
            for arguments, complaint in [
                (["--device", "cuda:99"], "cuda:99"),
                (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
                (["--out", "found.txt"], "must end in .json"),
            ]
        ),
    ],
)
def test_bad_arguments_end_with_one_line(module, arguments, complaint, tmp_path, capsys):
    out = tmp_path / "found.json"
    try:
        code = module.main([*SMALL, "--out", str(out), *arguments])
    except SystemExit as leaving:
        code = leaving.code
    assert code == harness.BAD_INPUT
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert complaint in error
    assert not out.exists()
