"""Former keys: those of the published params.yaml and those of our own earlier files.

They keep working. Keys that have no meaning any more are dropped, the others move to their present
names, and one line tells the user so.
"""

from __future__ import annotations

from typing import Any

from marl_framework.config.messages import show

OBSOLETE = frozenset(
    {
        "classification",
        "evaluation.metrics",
        "evaluation.repetitions",
        "experiment.missions.action_space",
        "experiment.missions.class_weighting",
        "experiment.missions.planning_uncertainty",
        "experiment.missions.reward_normalization",
        "experiment.uav.max_a",
        "experiment.uav.max_v",
        "experiment.uav.sampling_time",
        "networks.actor.momentum",
        "networks.critic.momentum",
        "networks.critic.synchronization",
        "networks.critic.update_mode",
        "networks.type",
        "sensor.encoding",
        "sensor.simulation.type",
        "sensor.type",
    }
)
"""Keys without meaning here."""

RENAMED = {
    "distributed.backend": "compute.distributed_backend",
    "experiment.baselines.information_gain.trials": (
        "experiment.baselines.information_gain.missions"
    ),
    "experiment.baselines.lawnmower.altitude": "experiment.baselines.coverage.altitude",
    "experiment.baselines.lawnmower.trials": "experiment.baselines.coverage.missions",
    "experiment.baselines.random.n_episodes": "experiment.baselines.random.missions",
    "experiment.missions.eps_anneal_phase": "learning.eps_anneal_phase",
    "experiment.missions.eps_max": "learning.eps_max",
    "experiment.missions.eps_min": "learning.eps_min",
    "experiment.missions.n_episodes": "learning.training_steps",
    "experiment.missions.patience": "learning.patience",
    "experiment.missions.type": "experiment.policy",
    "experiment.missions.use_eps": "learning.use_eps",
    "networks.actor.gradient_norm": "learning.actor.gradient_norm",
    "networks.actor.learning_rate": "learning.actor.learning_rate",
    "networks.advantage": "learning.advantage",
    "networks.batch_number": "learning.batch_number",
    "networks.batch_size": "learning.batch_size",
    "networks.clip_ratio": "learning.clip_ratio",
    "networks.compile": "compute.compile",
    "networks.copy_rate": "learning.copy_rate",
    "networks.critic.fc1_dim": "networks.critic.hidden_dim",
    "networks.critic.gradient_norm": "learning.critic.gradient_norm",
    "networks.critic.learning_rate": "learning.critic.learning_rate",
    "networks.critic.target_update_mode": "learning.target_update_mode",
    "networks.critic.tau": "learning.tau",
    "networks.cuda_graphs": "compute.cuda_graphs",
    "networks.cudnn_benchmark": "compute.cudnn_benchmark",
    "networks.data_passes": "learning.data_passes",
    "networks.deterministic": "compute.deterministic",
    "networks.device": "compute.device",
    "networks.entropy_coefficient": "learning.entropy_coefficient",
    "networks.gamma": "learning.gamma",
    "networks.gradient_checkpointing": "compute.gradient_checkpointing",
    "networks.kl_limit": "learning.kl_limit",
    "networks.lambda": "learning.lambda",
    "networks.lr_base_batch": "learning.lr_base_batch",
    "networks.lr_decay": "learning.lr_decay",
    "networks.lr_scaling": "learning.lr_scaling",
    "networks.max_skipped_updates": "learning.max_skipped_updates",
    "networks.micro_batch": "learning.micro_batch",
    "networks.normalize_advantages": "learning.normalize_advantages",
    "networks.precision": "compute.precision",
    "networks.symmetries": "learning.symmetries",
    "networks.tf32": "compute.tf32",
    "networks.update_interval": "learning.update_interval",
    "networks.warmup_steps": "learning.warmup_steps",
}
"""Former name to present name."""

FORMER_RANGES = {
    "experiment.uav.fix_range": "experiment.uav.communication_range",
    "experiment.uav.sampled_ranges": "experiment.uav.communication_range",
}
"""Former keys, by which missions drew their range, to the present one."""

PARTS = {
    "observation.part": "observation.sector",
    "observation.centred_part": "observation.centred_sector",
}
"""Former channels, of parts that went by the UAVs' numbers, to those that took their place."""

_FORMER_SECTIONS = ("distributed", "experiment.baselines.lawnmower")
_POLICY = "experiment.missions.type"
_POLICIES = {"COMA": "learned", "lawnmower": "coverage"}
_PUBLISHED_SENSOR = "altitude_dependent"
_PUBLISHED_TERRAIN = "random_field"


