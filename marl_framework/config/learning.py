"""Sections on learning: inputs, networks, schedule, distillation, device, logging."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from marl_framework.config import types
from marl_framework.config.mission import SimulationConfig

CENTRED = "centred_"
"""Prefix of channels that show another channel with the UAV at the centre."""
PREDICTED_CHANNELS = ("predicted", "centred_predicted", "global_predicted")
"""Channels that show the expectation of a trained map predictor."""


class ObservationConfig(types.Section):
    """Channels of the networks' inputs, see `observations.channels`; one that is off is absent.

    The actor's channels come first, in their order, and those of the critic alone last. Channels
    that are off by default are not the paper's.
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
    uncertainty: bool = False
    predicted: bool = False
    no_fly: bool = False
    sector: bool = False
    centred_entropy: bool = False
    centred_probability: bool = False
    centred_footprint: bool = False
    centred_uncertainty: bool = False
    centred_predicted: bool = False
    centred_no_fly: bool = False
    centred_sector: bool = False
    heard_uavs: bool = False
    """Planes for networks with attention, one for each UAV; see `ObservationBuilder.heard_uavs`."""
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
        """Whether some network sees the expectation of a map predictor."""
        return any(getattr(self, name) for name in PREDICTED_CHANNELS)

    @model_validator(mode="after")
    def _not_blind(self) -> Self:
        if not self.actor_channels:
            raise ValueError("all actor channels are off; switch at least one on")
        return self


_CHANNELS = tuple(ObservationConfig.model_fields)
_SPLIT = _CHANNELS.index("heard_uavs")
ACTOR_CHANNELS, CRITIC_ONLY_CHANNELS = _CHANNELS[:_SPLIT], _CHANNELS[_SPLIT + 1 :]


class EvaluationConfig(types.Section):
    """Greedy validation during training."""

    interval: types.Interval = 10
    """Training steps between validations, 0 = never."""
    missions: types.Count = 50
    """Missions flown by each validation."""
    best_by: Literal["entropy", "f1", "return"] = "entropy"
    """Criterion of the best checkpoint and `patience`: lowest ROI entropy, highest F1 or return."""


class NetworkConfig(types.Section):
    """One network."""

    type: types.NetworkType = "cnn"
    """Name of a built-in network, or dotted path of a custom one."""
    conv_channels: types.Width = 256
    """Width of the convolutions."""
    hidden_dim: types.Width = 256
    """Width of the linear layer and of the tokens of attention."""
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of layers of an attention network."""
    heads: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of heads of each attention layer; a divisor of `hidden_dim`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.type == "attention" and self.hidden_dim % self.heads:
            raise ValueError(f"heads {self.heads} must divide hidden_dim {self.hidden_dim}")
        return self


class NetworksConfig(types.Section):
    """Types and widths of the networks."""

    actor: NetworkConfig = NetworkConfig()
    critic: NetworkConfig = NetworkConfig()
    predictor: types.Predictor = types.PRETRAINED_PREDICTOR
    """Map predictor of the `predicted` channels: run folder, checkpoint or the library's."""


class OptimizerConfig(types.Section):
    """Adam for one network."""

    learning_rate: types.Rate = 1e-4
    """Step size, before `lr_scaling`, warm-up and decay."""
    gradient_norm: types.Positive = 10.0
    """Largest norm of the gradients, which are scaled down to it."""


class ActorOptimizerConfig(OptimizerConfig):
    """Adam for the actor, with smaller steps."""

    learning_rate: types.Rate = 1e-5


class TeacherConfig(types.Section):
    """A trained team that the actor is pulled to (kickstarting)."""

    run: types.Text | None = None
    """Run folder or checkpoint file of the teacher."""
    weight: types.NonNegative = 0.0
    """Weight of KL(teacher ‖ policy) in the actor's loss, 0 = off."""
    anneal_steps: types.Interval = 0
    """Training steps while the weight falls linearly to 0, 0 = it is constant."""

    @model_validator(mode="after")
    def _weight_needs_run(self) -> Self:
        if self.weight and self.run is None:
            raise ValueError(f"weight {self.weight:g} needs a teacher; name a trained team in run")
        return self


