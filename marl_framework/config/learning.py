"""Sections on the learning: inputs, networks, schedule, distillation, device, logging."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from marl_framework.config.mission import SimulationConfig
from marl_framework.config.types import (
    PRETRAINED_PREDICTOR,
    Count,
    Device,
    Interval,
    NetworkType,
    NonNegative,
    Positive,
    Predictor,
    Rate,
    Section,
    Share,
    Text,
    Width,
)

ACTOR_CHANNELS = (
    "budget",
    "agent_id",
    "team_size",
    "radio_range",
    "position",
    "entropy",
    "local_entropy",
    "probability",
    "footprint",
    "uncertainty",
    "predicted",
    "no_fly",
    "sector",
    "centred_entropy",
    "centred_probability",
    "centred_footprint",
    "centred_uncertainty",
    "centred_predicted",
    "centred_no_fly",
    "centred_sector",
)
CENTRED = "centred_"
"""Prefix of channels that show another channel with the UAV at the centre."""
CRITIC_ONLY_CHANNELS = (
    "global_position",
    "global_entropy",
    "global_probability",
    "global_footprint",
    "other_actions",
    "global_uncertainty",
    "global_predicted",
)
PREDICTED_CHANNELS = ("predicted", "centred_predicted", "global_predicted")
"""Channels that show what a trained map predictor expects."""


class ObservationConfig(Section):
    """Channels of the networks' inputs; a channel that is off narrows the input.

    The `centred_` channels are not the paper's: the same maps shifted so that the UAV is at the
    centre, as it is in `position`, 0 beyond the lattice. Nor are the `uncertainty` channels: area
    means of p·H(p), taken cell by cell before they are averaged. The `predicted` channels show
    the entropy that a trained map predictor expects in the region of interest. The `no_fly`
    channels show the share of moves that zones and obstacles forbid, 1 beyond the lattice.
    The `sector` channels show the UAV's own part of the area, see `Sectors`.
    `team_size` and `radio_range` are numbers of the mission, constant over each map.
    """

    budget: bool = True
    agent_id: bool = True
    team_size: bool = False
    radio_range: bool = False
    position: bool = True
    entropy: bool = True
    local_entropy: bool = True
    probability: bool = True
    footprint: bool = True
    centred_entropy: bool = False
    centred_probability: bool = False
    centred_footprint: bool = False
    uncertainty: bool = False
    centred_uncertainty: bool = False
    predicted: bool = False
    centred_predicted: bool = False
    heard_uavs: bool = False
    """Planes for networks with attention, one for each UAV; see `ObservationBuilder.heard_uavs`."""
    no_fly: bool = False
    centred_no_fly: bool = False
    sector: bool = False
    centred_sector: bool = False
    global_position: bool = True
    global_entropy: bool = True
    global_probability: bool = True
    global_footprint: bool = True
    other_actions: bool = True
    global_uncertainty: bool = False
    global_predicted: bool = False

    @property
    def actor_channels(self) -> tuple[str, ...]:
        """Names of the actor's channels, in order."""
        return tuple(name for name in ACTOR_CHANNELS if getattr(self, name))

    @property
    def critic_only_channels(self) -> tuple[str, ...]:
        """Names of the channels that only the critic sees, in order."""
        return tuple(name for name in CRITIC_ONLY_CHANNELS if getattr(self, name))

    @property
    def critic_channels(self) -> tuple[str, ...]:
        """Names of the critic's channels, in order: the actor's, then its own."""
        return self.actor_channels + self.critic_only_channels

    @property
    def sees_uncertainty(self) -> bool:
        """Whether some network sees uncertainty, own or global."""
        return self.uncertainty or self.centred_uncertainty or self.global_uncertainty

    @property
    def sees_prediction(self) -> bool:
        """Whether some network sees what a map predictor expects."""
        return any(getattr(self, name) for name in PREDICTED_CHANNELS)

    @model_validator(mode="after")
    def _something_to_see(self) -> Self:
        if not self.actor_channels:
            raise ValueError("all actor channels are off; switch at least one on")
        return self


class EvaluationConfig(Section):
    """Greedy validation during training."""

    interval: Interval = 10
    """Training steps between validations, 0 = never."""
    missions: Count = 50
    """Missions flown by each validation."""
    best_by: Literal["entropy", "f1", "return"] = "entropy"
    """What makes the best checkpoint, and what `patience` waits for: the lowest ROI entropy of a
    validation, the highest F1 or the highest return."""


