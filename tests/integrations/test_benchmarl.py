from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.environments import task_config_registry, tasks
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.hydra_config import load_task_config_from_hydra
from benchmarl.models import CnnConfig
from hydra import compose, initialize_config_module
from torch import Tensor
from torchrl.envs import Compose, TransformedEnv
from torchrl.envs.utils import check_env_specs

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import load_config
from marl_framework.integrations import benchmarl
from marl_framework.integrations.benchmarl import MissionTask
from marl_framework.integrations.missions import Missions
from marl_framework.mission.seeding import SPLITS, split_seed
from tests.integrations.core_flight import fly

OVERRIDES = [
    "experiment.missions.n_agents=3",
    "experiment.constraints.budget=3",
    "environment.seed=5",
]


def _task() -> Any:
    return MissionTask.MAPPING.get_task({"params": "params_test.yaml", "overrides": OVERRIDES})


def _env(task: Any) -> TransformedEnv:
    env = task.get_env_fun(2, continuous_actions=False, seed=None, device="cpu")()
    return TransformedEnv(env, Compose(*task.get_env_transforms(env)))


def _experiment(algorithm: Any, folder: Path) -> Experiment:
    config = ExperimentConfig.get_from_yaml()
    config.save_folder = str(folder)
    config.loggers, config.create_json, config.render = [], False, False
    config.max_n_iters, config.max_n_frames = 3, None
    config.on_policy_collected_frames_per_batch = 32
    config.on_policy_n_envs_per_worker, config.on_policy_minibatch_size = 4, 16
    config.on_policy_n_minibatch_iters = 1
    config.evaluation_interval, config.evaluation_episodes = 32, 2
    model = CnnConfig.get_from_yaml()
    model.cnn_num_cells, model.mlp_num_cells = [8], [16]
    return Experiment(_task(), algorithm.get_from_yaml(), model, seed=0, config=config)


@pytest.mark.filterwarnings("ignore")  # the libraries warn of each other
@pytest.mark.parametrize(("algorithm", "static"), [(MappoConfig, False), (IppoConfig, True)])
def test_experiments_learn_and_evaluate_on_missions_that_no_training_flies(
    algorithm: Any, static: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flown: list[tuple[str, Tensor]] = []
    reset = Missions.reset

    def record(missions: Missions, mask: Tensor | None = None) -> None:
        seed = missions.environment.generator.initial_seed()
        reset(missions, mask)
        names = {split_seed(0, split): split for split in SPLITS}
        flown.append((names[seed], missions.state.truth.clone()))

    experiment = _experiment(algorithm, tmp_path)
    before = [p.detach().clone() for p in experiment.policy.parameters()]
    experiment.config.evaluation_static = static
    experiment.config.create_json = True  # it evaluates only with a log
    experiment._setup_logger()
    monkeypatch.setattr(Missions, "reset", record)
    experiment.run()
    assert experiment.n_iters_performed == 3
    after = list(experiment.policy.parameters())
    assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert all(parameter.isfinite().all() for parameter in after)
    assert {split for split, _ in flown} == {"training", "validation"}
    trained = torch.cat([truth for split, truth in flown if split == "training"])
    judged = [truth for split, truth in flown if split == "validation"]
    assert not any(torch.equal(a, b) for a in trained for b in torch.cat(judged))
    assert torch.equal(judged[0], judged[1]) == static


def test_rewards_and_maps_are_the_cores() -> None:
    flight = fly(load_config("params_test.yaml", OVERRIDES), 2)
    task = _task()
    env = _env(task)
    steps = iter(flight.actions)
    for episode in range(2):
        data = env.rollout(task.max_steps(env), lambda td: td.set(("uavs", "action"), next(steps)))
        assert data["next", "done"][:, -1].all()
        rows = slice(episode * data.shape[1], (episode + 1) * data.shape[1])
        maps = data["uavs", "observation"].movedim(-1, -3).transpose(0, 1)
        assert torch.equal(maps, flight.observations[rows])
        rewards = data["next", "uavs", "reward"]
        assert torch.equal(rewards, flight.rewards[rows].mT[..., None, None].expand_as(rewards))


def test_specs_are_those_of_the_environment() -> None:
    task = _task()
    env = _env(task)
    check_env_specs(env)
    assert task.group_map(env) == {"uavs": ["uav_0", "uav_1", "uav_2"]}
    seen = env.reset()[0]
    for spec in (task.observation_spec(env), task.state_spec(env), task.action_mask_spec(env)):
        (key,) = spec.keys(True, True)
        assert seen[key].shape == spec[key].shape
    assert task.info_spec(env) is None


def test_the_task_is_registered_and_benchmarls_configuration_finds_its_file() -> None:
    assert MissionTask in tasks
    assert task_config_registry["marl_framework/mapping"] is MissionTask.MAPPING
    with initialize_config_module("benchmarl.conf", version_base=None):
        choices = ["algorithm=mappo", "task=marl_framework/mapping", "task.params=params_fast.yaml"]
        place = f"hydra.searchpath=[file://{benchmarl._CONF}]"
        config = compose("config", [*choices, place], return_hydra_config=True)
    with pytest.warns(UserWarning, match="TaskConfig python dataclass not found"):
        task = load_task_config_from_hydra(config.task, "marl_framework/mapping")
    assert task.config == MissionTask.MAPPING.get_task().config | {"params": "params_fast.yaml"}
    assert task == MissionTask.MAPPING.get_task({"params": "params_fast.yaml"})


def test_a_bad_params_file_ends_the_command_line_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ConfigError("nosuch.yaml: no such file")

    monkeypatch.setattr("benchmarl.run.hydra_experiment", fail)
    monkeypatch.setattr("sys.argv", ["benchmarl"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert benchmarl.main() == 2
    assert capsys.readouterr().err == "error: nosuch.yaml: no such file\n"


@pytest.mark.parametrize(
    "override",
    [
        "experiment.missions.n_agents=[2, 3]",
        "experiment.constraints.cost.limit=40",
        "experiment.uav.crash_rate=0.1",
        "environment.sead=1",
    ],
)
def test_bad_overrides_and_uavs_that_do_not_fly_all_the_time_are_refused(override: str) -> None:
    task = MissionTask.MAPPING.get_task({"params": "params_test.yaml", "overrides": [override]})
    with pytest.raises(ConfigError, match=override.split("=")[0]):
        task.get_env_fun(2, continuous_actions=False, seed=None, device="cpu")