class Ranges:
    """Turns the keys of `FORMER_RANGES` into the present one, layer after layer.

    Before, missions drew their range from `sampled_ranges` where `fix_range` was false, and else
    had `communication_range`.
    """

    def __init__(self) -> None:
        self._fixed: Any = None  # last range that was no list
        self._former: dict[str, Any] = {"fix_range": True, "sampled_ranges": (0, 15, 25, 100)}

    def translate(self, tree: dict[Any, Any], problems: list[str]) -> list[str]:
        """Turn the former keys of a layer into the present one, in place; see `translate`."""
        uav, present = _section(tree, "experiment", "uav"), "communication_range"
        given = {key: uav.pop(key) for key in self._former if key in uav}
        drew = self._former["fix_range"] is False
        self._former |= given
        fixed = self._former["fix_range"]
        if not isinstance(fixed, bool):
            problems.append(f"experiment.uav.fix_range: must be true or false, got {show(fixed)}")
        if given and fixed is False:
            self._fixed = uav.get(present, self._fixed)
            uav[present] = self._former["sampled_ranges"]
        elif given and drew and self._fixed is not None:
            uav.setdefault(present, self._fixed)
        else:
            self._fixed = uav.get(present, self._fixed)
        names = " and ".join(f"experiment.uav.{key}" for key in given)
        return [f"{names}: experiment.uav.{present} takes a list to draw from"] if given else []


def translate(tree: dict[Any, Any], problems: list[str]) -> list[str]:
    """Turn former keys into present ones, in place.

    Args:
        tree: of a params file.
        problems: what is wrong is added.

    Returns:
        What the user should know, a phrase each.
    """
    known = _rename(tree, problems)
    dropped = []
    model = _section(tree, "sensor", "model")
    if model.get("type") == _PUBLISHED_SENSOR:
        model["type"] = "table"
        dropped += [f"sensor.model.{k}" for k in ("coeff_a", "coeff_b") if _remove(model, k)]
    simulation = _section(tree, "sensor", "simulation")
    if "type" in simulation:
        kind = simulation["type"]
        if kind != _PUBLISHED_TERRAIN:
            problems.append(
                f"sensor.simulation.type: must be absent or random_field, got {show(kind)}; "
                f"terrains are named by sensor.simulation.kinds"
            )
        simulation.setdefault("kinds", ["split"])
    dropped += _without_parts(tree, problems)
    dropped = [path for path in sorted(OBSOLETE) if _remove(tree, path)] + dropped
    for path in _FORMER_SECTIONS:
        *parents, leaf = path.split(".")
        section = _section(tree, *parents)
        if leaf in section and not section[leaf]:
            del section[leaf]
    if dropped:
        known.append(f"these keys have no effect any more: {', '.join(dropped)}")
    return known


def _without_parts(tree: dict[Any, Any], problems: list[str]) -> list[str]:
    """Remove the channels of `PARTS`; a team that saw them cannot do without."""
    observation = _section(tree, "observation")
    found = {old: observation.pop(old.split(".")[1], None) for old in PARTS}
    for old in (old for old, value in found.items() if value):
        problems.append(
            f"{old}: parts went by the UAVs' numbers, sectors go by their starts; "
            f"set {PARTS[old]} instead, and train the team anew"
        )
    return [old for old, value in found.items() if value is False]


def _rename(tree: dict[Any, Any], problems: list[str]) -> list[str]:
    moved = []
    for old, new in RENAMED.items():
        *parents, leaf = old.split(".")
        section = _section(tree, *parents)
        if leaf not in section:
            continue
        value = section.pop(leaf)
        *parents, leaf = new.split(".")
        target: Any = tree
        for name in parents:
            target = target.setdefault(name, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            continue  # reported as a section that is none
        if leaf in target:
            problems.append(f"{old}: is the former name of {new}, which is given too; drop it")
            continue
        target[leaf] = value
        if old == _POLICY and isinstance(value, str) and value in _POLICIES:
            target[leaf] = _POLICIES[value]
            new = f"{new}, and {value} {target[leaf]}"
        moved.append(f"{old} is now {new}")
    return [f"renamed keys: {', '.join(moved)}"] if moved else []


def _section(tree: Any, *path: str) -> dict[Any, Any]:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _remove(tree: dict[Any, Any], path: str) -> bool:
    *parents, leaf = path.split(".")
    section = _section(tree, *parents)
    found = leaf in section
    section.pop(leaf, None)
    return found
