"""Params files, overrides and the errors they give."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_framework.config.errors import ConfigError, ConfigWarning
from marl_framework.config.loading import (
    config_from_dict,
    config_to_dict,
    load_config,
    resolve_config_path,
)
from marl_framework.config.messages import SECTIONS
from marl_framework.config.model import Config

PUBLISHED = Path(__file__).parents[1] / "data" / "published_params.yaml"
DROPPED = [
    "sensor.encoding",
    "sensor.model.coeff_a",
    "sensor.model.coeff_b",
    "sensor.simulation.type",
    "experiment.uav.max_v",
    "experiment.uav.max_a",
    "experiment.uav.sampling_time",
    "experiment.missions.action_space",
    "experiment.missions.planning_uncertainty",
    "experiment.missions.class_weighting",
    "experiment.missions.reward_normalization",
    "evaluation.repetitions",
    "evaluation.metrics",
    "networks.actor.momentum",
    "networks.critic.momentum",
    "networks.critic.update_mode",
    "networks.critic.synchronization",
    "networks.type",
    "sensor.type",
    "classification",
]
Loader = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """Load a params file of the given text."""

    def load_text(text: str | bytes, *overrides: str) -> Config:
        file = tmp_path / "p.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(file, overrides)

    return load_text


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(error.value)
    assert text
    assert text.isprintable()
    assert "pydantic" not in text
    assert "http" not in text
    assert "Input should" not in text
    return text


def set_key(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    node: Any = tree
    *parents, leaf = path.split(".")
    for name in parents:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node[leaf] = value
    return tree


def test_the_published_file_loads_and_names_what_it_drops_in_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = load_config(PUBLISHED)
    assert [w.category for w in caught] == [ConfigWarning]
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    assert text.isprintable()
    dropped = text.partition("any more: ")[2].split(", ")
    assert sorted(dropped) == sorted(DROPPED)
    ours = set_key(config_to_dict(Config()), "experiment.title", "published")
    set_key(ours, "environment.num_envs", 2)
    set_key(ours, "networks.actor.hidden_dim", 128)
    set_key(ours, "networks.critic.hidden_dim", 64)
    assert config_to_dict(config) == ours


@pytest.mark.parametrize(("text", "kinds"), [("", ("split",)), (", kinds: [band]", ("band",))])
def test_a_published_random_field_is_split_unless_kinds_are_given(
    load: Loader, text: str, kinds: tuple[str, ...]
) -> None:
    with pytest.warns(ConfigWarning, match=r"sensor\.simulation\.type"):
        config = load(f"sensor: {{simulation: {{type: random_field{text}}}}}")
    assert config.sensor.simulation.kinds == kinds


def test_coefficients_count_under_exponential_and_make_no_warning(load: Loader) -> None:
    model = load("sensor: {model: {type: exponential, coeff_a: 0.1, coeff_b: 0.3}}").sensor.model
    assert (model.type, model.coeff_a, model.coeff_b) == ("exponential", 0.1, 0.3)


def test_a_number_with_an_exponent_is_a_number(load: Loader) -> None:
    text = "learning: {actor: {learning_rate: 3e-4, gradient_norm: 1E2}, tau: .5e-2}"
    learning = load(text).learning
    assert learning.actor.learning_rate == 3e-4
    assert learning.actor.gradient_norm == 100
    assert learning.tau == 5e-3


def test_missions_draw_from_lists(load: Loader) -> None:
    config = load(
        "experiment: {missions: {n_agents: [2, 4]}, constraints: {budget: [9, 14]}, "
        "uav: {communication_range: [0, .inf], failure_rate: 0.5}}"
    )
    assert config.missions.team_sizes == (2, 4)
    assert config.missions.most_agents == 4
    assert config.missions.episode_length == 15
    assert config.schedule.transitions_per_mission == 3 * 12.5
    assert (
        config.schedule.places_per_step
        == config.schedule.rollouts_per_step * config.environment.num_envs * 60
    )
    assert config.experiment.uav.communication_range == (0.0, math.inf)
    assert config.missions.has_inactive
    assert [key.rpartition(".")[2] for key in config.missions.drawn_keys] == [
        "n_agents", "budget", "communication_range"
    ]  # fmt: skip


def test_one_value_in_a_list_is_that_value(load: Loader) -> None:
    config = load("experiment: {missions: {n_agents: [4]}, constraints: {budget: [14, 14]}}")
    assert not config.missions.has_inactive
    assert config.missions.drawn_keys == ()


def test_infinite_radio_and_whole_altitudes(load: Loader) -> None:
    config = load(
        "experiment: {uav: {communication_range: .inf}}\n"
        "sensor: {model: {table: {5: 0.02, 15: 0.4}}}"
    )
    assert config.experiment.uav.communication_range == math.inf
    assert config.sensor.model.table == {5.0: 0.02, 15.0: 0.4}


@pytest.mark.parametrize("section", sorted(SECTIONS - {""}))
def test_a_section_without_keys_counts_as_empty(load: Loader, section: str) -> None:
    depth = section.split(".")
    text = "\n".join("  " * level + f"{name}:" for level, name in enumerate(depth))
    assert load(text) == Config()


# --- overrides -------------------------------------------------------------------------------


def test_overrides_set_values_and_the_last_one_wins(load: Loader) -> None:
    config = load(
        "learning: {gamma: 0.5}",
        "learning.gamma=0.6",
        "learning.lambda = 0.9",
        "compute.device=cpu",
        "learning.actor.learning_rate=1e-3",
        "sensor.simulation.kinds=[raster, split]",
        "sensor.simulation.raster.path=map=1.npz",
        "sensor.model.table={5: 0.1, 20: 0.3}",
        "learning.gamma=0.7",
    )
    assert (config.learning.gamma, config.learning.lambda_) == (0.7, 0.9)
    assert (config.compute.device, config.learning.actor.learning_rate) == ("cpu", 1e-3)
    assert config.sensor.simulation.kinds == ("raster", "split")
    assert config.sensor.simulation.raster.path == "map=1.npz"
    assert config.sensor.model.table == {5.0: 0.1, 20.0: 0.3}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learning.gamma", "must read section.key=value"),
        ("=3", "must read section.key=value"),
        ("", "must read section.key=value"),
        ("networks={gamma: 1}", "networks is a section"),
        ("learning.gamma.x=1", "learning.gamma is a value, not a section"),
        ("sensor.model.table.5=0.1", "sensor.model.table is a value"),
        ("learning.gama=1", "nearest known key is learning.gamma"),
        ("learning.lambda_=1", "nearest known key is learning.lambda"),
        ("learning.gamma=[1", "broken YAML"),
        ("learning.gamma=!!python/name:os.system", "tags"),
        ("learning.gamma=3", "learning.gamma: must be at most 1, got 3"),
        ("experiment.constraints.min_altitude=20", "above max_altitude 15"),
        ("experiment.missions.n_agents=16", "n_agents 16 exceeds the 3 x 3"),
        ("environment.x_dim=", "environment.x_dim: must be a number, got null"),
    ],
)
def test_errors_name_the_override(load: Loader, override: str, words: str) -> None:
    text = "experiment: {constraints: {spacing: 25, min_altitude: 15}}"
    with pytest.raises(ConfigError) as error:
        load(text, override)
    line = one_line(error)
    assert f"override {override}" in line
    assert words in line


def test_an_override_beats_a_file_but_not_a_broken_section(load: Loader) -> None:
    with pytest.raises(ConfigError, match="networks: must be a section with keys below it, got 5"):
        load("networks: 5", "learning.gamma=0.5")


# --- errors ----------------------------------------------------------------------------------

BAD_FILES: list[tuple[str | bytes, str]] = [
    ("", "empty"),
    ("# nothing\n", "empty"),
    ("3", "must hold sections"),
    ("- networks", "must hold sections"),
    (b"\xff\xfea", "not UTF-8"),
    (b"environment:\n  seed: \xe9", "line 2: not UTF-8"),
    ("environment: {\n\n", "line 3: broken YAML"),
    ("environment:\n\tseed: 1", "line 2: broken YAML"),
    ("environment:\n  seed: \x00", "line 2: the character"),
    ("a: 1\n---\nb: 1", "another document"),
    ("environment: {seed: 1}\nenvironment: {seed: 2}", "line 2: the key 'environment' is given"),
    ("environment: {seed: 1,\n seed: 1}", "line 2: the key 'seed' is given twice"),
    ("sensor: {model: {table: {5: 0.1, 5.0: 0.2, 15: 0.3}}}", "the key 5 is given twice"),
    ("environment: &e {seed: 1}\nnetworks: *e", "line 2: aliases"),
    ("<<: {seed: 1}", "needs quotes"),
    ("? [a]\n: 1", "a key must be a word"),
    ("environment: {seed: 2024-99-99}", "cannot be read"),
    ("environment: {seed: " + "9" * 5000 + "}", "cannot be read"),
    ("environment: {seed: 010}", "two ways"),
    ("environment: {seed: 1:30}", "two ways"),
    ("[" * 5000, "nested too deeply"),
    ("environment: {seed: " + "[" * 5000, "nested too deeply"),
    ("#" * 300_000, "larger than"),
    ("environment: {seed: 0x" + "f" * 9000 + "}", "got a number of about 10838 digits"),
    ("environment: {x_dim: " + "9" * 400 + "}", "environment.x_dim: must be a number of ordinary"),
    ("environment: {x_dim: 1e400}", "environment.x_dim: must be a finite number, got .inf"),
    ("environment: {num_envs: " + "9" * 40 + "}", "environment.num_envs: must be at most"),
    ("environment: {num_envs: true}", "environment.num_envs: must be a whole number, got true"),
    ("environment: {num_envs: 2.0}", "environment.num_envs: must be a whole number, got 2"),
    ("environment: {num_envs: '2'}", "environment.num_envs: must be a whole number, got '2'"),
    ("environment: {x_dim: yes}", "environment.x_dim: must be a number, got true"),
    ("environment: {x_dim: .nan}", "environment.x_dim: must be a finite number, got .nan"),
    ("environment: {x_dim: [1, 2]}", "environment.x_dim: must be a number, got [1, 2]"),
    ("environment: 5", "environment: must be a section with keys below it, got 5"),
    ("environment: []", "environment: must be a section with keys below it, got []"),
    ("compute: {tf32: 1}", "compute.tf32: must be true or false, got 1"),
    ("networks: {actor: {type: 3}}", "networks.actor.type: must be a text, got 3"),
    (
        "networks: {critic: {type: CNN}}",
        "networks.critic.type: must be one of 'cnn', 'attention', or a dotted",
    ),
    ("compute: {device: gpu}", "compute.device: must be auto, cpu, cuda or cuda:N, got 'gpu'"),
    ("compute: {device: 'cuda:٣'}", "compute.device: must be auto"),
    ("learning: {lambda: -0.1}", "learning.lambda: must be at least 0, got -0.1"),
    ("learning: {lr_scaling: root}", "learning.lr_scaling: must be one of 'none', 'sqrt' or"),
    ("learning: {kl_limit: -0.1}", "learning.kl_limit: must be at least 0, got -0.1"),
    ("learning: {value_clip: -1}", "learning.value_clip: must be at least 0, got -1"),
    ("learning: {huber_delta: -1}", "learning.huber_delta: must be at least 0, got -1"),
    ("learning: {value_normalization: 2}", "learning.value_normalization: must be true or false"),
    ("compute: {gradient_checkpointing: 1}", "gradient_checkpointing: must be true or false"),
    ("learning: {lr_base_batch: 0}", "learning.lr_base_batch: must be at least 1, got 0"),
    ("learning: {warmup_steps: -1}", "learning.warmup_steps: must be at least 0, got -1"),
    ("learning: {lr_decay: 1.5}", "learning.lr_decay: must be at most 1, got 1.5"),
    (
        "learning: {actor: {learning_rate: 0}}",
        "learning.actor.learning_rate: must be above 0, got 0",
    ),
    ("mapping: {prior: 1}", "mapping.prior: must be below 1, got 1"),
    ("mapping: {prior: 1e-40}", "mapping.prior: must be 0.0001 to 0.9999, where beliefs"),
    ("mapping: {prior: 0.99999}", "mapping.prior: must be 0.0001 to 0.9999, where beliefs"),
    ("experiment: {title: ''}", "experiment.title: must be a text that is not empty"),
    ('experiment: {title: "a\\nb"}', "experiment.title: must be one line"),
    ("experiment: {constraints: {num_actions: 5}}", "num_actions: must be one of 4, 6, 9 or 27"),
    ("experiment: {uav: {communication_range: .nan}}", "communication_range: must be at least 0"),
    ("experiment: {uav: {communication_range: 1e7}}", "or .inf, got 10000000"),
    ("experiment: {uav: {communication_range: [1, x]}}", "range[1]: must be a number, got 'x'"),
    ("experiment: {uav: {communication_range: [.nan]}}", "range[0]: must be at least 0, got .nan"),
    ("experiment: {uav: {communication_range: []}}", "communication_range: must be filled with at"),
    ("experiment: {uav: {failure_rate: [0, 2]}}", "failure_rate[1]: must be at most 1, got 2"),
    ("experiment: {missions: {n_agents: [2, 17]}}", "n_agents[1]: must be at most 16, got 17"),
    (
        "experiment: {missions: {n_agents: [2, 2.5]}}",
        "n_agents[1]: must be a whole number, got 2.5",
    ),
    ("experiment: {missions: {n_agents: x}}", "n_agents: must be a whole number or a list of such"),
    ("experiment: {missions: {n_agents: 0}}", "n_agents: must be at least 1, got 0"),
    ("experiment: {constraints: {budget: {a: 1}}}", "budget: must be a whole number or a list of"),
    (
        "prediction: {worlds: [{kinds: [random_field], cluster_radius: -1}]}",
        "prediction.worlds[0].cluster_radius: must be above 0, got -1",
    ),
    ("prediction: {worlds: [{}, {kinds: [sea]}]}", "prediction.worlds[1].kinds[0]: must be one"),
    ("deployment: {home: [48.1]}", "deployment.home[1]: must be there: the list is too short, got"),
    ("sensor: {simulation: {kinds: [hills]}}", "kinds[0]: must be one of 'split'"),
    ("sensor: {simulation: {type: hills}}", "sensor.simulation.type: must be absent"),
    ("sensor: {simulation: {raster: {threshold: p100}}}", "threshold: must be a number or a perc"),
    ("sensor: {simulation: {raster: {threshold: true}}}", "threshold: must be a number or a text"),
    ("sensor: {model: {table: {low: 0.1}}}", "sensor.model.table[low]: must be a number"),
    ("sensor: {model: {table: {5: 0.5}}}", "sensor.model.table[5]: must be below 0.5, got 0.5"),
    ("sensor: {model: {table: [0.1]}}", "sensor.model.table: must be a table such as {5: 0.01"),
    # keys that contradict each other
    ("sensor: {model: {table: {5: 0.1}}}", "sensor.model.table covers 5 to 5 m, not the alt"),
    ("sensor: {model: {type: exponential, coeff_a: 2}}", "sensor.model.coeff_a 2"),
    ("sensor: {simulation: {kinds: [raster]}}", "raster.path names no file"),
    (
        "learning: {lr_scaling: linear, batch_size: 10000000}",
        "learning.lr_scaling linear makes learning.actor.learning_rate 1.67 for batches of 10,0",
    ),
    ("environment: {x_dim: 4}", "lattice of 1 x 11"),
    ("environment: {x_dim: 2000, y_dim: 2000}", "lattice of 401 x 401"),
    ("sensor: {pixel: {number_x: 8000, number_y: 8000}}", "is too large"),
    ("sensor: {pixel: {number_x: 1}}", "sensor.pixel.number_x: must be at least 2, got 1"),
    ("sensor: {pixel: {number_x: 2}}\nexperiment: {constraints: {spacing: 1}}", "is finer than"),
    ("experiment: {constraints: {min_altitude: 20}}", "min_altitude 20 is above max_altitude 15"),
    ("experiment: {constraints: {max_altitude: 13}}", "max_altitude 13 is not min_altitude 5"),
    ("experiment: {constraints: {max_altitude: 9000}}", "1800 altitudes"),
    ("experiment: {constraints: {spacing: 1e-3}}", "10001 altitudes"),
    ("learning: {eps_min: 0.6}", "eps_min 0.6 is above eps_max 0.5"),
    (
        "experiment: {policy: coverage, baselines: {coverage: {altitude: 7}}}",
        "experiment.baselines.coverage.altitude 7",
    ),
    (
        "experiment: {missions: {n_agents: 16}, constraints: {spacing: 25, max_altitude: 5}}",
        "experiment.missions.n_agents 16 exceeds the 3 x 3 = 9 start cells",
    ),
    (
        "observation: {budget: no, agent_id: no, position: no, entropy: no, local_entropy: no, "
        "probability: no, footprint: no}",
        "observation: all actor channels are off",
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_bad_file_gives_one_line_that_names_the_key(
    load: Loader, tmp_path: Path, text: str | bytes, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)
    line = one_line(error)
    assert line.startswith(f"{tmp_path / 'p.yaml'}: ")
    assert words in line
    assert len(line) < len(str(tmp_path)) + 300


def test_all_problems_of_a_file_are_named_at_once(load: Loader) -> None:
    with pytest.raises(ConfigError) as error:
        load("learning: {gamma: 2, lambda: x, gama: 1}\nenvironment: {seed: -1}")
    assert one_line(error).count("; ") == 4  # one of them belongs to the unknown key's text


def test_many_problems_stay_readable(load: Loader) -> None:
    with pytest.raises(ConfigError, match=r"and 4992 more$") as error:
        load("\n".join(f"key_{i}: 1" for i in range(5000)))
    assert len(one_line(error)) < 1200


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("enviroment", "environment"),
        ("learning.gama", "learning.gamma"),
        ("learning.Lambda", "learning.lambda"),
        ("learning.actor.learning_rat", "learning.actor.learning_rate"),
        ("networks.hidden_dim", "networks.actor.hidden_dim"),
        ("networks.actor.tau", "learning.tau"),
        ("experiment.missions.budget", "experiment.constraints.budget"),
        ("batch_size", "learning.batch_size"),
        ("sensor.kinds", "sensor.simulation.kinds"),
        ("n_agent", "experiment.missions.n_agents"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(path: str, nearest: str) -> None:
    tree: dict[str, Any] = {}
    node = tree
    for name in path.split(".")[:-1]:
        node = node.setdefault(name, {})
    node[path.rpartition(".")[2]] = 1
    with pytest.raises(ConfigError) as error:
        config_from_dict(tree)
    assert f"unknown key {path}; the nearest known key is {nearest}" in one_line(error) + ";"
    assert str(error.value).endswith(nearest)


def test_a_dotted_key_in_a_file_is_explained(load: Loader) -> None:
    with pytest.raises(ConfigError, match="one inside the other"):
        load("learning.gamma: 0.5")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{}]]",
        "!!python/object/apply:subprocess.check_call [[touch, {}]]",
        "!!python/object/new:os.system [touch {}]",
        "!!python/name:os.system {}",
    ],
)
def test_a_python_tag_is_refused_and_never_executed(load: Loader, tmp_path: Path, tag: str) -> None:
    victim = tmp_path / "victim"
    text = f"environment:\n  seed: {tag.format(victim)}"
    if "subprocess" in tag:  # the attack is real: a careless loader does create the file
        yaml.load(text, Loader=yaml.UnsafeLoader)
        assert victim.exists()
        victim.unlink()
    with pytest.raises(ConfigError, match=r"p\.yaml: line 2: tags \(!!python") as error:
        load(text)
    one_line(error)
    assert not victim.exists()


# --- paths -----------------------------------------------------------------------------------


def test_a_path_is_absolute_or_from_here_or_in_params(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_config_path("params_test").name == "params_test.yaml"
    assert resolve_config_path("params_test.yaml").is_absolute()
    (tmp_path / "params_test.yaml").touch()
    assert resolve_config_path("params_test.yaml") == Path("params_test.yaml")
    assert resolve_config_path(str(PUBLISHED)) == PUBLISHED


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.yaml", "nowhere.yaml: no such file; params/ holds params.yaml"),
        (str(PUBLISHED.parent), "is a directory"),
        ("", "no such file"),
        ("a\0b", "no such file"),
        ("a\nb", "no such file"),
        ("x" * 5000, "no such file"),
        ("/dev/zero", "larger than"),
    ],
    ids=range(7),
)
def test_a_path_to_no_params_file(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(name)
    assert words in one_line(error)


def test_the_folder_of_runs_may_lie_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of_a_user")
    config = load_config("params_test", ["logging.directory=~/runs"])
    assert config.logging.directory == "/home/of_a_user/runs"