class LearningConfig(types.Section):
    """Length of the training, exploration, batches, targets, losses and rates."""

    training_steps: types.Count = 1500
    """Number of training steps."""
    patience: types.Interval = 100
    """Validations without a better one until training stops, 0 = off."""
    use_eps: bool = True
    """Whether to explore: mix a uniform choice into the policy."""
    eps_max: types.Share = 0.5
    """First share of the uniform choice."""
    eps_min: types.Share = 0.02
    """Last share of the uniform choice."""
    eps_anneal_phase: types.Count = 10000
    """Missions flown while the share falls linearly from eps_max to eps_min."""
    data_passes: types.Count = 5
    """Passes over the data of a training step."""
    batch_size: types.Count = 60
    """Transitions (one agent, one step) per batch; a step collects at least a full pass."""
    batch_number: types.Count = 5
    """Number of batches per pass."""
    update_interval: types.Count = 1
    """Training steps whose missions are flown before their updates are made together."""
    micro_batch: types.Interval = 0
    """Most transitions in the networks at once, 0 = a whole batch."""
    max_skipped_updates: types.Interval = 0
    """Updates with a non-finite loss or gradient, always skipped, until training stops."""
    copy_rate: types.Count = 10
    """Training steps between hard copies into the target critic."""
    target_update_mode: Literal["hard", "soft"] = "hard"
    """Update of the target critic: every `copy_rate` training steps, or by `tau` in each one."""
    tau: types.Rate = 0.01
    """Share of the critic in a soft update."""
    gamma: types.Share = 0.99
    """Discount of later rewards."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.8
    """Trace decay of the TD(λ) targets, and λ of GAE: 0 = one step, 1 = the whole return."""
    entropy_coefficient: types.NonNegative = 0.0
    """Weight of the policy's entropy in its loss."""
    advantage: Literal["critic", "return"] = "critic"
    """Credit of an action: Q(s, a) or r + γ·V(s') of the critic, or TD(λ) returns. PPO uses GAE."""
    normalize_advantages: bool = False
    """Whether to scale advantages to mean 0 and standard deviation 1 over each batch."""
    clip_ratio: types.Share = 0.0
    """Largest relative change of a probability in a training step, 0 = off."""
    value_normalization: bool = True
    """Whether the critic learns returns scaled by the mean and deviation of those so far."""
    value_clip: types.NonNegative = 0.2
    """Largest rewarded change of the critic's output in a training step, 0 = off."""
    huber_delta: types.NonNegative = 10.0
    """Error beyond which the critic's loss grows linearly (Huber), 0 = squared everywhere."""
    kl_limit: types.NonNegative = 0.0
    """Divergence from the flown policy that ends a step's updates of the actor [nat], 0 = off."""
    symmetries: bool = False
    """Whether passes flip and turn transitions at random; rewards must not depend on directions."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Growth of both learning rates with the batch, from `lr_base_batch` on."""
    lr_base_batch: types.Count = 60
    """Batch that the learning rates are meant for [transitions]."""
    warmup_steps: types.Interval = 0
    """Training steps while the learning rates rise, 0 = none."""
    lr_decay: types.Share = 1.0
    """Last learning rate as a share of the configured one (see `Schedule.learning_rate_factor`)."""
    actor: ActorOptimizerConfig = ActorOptimizerConfig()
    critic: OptimizerConfig = OptimizerConfig()
    teacher: TeacherConfig = TeacherConfig()

    @model_validator(mode="after")
    def _epsilon_falls(self) -> Self:
        if self.eps_min > self.eps_max:
            raise ValueError(f"eps_min {self.eps_min:g} is above eps_max {self.eps_max:g}")
        return self


_WORLDS = (
    *(SimulationConfig(kinds=(kind,)) for kind in ("split", "mixed")),
    *(SimulationConfig(kinds=("random_field",), cluster_radius=radius) for radius in (2, 3)),
    *(SimulationConfig(kinds=("landscape",)),) * 2,
)


