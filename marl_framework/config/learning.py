"""Sections that describe the learning: inputs, evaluation, networks, logging."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from marl_framework.config.types import (
    Count,
    Device,
    Interval,
    NonNegative,
    Positive,
    Rate,
    Section,
    Share,
    Text,
    Width,
)

ACTOR_CHANNELS = (
    "budget",
    "agent_id",
    "position",
    "entropy",
    "local_entropy",
    "probability",
    "footprint",
    "uncertainty",
    "centred_entropy",
    "centred_probability",
    "centred_footprint",
    "centred_uncertainty",
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
)


class ObservationConfig(Section):
    """Channels of the networks' inputs; a channel that is off narrows the input.

    The `centred_` channels are not the paper's: the same maps shifted so that the UAV is at the
    centre, as it is in `position`, 0 beyond the lattice. Nor are the `uncertainty` channels: area
    means of p·H(p), taken cell by cell before they are averaged.
    """

    budget: bool = True
    agent_id: bool = True
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
    global_position: bool = True
    global_entropy: bool = True
    global_probability: bool = True
    global_footprint: bool = True
    other_actions: bool = True
    global_uncertainty: bool = False

    @property
    def actor_channels(self) -> tuple[str, ...]:
        """Names of the actor's channels, in order."""
        return tuple(name for name in ACTOR_CHANNELS if getattr(self, name))

    @property
    def critic_channels(self) -> tuple[str, ...]:
        """Names of the critic's channels, in order: the actor's, then its own."""
        own = tuple(name for name in CRITIC_ONLY_CHANNELS if getattr(self, name))
        return self.actor_channels + own

    @property
    def sees_uncertainty(self) -> bool:
        """Whether some network sees uncertainty, own or global."""
        return self.uncertainty or self.centred_uncertainty or self.global_uncertainty

    @model_validator(mode="after")
    def _something_to_see(self) -> Self:
        if not self.actor_channels:
            raise ValueError("all actor channels are off; switch at least one on")
        return self


class EvaluationConfig(Section):
    """Greedy validation during training.

    interval [training steps], 0 = never; missions: flown by each evaluation.
    """

    interval: Interval = 10
    missions: Count = 50


class ActorConfig(Section):
    """Widths and optimiser of the actor."""

    conv_channels: Width = 256
    hidden_dim: Width = 256
    learning_rate: Rate = 1e-5
    gradient_norm: Positive = 10.0


class CriticConfig(Section):
    """Widths and optimiser of the critic, and how its target follows."""

    conv_channels: Width = 256
    fc1_dim: Width = 256
    learning_rate: Rate = 1e-4
    gradient_norm: Positive = 10.0
    target_update_mode: Literal["hard", "soft"] = "hard"
    tau: Rate = 0.01


class NetworksConfig(Section):
    """COMA: networks, schedule, device and precision.

    cuda_graphs: on a GPU whole episodes and updates are recorded and started by one call each;
    batch_size [transitions: one agent, one step] and batch_number: the least a training step
    collects; update_interval [training steps]: flown before their updates are made in one stretch;
    micro_batch [transitions]: most that the networks take at once, 0 = a whole batch;
    gradient_checkpointing: hidden layers are computed twice and kept less long;
    max_skipped_updates: updates with a loss or gradient that is not finite, which are never
    applied, until the training stops; copy_rate [training steps] between hard copies into the
    target critic; advantage: what an action is credited with before the counterfactual baseline
    is taken off, the critic's Q(s, a) or its TD(λ) return; kl_limit [nat]: the actor waits for the
    next training step once the policy is so far from the one that flew, 0 = off; symmetries:
    each pass sees every transition flipped or turned at random, which a reward of your own that
    depends on directions does not allow; lr_scaling: how both learning rates follow the batch,
    from lr_base_batch [transitions] on; warmup_steps [training steps]: while they rise; lr_decay:
    their last value as a share of the configured one (see `training.schedule`).
    """

    type: Literal["CNN"] = "CNN"
    device: Device = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    compile: bool = True
    tf32: bool = True
    cudnn_benchmark: bool = True
    cuda_graphs: bool = False
    deterministic: bool = False
    data_passes: Count = 5
    batch_size: Count = 60
    batch_number: Count = 5
    update_interval: Count = 1
    micro_batch: Interval = 0
    gradient_checkpointing: bool = False
    max_skipped_updates: Interval = 0
    copy_rate: Count = 10
    gamma: Share = 0.99
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.8
    entropy_coefficient: NonNegative = 0.0
    advantage: Literal["critic", "return"] = "critic"
    normalize_advantages: bool = False
    clip_ratio: Share = 0.0
    kl_limit: NonNegative = 0.0
    symmetries: bool = False
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    lr_base_batch: Count = 60
    warmup_steps: Interval = 0
    lr_decay: Share = 1.0
    actor: ActorConfig = ActorConfig()
    critic: CriticConfig = CriticConfig()


class DistributedConfig(Section):
    """How ranks that torchrun started exchange gradients: auto is nccl on GPUs, gloo on CPUs."""

    backend: Literal["auto", "nccl", "gloo"] = "auto"


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each writer once")
    return names


class LoggingConfig(Section):
    """Where runs go and how often things are written [training steps], 0 = never.

    writers: of the metrics; wandb (Weights & Biases) needs the extra of that name.
    checkpoint_minutes: also after so long [min], 0 = never.
    """

    directory: Text = "runs"
    writers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], AfterValidator(_each_once)] = (
        "tensorboard",
    )
    scalar_interval: Count = 1
    histogram_interval: Interval = 50
    figure_interval: Interval = 0
    checkpoint_interval: Interval = 50
    checkpoint_minutes: NonNegative = 10.0
    checkpoints_kept: Count = 3