class NetworkConfig(Section):
    """One network."""

    type: NetworkType = "cnn"
    """Name of a built-in network, or the dotted path of your own."""
    conv_channels: Width = 256
    """Width of the convolutions."""
    hidden_dim: Width = 256
    """Width of the linear layer; of the tokens, too, where there are some."""
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    """Layers of an attention network."""
    heads: Annotated[int, Field(ge=1, le=256)] = 4
    """Heads of each of these layers; they divide `hidden_dim`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.type == "attention" and self.hidden_dim % self.heads:
            raise ValueError(
                f"heads {self.heads} does not divide hidden_dim {self.hidden_dim}; each head takes "
                "an equal part of it"
            )
        return self


class NetworksConfig(Section):
    """The networks: their types and widths."""

    actor: NetworkConfig = NetworkConfig()
    critic: NetworkConfig = NetworkConfig()
    predictor: Predictor = PRETRAINED_PREDICTOR
    """Of the `predicted` channels: a run folder, a checkpoint file, or the one of the library."""


class OptimizerConfig(Section):
    """Adam for one network."""

    learning_rate: Rate = 1e-4
    """Step size, before `lr_scaling`, warm-up and decay."""
    gradient_norm: Positive = 10.0
    """Gradients are scaled down to this norm."""


class ActorOptimizerConfig(OptimizerConfig):
    """Adam for the actor, whose steps are smaller."""

    learning_rate: Rate = 1e-5


class TeacherConfig(Section):
    """A trained team that the actor is pulled to (kickstarting)."""

    run: Text | None = None
    """Its run folder or a checkpoint file."""
    weight: NonNegative = 0.0
    """Of KL(teacher ‖ policy) in the actor's loss, 0 = off."""
    anneal_steps: Interval = 0
    """Training steps while the weight falls to 0 along a line, 0 = it stays."""

    @model_validator(mode="after")
    def _somebody_teaches(self) -> Self:
        if self.weight and self.run is None:
            raise ValueError(f"weight {self.weight:g} needs a teacher; name a trained team in run")
        return self


class LearningConfig(Section):
    """How the team learns: length, exploration, batches, targets, losses, rates."""

    training_steps: Count = 1500
    """Training steps to make."""
    patience: Interval = 100
    """Validations without a better one until training stops, 0 = off."""
    use_eps: bool = True
    """Explore: mix a uniform choice into the policy."""
    eps_max: Share = 0.5
    """Share of the uniform choice at first."""
    eps_min: Share = 0.02
    """Share of the uniform choice in the end."""
    eps_anneal_phase: Count = 10000
    """Missions flown while the share falls linearly from eps_max to eps_min."""
    data_passes: Count = 5
    """Passes over the data of a training step."""
    batch_size: Count = 60
    """Transitions of a batch (one agent, one step): `batch_size` · `batch_number` is the least
    that a training step collects."""
    batch_number: Count = 5
    """Batches of a pass."""
    update_interval: Count = 1
    """Training steps whose missions are flown before their updates are made in one stretch."""
    micro_batch: Interval = 0
    """Most transitions in the networks at once, 0 = a whole batch."""
    max_skipped_updates: Interval = 0
    """Updates with a loss or gradient that is not finite, which are never applied, until the
    training stops."""
    copy_rate: Count = 10
    """Training steps between hard copies into the target critic."""
    target_update_mode: Literal["hard", "soft"] = "hard"
    """How the target critic follows: copied every `copy_rate` training steps, or moved by `tau`
    in every one."""
    tau: Rate = 0.01
    """Share of the critic that soft updates take."""
    gamma: Share = 0.99
    """Discount of later rewards."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.8
    """Trace decay of the TD(λ) targets, and λ of GAE: 0 = one step, 1 = the whole return."""
    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in its loss."""
    advantage: Literal["critic", "return"] = "critic"
    """What an action is credited with before the baseline is taken off: the critic's Q(s, a), of a
    critic of states r + γ·V(s'), or its TD(λ) return. PPO has GAE."""
    normalize_advantages: bool = False
    """Scale advantages to mean 0 and standard deviation 1 over each batch."""
    clip_ratio: Share = 0.0
    """Most a probability may change in a training step, as a share of it, 0 = off."""
    value_normalization: bool = True
    """The critic learns returns scaled by the mean and deviation of those so far."""
    value_clip: NonNegative = 0.2
    """Most the critic's output gains from changing in a training step, 0 = off."""
    huber_delta: NonNegative = 10.0
    """Error beyond which the critic's loss grows along a line (Huber), 0 = squared everywhere."""
    kl_limit: NonNegative = 0.0
    """The actor waits for the next training step once its policy is so far from the one that
    flew [nat], 0 = off."""
    symmetries: bool = False
    """Each pass sees every transition flipped or turned at random; a reward of your own that
    depends on directions does not allow it."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How both learning rates follow the batch, from `lr_base_batch` on."""
    lr_base_batch: Count = 60
    """Batch that the learning rates are meant for [transitions]."""
    warmup_steps: Interval = 0
    """Training steps while the learning rates rise, 0 = none."""
    lr_decay: Share = 1.0
    """Last learning rate as a share of the configured one (see `Schedule.learning_rate_factor`)."""
    actor: ActorOptimizerConfig = ActorOptimizerConfig()
    critic: OptimizerConfig = OptimizerConfig()
    teacher: TeacherConfig = TeacherConfig()

    @model_validator(mode="after")
    def _epsilon_falls(self) -> Self:
        if self.eps_min > self.eps_max:
            raise ValueError(f"eps_min {self.eps_min:g} is above eps_max {self.eps_max:g}")
        return self


