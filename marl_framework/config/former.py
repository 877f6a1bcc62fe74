"""Translation of the paper's published params.yaml, and of earlier keys, into current keys."""

from __future__ import annotations

from typing import Any

OBSOLETE = {"classification", "networks.type"} | {
    f"{section}.{name}"
    for section, names in (
        ("evaluation", "metrics repetitions"),
        (
            "experiment.missions",
            "action_space class_weighting planning_uncertainty reward_normalization",
        ),
        ("experiment.uav", "max_a max_v sampling_time"),
        ("networks.actor", "momentum"),
        ("networks.critic", "momentum synchronization update_mode"),
        ("sensor", "encoding simulation.type type"),
    )
    for name in names.split()
}
"""Published keys without effect here."""

_BASELINES = "experiment.baselines"
_SEARCH = f"{_BASELINES}.search"
REMOVED: dict[str, Any] = {
    "compute.stack_networks": "auto",
    "compute.gradient_checkpointing": False,
    "distillation.loss": "forward",
    f"{_SEARCH}.method": "beam",
    f"{_SEARCH}.simulations": 256,
    f"{_SEARCH}.depth": 16,
    f"{_SEARCH}.leaves": 16,
    f"{_SEARCH}.prior": None,
}
"""Keys of earlier versions, and their defaults, of which users get no note."""
_TYPE = "experiment.missions.type"
RENAMED = {
    f"{_BASELINES}.information_gain.trials": f"{_BASELINES}.information_gain.missions",
    f"{_BASELINES}.lawnmower.altitude": f"{_BASELINES}.coverage.altitude",
    f"{_BASELINES}.lawnmower.trials": f"{_BASELINES}.coverage.missions",
    f"{_BASELINES}.random.n_episodes": f"{_BASELINES}.random.missions",
    _TYPE: "experiment.policy",
    "experiment.missions.n_episodes": "learning.training_steps",
    "networks.critic.fc1_dim": "networks.critic.hidden_dim",
    "networks.critic.target_update_mode": "learning.target_update_mode",
    "networks.critic.tau": "learning.tau",
} | {
    f"{section}.{name}": f"learning.{role}{name}"
    for section, role, names in (
        ("experiment.missions", "", "patience use_eps eps_max eps_min eps_anneal_phase"),
        ("networks", "", "data_passes batch_size batch_number copy_rate gamma lambda"),
        ("networks.actor", "actor.", "learning_rate gradient_norm"),
        ("networks.critic", "critic.", "learning_rate gradient_norm"),
    )
    for name in names.split()
}
"""Map from published to current key names."""

_FIX_RANGE, _RANGE = "experiment.uav.fix_range", "experiment.uav.communication_range"
_RANGES = (0, 15, 25, 100)
"""Communication ranges that missions draw from if `fix_range` is false [m]."""
_POLICIES = {"COMA": "learned", "lawnmower": "coverage"}
FORMER = OBSOLETE | RENAMED.keys() | REMOVED.keys() | {_FIX_RANGE}
"""All published and earlier keys that are not current keys."""


def translate(values: dict[str, Any], problems: list[str]) -> list[str]:
    """Replace published keys by current keys, in place.

    `values` are those of a params file, by dotted name. Errors are appended to `problems`. Returns
    notes for the user.
    """
    moved = []
    if values.pop(_FIX_RANGE, True) is False:
        values[_RANGE] = _RANGES
        moved.append(f"{_FIX_RANGE} is now a list in {_RANGE}")
    for key in REMOVED.keys() & values.keys():
        if values[key] == REMOVED[key]:
            del values[key]
    dropped = sorted((OBSOLETE | REMOVED.keys()) & values.keys())
    if values.get("sensor.model.type") == "altitude_dependent":
        values["sensor.model.type"] = "table"
        coefficients = {"sensor.model.coeff_a", "sensor.model.coeff_b"}
        dropped += sorted(coefficients & values.keys())
    if "sensor.simulation.type" in values:
        if values["sensor.simulation.type"] != "random_field":
            problems.append(
                "sensor.simulation.type: must be random_field or absent; set terrains with "
                "sensor.simulation.kinds"
            )
        values.setdefault("sensor.simulation.kinds", ("split",))
    for key in dropped:
        del values[key]
    for old, new in RENAMED.items():
        if old not in values:
            continue
        value = values.pop(old)
        if new in values:
            problems.append(f"{old}: is the old name of {new}, which is also given; remove {old}")
            continue
        values[new] = value
        moved.append(f"{old} is now {new}")
        if old == _TYPE and isinstance(value, str) and value in _POLICIES:
            values[new] = _POLICIES[value]
            moved[-1] += f", and {value} is {_POLICIES[value]}"
    return [
        *([f"renamed keys: {', '.join(moved)}"] if moved else []),
        *([f"keys without effect: {', '.join(dropped)}"] if dropped else []),
    ]