class PredictionConfig(types.Section):
    """The map predictor of the search planner and how it is trained (`marl_framework.predict`)."""

    worlds: Annotated[tuple[SimulationConfig, ...], Field(min_length=1, max_length=100)] = _WORLDS
    """Terrains to learn from, each like sensor.simulation and flown equally often."""
    rounds: types.Count = 12
    """Number of rounds: each flies with the current predictor, then learns from all flights."""
    missions: types.Count = 12
    """Missions flown over each world in a round."""
    random_share: types.Share = 0.15
    """Share of the missions that are flown at random; all in the first round."""
    updates: types.Count = 250
    """Number of updates per round."""
    batch_size: types.Count = 192
    """Number of beliefs per update."""
    learning_rate: types.Rate = 0.002
    """First learning rate; it falls linearly to a hundredth."""
    weight_decay: types.Share = 0.0001
    """Weight decay of AdamW."""
    width: Annotated[int, Field(ge=2, le=2**12)] = 40
    """Number of channels of the predictor's hidden layers."""


class DistillationConfig(types.Section):
    """One team that learns from several teachers (`marl_framework.distill`)."""

    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=100)
    """Missions by name, each with the keys that differ from this configuration, in sections."""
    teachers: dict[str, types.Text] = Field(default_factory=dict, max_length=100)
    """Teacher of each task: run folder, run of `logging.directory`, checkpoint or planner."""
    rounds: types.Count = 40
    """Number of rounds: each flies missions with the current student, then learns."""
    missions: types.Count = 64
    """Missions flown for each task in a round."""
    updates: types.Count = 100
    """Number of updates per round."""
    batch_size: types.Count = 512
    """Number of states per update."""
    learning_rate: types.Rate = 0.001
    """First learning rate; it falls linearly to a hundredth."""
    replay_rounds: types.Count = 4
    """Number of latest rounds to learn from."""
    teacher_share: types.Share = 0.5
    """Share of the moves that teachers make in the first round."""
    teacher_rounds: types.Interval = 10
    """Rounds while that share falls linearly to 0, 0 = the student makes all moves."""
    loss: Literal["forward", "reverse"] = "forward"
    """KL(teacher ‖ student), as the cross-entropy, or KL(student ‖ teacher)."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    """Temperature of the softmax over a planner's scores [unit of the scores]."""


class ComputeConfig(types.Section):
    """Device, precision and speed."""

    device: types.Device = "auto"
    """Device of all tensors; auto: the first GPU, else the CPU."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the networks' forward passes."""
    compile: bool = True
    """Whether to use compiled loops and GPU kernels where there are some."""
    tf32: bool = True
    """Whether float32 convolutions use tensor cores, with about three digits (GPU)."""
    cudnn_benchmark: bool = True
    """Whether to try convolution algorithms at the start (GPU)."""
    cuda_graphs: bool = False
    """Whether to record whole episodes and updates, and start each by one call (GPU)."""
    deterministic: bool = False
    """Whether equal seeds give equal numbers on a GPU too; slower."""
    gradient_checkpointing: bool = False
    """Whether to compute hidden layers twice, to save memory."""
    distributed_backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Exchange of gradients between ranks of torchrun; auto: nccl on GPUs, gloo on CPUs."""


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("must name each writer once")
    return names


class LoggingConfig(types.Section):
    """Run folders and logs; intervals are in training steps, 0 = never."""

    directory: Annotated[types.Text, AfterValidator(os.path.expanduser)] = "runs"
    """Folder of all runs."""
    writers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], AfterValidator(_each_once)] = (
        "tensorboard",
    )
    """Writers of the metrics; wandb (Weights & Biases) needs the extra of that name."""
    scalar_interval: types.Count = 1
    """Interval between scalars."""
    histogram_interval: types.Interval = 50
    """Interval between histograms."""
    figure_interval: types.Interval = 0
    """Interval between figures of a mission; the end always has one."""
    checkpoint_interval: types.Interval = 50
    """Interval between checkpoints; each better validation and the end always have one."""
    checkpoint_minutes: types.NonNegative = 10.0
    """Time after which a checkpoint is also written [min], 0 = off."""
    checkpoints_kept: types.Count = 3
    """Number of newest checkpoints to keep, in addition to the best."""