def _default_worlds() -> tuple[SimulationConfig, ...]:
    fields = (SimulationConfig(kinds=("random_field",), cluster_radius=r) for r in (2, 3))
    landscapes = (SimulationConfig(kinds=("landscape",)),) * 2
    return (
        SimulationConfig(kinds=("split",)),
        SimulationConfig(kinds=("mixed",)),
        *fields,
        *landscapes,
    )


class PredictionConfig(Section):
    """The map predictor of the search planner and how it is trained (`marl_framework.predict`)."""

    worlds: Annotated[tuple[SimulationConfig, ...], Field(min_length=1, max_length=100)] = Field(
        default_factory=_default_worlds
    )
    """Terrains to learn from, each like sensor.simulation; all are flown equally often."""
    rounds: Count = 12
    """Each flies missions with the predictor as it is, and then learns from all flown so far."""
    missions: Count = 12
    """Flown over each world in a round."""
    random_share: Share = 0.15
    """Of the missions that are flown at random; in the first round all are."""
    updates: Count = 250
    """Of a round."""
    batch_size: Count = 192
    """Beliefs of an update."""
    learning_rate: Rate = 0.002
    """At the start; it falls to a hundredth along a line."""
    weight_decay: Share = 0.0001
    width: Annotated[int, Field(ge=2, le=2**12)] = 40
    """Channels of the predictor's hidden layers."""


class DistillationConfig(Section):
    """One team that learns from several teachers (`marl_framework.distill`)."""

    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=100)
    """Missions by name, each with the keys that differ from this configuration, in sections."""
    teachers: dict[str, Text] = Field(default_factory=dict, max_length=100)
    """Who teaches each task: a run folder, a run of `logging.directory`, a checkpoint file, or a
    planner."""
    rounds: Count = 40
    """Each flies missions with the student as it is, and then learns."""
    missions: Count = 64
    """Flown for each task in a round."""
    updates: Count = 100
    """Of a round."""
    batch_size: Count = 512
    """States of an update."""
    learning_rate: Rate = 0.001
    """At the start; it falls to a hundredth along a line."""
    replay_rounds: Count = 4
    """Latest rounds whose states are learned from."""
    teacher_share: Share = 0.5
    """Of the moves that teachers make in the first round."""
    teacher_rounds: Interval = 10
    """Rounds while that share falls to 0 along a line, 0 = the student makes all moves."""
    loss: Literal["forward", "reverse"] = "forward"
    """KL(teacher ‖ student), whose gradient is that of the cross-entropy, or KL(student ‖
    teacher)."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    """Of the softmax that makes a policy of a planner's scores [unit of the scores]."""


class ComputeConfig(Section):
    """What computes, and how."""

    device: Device = "auto"
    """auto: the first GPU, else the CPU."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the networks' forward passes."""
    compile: bool = True
    """Compiled loops and GPU kernels where there are some; plain PyTorch operators otherwise."""
    tf32: bool = True
    """Float32 convolutions on tensor cores, about three digits (GPU)."""
    cudnn_benchmark: bool = True
    """Try convolution algorithms at the start (GPU)."""
    cuda_graphs: bool = False
    """Record whole episodes and updates, and start each by one call (GPU)."""
    deterministic: bool = False
    """Same seed, same numbers, on a GPU too; slower."""
    gradient_checkpointing: bool = False
    """Compute hidden layers twice and keep them less long."""
    distributed_backend: Literal["auto", "nccl", "gloo"] = "auto"
    """How the ranks of torchrun exchange gradients; auto: nccl on GPUs, gloo on CPUs."""


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each writer once")
    return names


class LoggingConfig(Section):
    """Where runs go and how often things are written; intervals are training steps, 0 = never."""

    directory: Annotated[Text, AfterValidator(os.path.expanduser)] = "runs"
    """Folder of all runs."""
    writers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], AfterValidator(_each_once)] = (
        "tensorboard",
    )
    """Of the metrics; wandb (Weights & Biases) needs the extra of that name."""
    scalar_interval: Count = 1
    """Between scalars."""
    histogram_interval: Interval = 50
    """Between histograms."""
    figure_interval: Interval = 0
    """Between figures of a mission; there is one at the end anyway."""
    checkpoint_interval: Interval = 50
    """Between checkpoints; there is one with each better validation, and at the end anyway."""
    checkpoint_minutes: NonNegative = 10.0
    """Also after so long [min]."""
    checkpoints_kept: Count = 3
    """Newest checkpoints that are kept, besides the best."""
