"""The layout of configurations before keys were regrouped, for checkpoints as they were then."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from marl_framework.config.former import RENAMED
from marl_framework.config.learning import PREDICTED_CHANNELS
from marl_framework.config.parts import KNOWN_TO
from marl_framework.config.yaml_text import format_yaml, parse_yaml
from marl_framework.runs.checkpoint import load_checkpoint, save_checkpoint

TYPES = {"learned": "COMA", "coverage": "lawnmower"}


def former_layout(tree: dict[str, Any]) -> dict[str, Any]:
    """Return plain data of a configuration under the names that it had then."""
    tree = deepcopy(tree)
    del tree["experiment"]["algorithm"]
    for network in ("actor", "critic"):
        assert tree["networks"][network].pop("type") == "cnn"
        del tree["networks"][network]["layers"], tree["networks"][network]["heads"]
    for old, new in RENAMED.items():
        value = take(tree, new)
        put(tree, old, TYPES.get(value, value) if old == "experiment.missions.type" else value)
    assert tree.pop("compute") == {}
    for key in KNOWN_TO:
        del tree["learning"][key]
    assert tree["learning"].pop("teacher")["weight"] == 0
    assert tree["evaluation"].pop("best_by") == "entropy"
    assert tree.pop("learning") == {"actor": {}, "critic": {}}
    assert tree["experiment"]["baselines"].pop("coverage") == {}
    del tree["experiment"]["baselines"]["search"], tree["prediction"], tree["deployment"]
    del tree["distillation"]
    del tree["networks"]["predictor"]
    assert tree["experiment"]["reward"].pop("f1_scale") == 0
    assert tree["experiment"]["reward"].pop("outside_weight") == 0
    for name in ("cost", "no_fly_zones", "obstacles"):
        del tree["experiment"]["constraints"][name]
    for name in (
        *PREDICTED_CHANNELS,
        "no_fly",
        "centred_no_fly",
        "sector",
        "centred_sector",
        "heard_uavs",
        "team_size",
        "radio_range",
    ):
        assert tree["observation"].pop(name) is False
    uav = tree["experiment"]["uav"]
    assert uav.pop("crash_rate") == 0
    uav |= {"fix_range": True, "sampled_ranges": [0.0, 15.0, 25.0, 100.0]}
    tree["sensor"]["type"], tree["networks"]["type"] = "rgb_camera", "CNN"
    return tree


def make_former(path: Path) -> None:
    """Give a checkpoint, or a params file, the configuration of its past."""
    if path.suffix == ".yaml":
        tree = parse_yaml(path.read_text(), str(path))
        path.write_text(format_yaml(former_layout(tree)))
        return
    payload = load_checkpoint(path)
    save_checkpoint(path, {**payload, "config": former_layout(payload["config"])})


def take(tree: dict[str, Any], path: str) -> Any:
    *parents, leaf = path.split(".")
    for name in parents:
        tree = tree[name]
    return tree.pop(leaf)


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[leaf] = value
