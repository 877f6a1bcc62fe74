"""Params files, overrides and the errors they give."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_framework.config.errors import ConfigError
from marl_framework.config.loading import (
    config_from_dict,
    config_to_dict,
    load_config,
    resolve_config_path,
)
from marl_framework.config.messages import SECTIONS
from marl_framework.config.model import Config

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


def test_a_number_with_an_exponent_is_a_number(load: Loader) -> None:
    text = "learning: {actor: {learning_rate: 3e-4, gradient_norm: 1E2}, tau: .5e-2}"
    learning = load(text).learning
    assert learning.actor.learning_rate == 3e-4
    assert learning.actor.gradient_norm == 100
    assert learning.tau == 5e-3


def test_missions_draw_from_lists(load: Loader) -> None:
    config = load(
        "experiment: {missions: {n_agents: [2, 4]}, constraints: {budget: [9, 14]}, "
        "uav: {communication_range: [0, .inf], failure_rate: 0.5}}\n"
        "sensor: {model: {table: {5: 0.02, 15: 0.4}}}"
    )
    assert config.sensor.model.table == {5.0: 0.02, 15.0: 0.4}
    assert config.missions.team_sizes == (2, 4)
    assert config.missions.most_agents == 4
    assert config.missions.episode_length == 15
    assert config.schedule.transitions_per_mission == 3 * 12.5
    flown = config.schedule.rollouts_per_step * config.environment.num_envs
    assert config.schedule.places_per_step == flown * 60
    assert config.experiment.uav.communication_range == (0.0, math.inf)
    assert config.missions.has_inactive
    assert [key.rpartition(".")[2] for key in config.missions.drawn] == [
        "n_agents", "budget", "communication_range"
    ]  # fmt: skip


def test_one_value_in_a_list_is_that_value(load: Loader) -> None:
    config = load("experiment: {missions: {n_agents: [4]}, constraints: {budget: [14, 14]}}")
    assert not config.missions.has_inactive
    assert config.missions.drawn == {}


@pytest.mark.parametrize("section", sorted(SECTIONS - {""}))
def test_a_section_without_keys_counts_as_empty(load: Loader, section: str) -> None:
    depth = section.split(".")
    text = "\n".join("  " * level + f"{name}:" for level, name in enumerate(depth))
    assert load(text) == Config()


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
    ("override", "key"),
    [
        *((text, "") for text in ("learning.gamma", "=3", "", "learning.gamma=[1")),
        ("networks={gamma: 1}", "networks"),
        ("learning.gamma.x=1", "learning.gamma"),
        ("sensor.model.table.5=0.1", "sensor.model.table"),
        ("learning.gama=1", "learning.gamma"),
        ("learning.lambda_=1", "learning.lambda"),
        ("learning.gamma=!!python/name:os.system", ""),
        ("learning.gamma=3", "learning.gamma: "),
        ("experiment.constraints.min_altitude=20", "experiment.constraints: "),
        ("experiment.missions.n_agents=16", "experiment.missions.n_agents 16"),
        ("environment.x_dim=", "environment.x_dim: "),
    ],
)
def test_errors_name_the_override(load: Loader, override: str, key: str) -> None:
    text = "experiment: {constraints: {spacing: 25, min_altitude: 15}}"
    with pytest.raises(ConfigError) as error:
        load(text, override)
    line = one_line(error)
    assert f"override {override}" in line
    assert key in line


@pytest.mark.parametrize("name", ["ippo", "mappo"])
@pytest.mark.parametrize("file", ["params.yaml", "params_test.yaml", "params_fast.yaml"])
def test_ppo_has_the_defaults_that_it_needs(name: str, file: str) -> None:
    chosen = [f"experiment.algorithm={name}"]
    config = load_config(file, chosen)
    assert config.learning.clip_ratio == 0.2
    assert config_from_dict(config_to_dict(config)) == config
    assert load_config(file, [*chosen, "learning.clip_ratio=0.3"]).learning.clip_ratio == 0.3
    assert load_config(file, [*chosen, "learning.clip_ratio=0"]).learning.clip_ratio == 0
    assert load_config("params_test", ["learning.clip_ratio=null"]).learning.clip_ratio == 0


@pytest.mark.parametrize("name", ["sac", "isac", "qmix"])
def test_a_replay_has_the_default_that_it_needs(name: str) -> None:
    for chosen, size in (([f"experiment.algorithm={name}"], 100_000), ([], 0)):
        assert load_config("params.yaml", chosen).learning.replay_size == size


NO_SECTIONS = ["", "# nothing\n", "3", "- networks", b"\xff\xfea", "#" * 300_000, "[" * 5000]
NO_SECTIONS += [bytes(range(256)), "environment:\n  seed: 1\n".encode("utf-16")]
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 8)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
BAD_YAML: list[tuple[str | bytes, int]] = [
    (b"environment:\n  seed: \xe9", 2),
    ("environment: {\n\n", 3),
    ("environment:\n\tseed: 1", 2),
    ("environment:\n  seed: \x00", 2),
    ("a: 1\n---\nb: 1", 2),
    ("environment: {seed: 1}\nenvironment: {seed: 2}", 2),
    ("environment: {seed: 1,\n seed: 1}", 2),
    ("sensor: {model: {table: {5: 0.1, 5.0: 0.2, 15: 0.3}}}", 1),
    ("environment: &e {seed: 1}\nnetworks: *e", 2),
    ("environment: &a\n  seed: *a", 2),
    (BOMB, 2),
    ("? [a]\n: 1", 1),
    ("environment: {seed: 2024-99-99}", 1),
    ('learning: {gamma: !!int ""}', 1),
    ("learning: {use_eps: !!bool maybe}", 1),
    ("learning: {gamma: !!timestamp abc}", 1),
    ("environment: {seed: " + "9" * 5000 + "}", 1),
    ("environment: {seed: 010}", 1),
    ("environment: {seed: 1:30}", 1),
]
BAD_VALUES = [
    ("environment", "[]"),
    ("environment", "5"),
    ("networks", "5"),
    ("environment.seed", "0x" + "f" * 9000),
    ("environment.x_dim", "9" * 400),
    *(("environment.x_dim", value) for value in ("1e400", "yes", ".nan", "[1, 2]")),
    *(("environment.field", value) for value in ("3", "[a.geojson]", "''")),
    *(("environment.num_envs", value) for value in ("9" * 40, "true", "2.0", "'2'", "0")),
    ("compute.tf32", "1"),
    ("networks.actor.type", "3"),
    ("networks.critic.type", "CNN"),
    *(("compute.device", value) for value in ("gpu", "'cuda:٣'")),
    ("learning.lambda", "-0.1"),
    ("learning.lr_scaling", "root"),
    ("learning.value_clip", "-1"),
    ("learning.lr_base_batch", "0"),
    ("learning.warmup_steps", "-1"),
    ("learning.lr_decay", "1.5"),
    ("learning.temperature", "0"),
    ("learning.target_entropy", "1.5"),
    ("learning.replay_size", "-1"),
    ("learning.replay_size", "0.5"),
    ("logging.save_replay", "3"),
    ("learning.actor.learning_rate", "0"),
    *(("mapping.prior", value) for value in ("1", "1e-40", "0.99999")),
    *(("experiment.title", value) for value in ("''", '"a\\nb"', "a" * 2000)),
    ("experiment.constraints.num_actions", "5"),
    *(("experiment.uav.communication_range", value) for value in (".nan", "1e7", "[]")),
    ("experiment.uav.communication_range[1]", "[1, x]"),
    ("experiment.uav.communication_range[0]", "[.nan]"),
    ("experiment.uav.failure_rate[1]", "[0, 2]"),
    *(("experiment.missions.n_agents", value) for value in ("x", "0")),
    *(("experiment.missions.n_agents[1]", value) for value in ("[2, 129]", "[2, 2.5]")),
    ("experiment.constraints.budget", "{a: 1}"),
    *(("experiment.baselines.search.horizon", value) for value in ("0", "1001", "1.5")),
    ("prediction.worlds[0].cluster_radius", "[{kinds: [random_field], cluster_radius: -1}]"),
    ("prediction.worlds[1].kinds[0]", "[{}, {kinds: [sea]}]"),
    ("deployment.home[1]", "[48.1]"),
    ("deployment.autopilot", "dji"),
    ("deployment.acceptance_radius", "0"),
    ("deployment.acceleration", "9"),
    ("sensor.simulation.kinds[0]", "[hills]"),
    ("flying.camera.detector", "edges"),
    ("flying.camera.bands[0]", "[-1]"),
    *(("flying.camera.bands", value) for value in ("[]", "[0, 1, 2]", "0")),
    ("flying.camera.distortion[1]", "[0.1]"),
    ("flying.camera.principal_point[0]", "[left, 20]"),
    ("flying.camera.tilt_tolerance", "61"),
    ("flying.camera.position_tolerance", "0"),
    ("flying.camera.latency", "-1"),
    *(("sensor.simulation.raster.threshold", value) for value in ("p100", "true")),
    ("sensor.model.table.low", "{low: 0.1}"),
    *(("mapping.caution", value) for value in ("0", "1e-17", "1.5")),
    ("sensor.model.table[5]", "{5: 0.5}"),
    ("sensor.model.table", "[0.1]"),
    ("logging.writers", "[tensorboard, tensorboard]"),
]
CONTRADICTIONS = [
    ("sensor: {simulation: {type: hills}}", "sensor.simulation.type"),
    ("sensor: {model: {table: {5: 0.1}}}", "sensor.model.table"),
    ("sensor: {model: {type: exponential, coeff_a: 2}}", "sensor.model.coeff_a"),
    ("sensor: {simulation: {kinds: [raster]}}", "sensor.simulation: .*raster.path"),
    (
        "learning: {lr_scaling: linear, batch_size: 10000000}",
        "learning.lr_scaling .*learning.actor.learning_rate",
    ),
    ("environment: {x_dim: 4}", "environment.x_dim"),
    (
        "environment: {field: random}\nexperiment: {constraints: {no_fly_zones: z.json}}",
        "environment.field random .*no_fly_zones",
    ),
    (
        "environment: {field: random}\nexperiment: {missions: {start: corners}}",
        "environment.field random requires experiment.missions.start random",
    ),
    *(
        (
            f"experiment: {{uav: {{position_error: {{bias: {ends}}}}}}}",
            "bias: must have both low and",
        )
        for ends in ("{low: 1}", "{high: 1}", "{}")
    ),
    ("environment: {x_dim: 2000, y_dim: 2000}", "experiment.constraints.spacing"),
    ("environment: {x_dim: 5000, y_dim: 20}", "experiment.constraints.spacing"),
    ("sensor: {pixel: {number_x: 8000, number_y: 8000}}", "sensor.pixel.number_x"),
    ("sensor: {pixel: {number_x: 2}}\nexperiment: {constraints: {spacing: 1}}", "sensor.pixel"),
    ("experiment: {constraints: {min_altitude: 20}}", "min_altitude 20 .*max_altitude 15"),
    ("experiment: {constraints: {max_altitude: 13}}", "max_altitude 13"),
    ("experiment: {constraints: {max_altitude: 9000}}", "experiment.constraints: spacing"),
    ("experiment: {constraints: {obstacles: {side: [3, 2]}}}", "obstacles: side"),
    ("learning: {eps_min: 0.6}", "eps_min 0.6 .*eps_max 0.5"),
    ("learning: {teacher: {weight: 1}}", "learning.teacher: weight"),
    ("learning: {value_clip: 0.1}", "learning.value_clip"),
    ("networks: {actor: {type: attention}}", "networks.actor.type .*observation.heard_uavs"),
    ("observation: {heard_uavs: true}", "observation.heard_uavs: networks.actor.type"),
    ("deployment: {autopilot: px4, altitudes: ground}", "deployment: altitudes: ground .*px4"),
    ("deployment: {separation: 12}", "deployment: pad_distance 10 .*separation 12"),
    (
        "experiment: {policy: coverage, baselines: {coverage: {altitude: 7}}}",
        "experiment.baselines.coverage.altitude 7",
    ),
    (
        "experiment: {missions: {n_agents: 16}, constraints: {spacing: 25, max_altitude: 5}}",
        "experiment.missions.n_agents 16",
    ),
    (
        "observation: {budget: no, agent_id: no, position: no, entropy: no, local_entropy: no, "
        "probability: no, footprint: no}",
        "observation: ",
    ),
    ("observation: {window: 10}", "observation.window: must be odd"),
    ("observation: {window: 1}", "observation.window"),
    ("observation: {window: 11}", "observation: other_actions"),
]


@pytest.mark.parametrize("text", NO_SECTIONS, ids=range(len(NO_SECTIONS)))
def test_a_file_without_sections_is_one_line(load: Loader, text: str | bytes) -> None:
    with pytest.raises(ConfigError, match=r"p\.yaml: "):
        load(text)


@pytest.mark.parametrize(("text", "line"), BAD_YAML, ids=range(len(BAD_YAML)))
def test_broken_yaml_is_one_line_with_its_number(load, text, line) -> None:
    with pytest.raises(ConfigError, match=rf"p\.yaml: line {line}: ") as error:
        load(text)
    one_line(error)


@pytest.mark.parametrize(("key", "value"), BAD_VALUES, ids=range(len(BAD_VALUES)))
def test_a_bad_value_is_one_line_that_names_the_key(load: Loader, key: str, value: str) -> None:
    path = re.split(r"\[|\.low", key)[0].split(".")
    with pytest.raises(ConfigError, match=rf"p\.yaml: {re.escape(key)}: .* got ") as error:
        load("{" + ": {".join(path) + f": {value}" + "}" * len(path))
    assert len(one_line(error)) < 500


@pytest.mark.parametrize(
    ("text", "keys"), CONTRADICTIONS, ids=[text[:40] for text, _ in CONTRADICTIONS]
)
def test_keys_that_contradict_each_other_are_one_line(load: Loader, text: str, keys: str) -> None:
    with pytest.raises(ConfigError, match=rf"p\.yaml: .*{keys}") as error:
        load(text)
    one_line(error)


def test_all_problems_of_a_file_are_named_at_once(load: Loader) -> None:
    with pytest.raises(ConfigError) as error:
        load("learning: {gamma: 2, lambda: x, gama: 1}\nenvironment: {seed: -1}")
    for key in ("learning.gamma", "learning.lambda", "learning.gama", "environment.seed"):
        assert key in one_line(error)


def test_many_problems_stay_readable(load: Loader) -> None:
    with pytest.raises(ConfigError, match=r"4992") as error:
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
    assert path in one_line(error)
    assert str(error.value).endswith(f" {nearest}")


def test_a_dotted_key_in_a_file_is_explained(load: Loader) -> None:
    with pytest.raises(ConfigError, match=r"'learning\.gamma'"):
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
    with pytest.raises(ConfigError, match=r"p\.yaml: line 2: .*python/") as error:
        load(text)
    one_line(error)
    assert not victim.exists()


def test_a_path_is_absolute_or_from_here_or_in_params(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_config_path("params_test").name == "params_test.yaml"
    assert resolve_config_path("params_test.yaml").is_absolute()
    (tmp_path / "params_test.yaml").touch()
    assert resolve_config_path("params_test.yaml") == Path("params_test.yaml")
    absolute = tmp_path / "params_test.yaml"
    assert resolve_config_path(str(absolute)) == absolute


@pytest.mark.parametrize(
    "name", ["nowhere.yaml", ".", "", "a\0b", "a\nb", "x" * 5000, "/dev/zero"], ids=range(7)
)
def test_a_path_to_no_params_file(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(name)
    one_line(error)


def test_the_folder_of_runs_may_lie_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of_a_user")
    config = load_config("params_test", ["logging.directory=~/runs"])
    assert config.logging.directory == "/home/of_a_user/runs"
