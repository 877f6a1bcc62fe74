"""Trainings that start with the weights of a trained team."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marl_framework.algorithms.registry import make_algorithm
from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import config_to_dict
from marl_framework.config.model import Config
from marl_framework.networks.map_predictor import MapPredictor
from marl_framework.observations.prediction import predictor_state, predictor_weights
from marl_framework.planners.team import Checkpoint
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint
from marl_framework.stage_timer import StageTimer
from marl_framework.training.initial import follow_teacher, take_weights
from marl_framework.training.trainer import Trainer
from tests.algorithms.making import same
from tests.running import results, run_main
from tests.small import small_config
from tests.teams import save_predictor

CPU = torch.device("cpu")


def team(config: Config) -> Checkpoint:
    """Return a checkpoint whose weights no training starts with."""
    torch.manual_seed(7)
    state = make_algorithm(config, "cpu").state_dict()
    return Checkpoint(Path("team.pt"), {**state, "config": config_to_dict(config)})


def taken(config: Config, checkpoint: Checkpoint) -> tuple[Trainer, list[str], str]:
    trainer = Trainer(config, CPU)
    record, line = take_weights(trainer.algorithm, config, checkpoint)
    for name, module in trainer.algorithm.modules.items():
        same = [
            torch.equal(ours, checkpoint.payload.get(name, {}).get(key, torch.empty(0)))
            for key, ours in module.state_dict().items()
        ]
        assert all(same) == (name in record["networks"])
    return trainer, record["networks"], line


def test_all_networks_are_taken_where_all_fit() -> None:
    """Terrain, team and schedule may differ."""
    field = {"simulation": {"kinds": ("random_field",)}}
    config = small_config(agents=4, sensor={**field, "pixel": {"number_x": 12, "number_y": 12}})
    _, names, line = taken(config, team(small_config()))
    assert names == ["actor", "critic", "target_critic"]
    assert line == "starts with actor, critic, target_critic of team.pt"


def test_a_target_actor_follows_the_actor_that_a_training_starts_with() -> None:
    config = small_config(experiment={"algorithm": "qmix"})
    trainer = Trainer(config, CPU)
    _, line = take_weights(trainer.algorithm, config, team(small_config()))
    assert line.startswith("starts with actor of team.pt; other networks are new")
    assert same(trainer.algorithm.target_actor, trainer.algorithm.actor)


@pytest.mark.parametrize(
    ("there", "key"),
    [
        ({"experiment": {"algorithm": "iac"}}, "experiment.algorithm"),
        ({"observation": {"global_entropy": False}}, "observation.global_entropy"),
        ({"networks": {"critic": {"conv_channels": 4}}}, "networks.critic.conv_channels"),
    ],
)
def test_a_critic_that_does_not_fit_stays_new(there: dict[str, Any], key: str) -> None:
    base = small_config().model_dump(by_alias=True)
    for section, values in there.items():
        base[section] = {**base[section], **values}
    if "networks" in there:
        base["networks"]["actor"] = small_config().networks.actor.model_dump()
    _, names, line = taken(small_config(), team(Config.model_validate(base)))
    assert names == ["actor"]
    assert line.endswith(f"other networks are new, because they differ in {key}")


def test_the_scale_of_a_critic_is_taken_with_it() -> None:
    tree = small_config(learning={"clip_ratio": 0.2}).model_dump(by_alias=True)
    tree["experiment"]["algorithm"] = "mappo"
    config = Config.model_validate(tree)
    checkpoint = team(config)
    checkpoint.payload["value_normalizer"]["mean"].fill_(4.0)
    trainer, names, _ = taken(config, checkpoint)
    assert names == ["actor", "critic"]
    assert trainer.algorithm.state_dict()["value_normalizer"]["mean"] == 4.0


@pytest.mark.parametrize(
    ("ours", "key"),
    [
        ({"dims": (40.0, 40.0)}, "environment.x_dim"),
        ({"actions": 4}, "experiment.constraints.num_actions"),
        ({"observation": {"agent_id": False}}, "observation.agent_id"),
        ({"networks": {"actor": {"conv_channels": 9}}}, "networks.actor.conv_channels"),
    ],
)
def test_an_actor_that_does_not_fit_is_refused_by_the_key(ours: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        taken(small_config(**ours), team(small_config()))
    assert str(error.value).startswith(f"--init-from team.pt: {key}")


def pulled(tmp_path: Path, there: Config, noted: Any = None, **sections: Any) -> Trainer:
    """Return a trainer whose actor is pulled to a team that was trained elsewhere."""
    path = tmp_path / "teacher.pt"
    save_checkpoint(path, {**team(there).payload, **(noted or {})})
    teacher = {"run": str(path), "weight": 1.0}
    return Trainer(small_config(learning={"teacher": teacher}, **sections), CPU)


def test_a_training_is_pulled_to_its_teacher_of_any_width(tmp_path: Path) -> None:
    wide = {"networks": {"actor": {"conv_channels": 9, "hidden_dim": 9}}}
    trainer, alone = pulled(tmp_path, small_config(agents=2, **wide)), Trainer(small_config(), CPU)
    actors = (each.algorithm.modules["actor"].parameters() for each in (trainer, alone))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*actors, strict=True))
    metrics, _ = trainer.make_steps(StageTimer(CPU))
    assert metrics["teacher_kl"] > 0


def test_a_teacher_of_weight_0_is_not_even_looked_for() -> None:
    config = small_config(learning={"teacher": {"run": "missing.pt", "weight": 0.0}})
    metrics, _ = Trainer(config, CPU).make_steps(StageTimer(CPU))
    assert "teacher_kl" not in metrics


@pytest.mark.parametrize(
    ("there", "line"),
    [
        ({"dims": (40.0, 40.0)}, "environment.x_dim"),
        ({"observation": {"budget": False}}, "observation.budget"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_by_the_key(tmp_path, there, line) -> None:
    with pytest.raises(ConfigError, match=rf"^learning.teacher.run.*{line}"):
        pulled(tmp_path, small_config(**there))


def test_a_teacher_sees_the_predictions_that_it_learned_with(tmp_path: Path) -> None:
    network = MapPredictor(4)
    payloads = [predictor_state(network, 4), predictor_state(network, 4)]
    payloads.append(predictor_state(MapPredictor(4), 4))
    learned, same, other = (
        {"observation": {"predicted": True}, "networks": {"predictor": str(tmp_path / name)}}
        for name in ("learned.pt", "same.pt", "other.pt")
    )
    for sections, payload in zip((learned, same, other), payloads, strict=True):
        save_checkpoint(Path(sections["networks"]["predictor"]), payload)
    there = small_config(**learned)
    pulled(tmp_path, there, **same)
    with pytest.raises(ConfigError, match=r"networks\.predictor.*learned\.pt.*other\.pt"):
        pulled(tmp_path, there, **other)
    # Where the team has noted its weights, the file need not be there, nor be the same.
    file = tmp_path / "learned.pt"
    noted = {"weights_read": predictor_weights(str(file), "networks.predictor")}
    save_checkpoint(file, payloads[2])
    with pytest.raises(ConfigError, match=r"networks\.predictor.*learned\.pt.*learned\.pt"):
        pulled(tmp_path, there, noted, **learned)
    file.unlink()
    pulled(tmp_path, there, noted, **same)


def test_an_algorithm_that_cannot_be_pulled_is_refused() -> None:
    config = small_config(learning={"teacher": {"run": "a.pt", "weight": 1.0}})
    with pytest.raises(ConfigError, match=r"^learning.teacher.run: coma has no follow_teacher"):
        follow_teacher(SimpleNamespace(), config, CPU)


class House:
    def __init__(self, base: Path) -> None:
        self.base, self.runs = base, base / "runs"

    def train(self, name: str, *options: str, seed: int = 3, steps: int = 4) -> int:
        sets = (
            f"environment.seed={seed}",
            f"learning.training_steps={steps}",
            "logging.checkpoint_interval=1",
            "evaluation.interval=0",
        )
        return run_main(self.base, name, *options, sets=sets)

    def results(self, name: str) -> dict[str, Any]:
        return results(self.runs / name)


def test_a_run_records_what_it_started_with_and_resumes_without_it(tmp_path, capsys) -> None:
    house = House(tmp_path)
    assert house.train("a", seed=9, steps=1) == 0
    assert house.train("fresh") == 0
    start = ("--init-from", str(house.runs / "a"))
    assert house.train("whole", *start) == 0
    assert f"starts with actor, critic, target_critic of {house.runs / 'a'}" in (
        capsys.readouterr().out
    )
    whole = house.results("whole")
    assert whole["weights_sha256"] != house.results("fresh")["weights_sha256"]
    record = whole["initial_weights"]
    assert record["checkpoint"] == str(house.runs / "a" / "checkpoints" / "best.pt")
    noted = json.loads((house.runs / "whole" / "environment.json").read_text())
    assert noted["initial_weights"] == record
    assert "initial_weights" not in house.results("fresh")

    assert house.train("parts", *start, steps=2) == 0
    (house.runs / "a").rename(house.runs / "moved")
    longer = ("--resume", "--allow-changed", "learning.training_steps")
    assert house.train("parts", *start, *longer) == 0
    assert house.results("parts")["weights_sha256"] == whole["weights_sha256"]
    assert house.results("parts")["initial_weights"] == record


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_as_it_did(tmp_path) -> None:
    house = House(tmp_path)
    assert house.train("a", seed=9, steps=1) == 0
    assert house.train("b", "--init-from", str(house.runs / "a")) == 0
    expected = house.results("b")["weights_sha256"]
    shutil.rmtree(house.runs / "b" / "checkpoints")
    (house.runs / "b" / "summary.json").unlink()
    assert house.train("b", "--resume") == 0
    assert house.results("b")["weights_sha256"] == expected


def test_a_resumed_training_notices_another_teacher_and_needs_none_once_its_pull_is_over(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    house, teacher = House(tmp_path), tmp_path / "teacher.pt"
    assert house.train("a", seed=9, steps=1) == 0
    best = house.runs / "a" / "checkpoints" / "best.pt"
    shutil.copy(best, teacher)
    keys = (f"run={teacher}", "weight=1.0", "anneal_steps=3")
    pull = tuple(part for key in keys for part in ("--set", f"learning.teacher.{key}"))
    longer = (*pull, "--resume", "--allow-changed", "learning.training_steps")
    assert house.train("whole", *pull, steps=4) == 0
    assert house.train("parts", *pull, steps=2) == 0

    payload = load_checkpoint(best)
    payload["actor"]["head.bias"] += 1
    save_checkpoint(teacher, payload)
    line = refused(house.train, "parts", *longer, steps=3)
    assert f"learning.teacher.run: {teacher} has changed since this run began" in line
    shutil.copy(best, teacher)
    assert house.train("parts", *longer, steps=3) == 0
    teacher.unlink()
    assert house.train("parts", *longer, steps=4) == 0
    parts, whole = (house.results(name)["weights_sha256"] for name in ("parts", "whole"))
    assert parts == whole


@pytest.mark.parametrize(
    "options", [("missing.pt",), (__file__, "--set", "experiment.policy=random"), (__file__,)]
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, refused, options) -> None:
    house = House(tmp_path)
    assert refused(house.train, "c", "--init-from", *options).startswith("error: --init-from")
    assert not house.runs.exists()


def test_a_resumed_training_notices_another_predictor(tmp_path, refused) -> None:
    house, predictor = House(tmp_path), tmp_path / "predictor.pt"
    sees = ("--set", "observation.predicted=true", "--set", f"networks.predictor={predictor}")
    save_predictor(predictor, small_config())
    assert house.train("a", *sees, steps=1) == 0
    save_predictor(predictor, small_config(), seed=6)
    longer = ("--resume", "--allow-changed", "learning.training_steps")
    line = refused(house.train, "a", *sees, *longer, steps=2)
    assert f"networks.predictor: {predictor} " in line
