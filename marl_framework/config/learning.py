"""Sections for learning: inputs, networks, schedule, distillation, device, logging."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from marl_framework.config import types
from marl_framework.config.mission import SimulationConfig

CENTRED = "centred_"
"""Prefix of a channel that is a copy of another channel with the UAV at the centre."""
PREDICTED_CHANNELS = ("predicted", "centred_predicted", "global_predicted")
"""Channels that show predictions of a trained map predictor."""


class ObservationConfig(types.Section):
    """Input channels of the networks, see `observations.channels`; disabled channels are absent.

    The actor's channels come first, then the channels of the critic alone. Channels that are off by
    default are additions to the paper.
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
    area: bool = False
    places: bool = False
    team_moves: bool = False
    team_density: bool = False
    radio_reach: bool = False
    centred_entropy: bool = False
    centred_probability: bool = False
    centred_footprint: bool = False
    centred_uncertainty: bool = False
    centred_predicted: bool = False
    centred_no_fly: bool = False
    centred_sector: bool = False
    centred_area: bool = False
    heard_uavs: bool = False
    """Planes for attention networks, one per UAV; see `ObservationBuilder.heard_uavs`."""
    global_position: bool = True
    global_entropy: bool = True
    global_probability: bool = True
    global_footprint: bool = True
    other_actions: bool = True
    global_uncertainty: bool = False
    global_predicted: bool = False
    centred_global_position: bool = False
    centred_global_probability: bool = False
    centred_global_uncertainty: bool = False
    centred_other_actions: bool = False
    window: (
        Annotated[
            int,
            Field(ge=3, le=127),
            types.must(lambda size: size % 2, "odd, so that a UAV can be at the centre"),
        ]
        | None
    ) = None
    """Side k of maps that do not depend on the area (odd); null = maps of the lattice's shape."""

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
        """Names of the critic's channels, in order: the actor's channels first."""
        return self.actor_channels + self.critic_only_channels

    @property
    def sees_uncertainty(self) -> bool:
        """Whether a network sees uncertainty, own or global."""
        return any(getattr(self, name) for name in _CHANNELS if "uncertainty" in name)

    @property
    def sees_prediction(self) -> bool:
        """Whether a network sees predictions of a map predictor."""
        return any(getattr(self, name) for name in PREDICTED_CHANNELS)

    @model_validator(mode="after")
    def _check_channels(self) -> Self:
        if not self.actor_channels:
            raise ValueError("all actor channels are off; enable at least one")
        if self.window and self.other_actions:
            raise ValueError(
                "other_actions: actions cannot be averaged onto a window; set other_actions: false "
                "and centred_other_actions: true"
            )
        return self


_CHANNELS = tuple(name for name in ObservationConfig.model_fields if name != "window")
_SPLIT = _CHANNELS.index("heard_uavs")
ACTOR_CHANNELS, CRITIC_ONLY_CHANNELS = _CHANNELS[:_SPLIT], _CHANNELS[_SPLIT + 1 :]


class EvaluationConfig(types.Section):
    """Greedy validation during training, and completed maps of flights."""

    interval: types.Interval = 10
    """Training steps between validations; 0 = never."""
    missions: types.Count = 50
    """Number of missions per validation."""
    best_by: Literal["entropy", "f1", "return"] = "entropy"
    """Criterion of the best checkpoint and `patience`: lowest ROI entropy, highest F1 or return."""
    predictor: types.Text | None = "pretrained:rough_predictor"
    """Map predictor that completes maps: run folder, checkpoint or included one; None = none."""
    caution: types.Rate | None = None
    """Caution of completed maps, as `mapping.caution`; None = learned from readings."""


class NetworkConfig(types.Section):
    """Type and size of one network."""

    type: types.NetworkType = "cnn"
    """Name of a built-in network, or dotted path of a custom network."""
    conv_channels: types.Width = 256
    """Number of channels of the convolutions."""
    hidden_dim: types.Width = 256
    """Width of the linear layer and of attention tokens."""
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of layers of an attention network."""
    heads: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of heads per attention layer; must divide `hidden_dim`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.type == "attention" and self.hidden_dim % self.heads:
            raise ValueError(f"heads {self.heads} must divide hidden_dim {self.hidden_dim}")
        return self


class NetworksConfig(types.Section):
    """Networks of actor and critic, and map predictor."""

    actor: NetworkConfig = NetworkConfig()
    critic: NetworkConfig = NetworkConfig()
    predictor: types.Predictor = types.PRETRAINED_PREDICTOR
    """Map predictor for `predicted` channels: run folder, checkpoint or included one."""


class OptimizerConfig(types.Section):
    """Adam for one network."""

    learning_rate: types.Rate = 1e-4
    """Learning rate before `lr_scaling`, warm-up and decay."""
    gradient_norm: types.Positive = 10.0
    """Maximum gradient norm; larger gradients are clipped."""


class ActorOptimizerConfig(OptimizerConfig):
    """Adam for the actor, with a smaller learning rate."""

    learning_rate: types.Rate = 1e-5


class TeacherConfig(types.Section):
    """Trained team that the actor imitates during training (kickstarting)."""

    run: types.Text | None = None
    """Run folder or checkpoint file of the teacher."""
    weight: types.NonNegative = 0.0
    """Weight of KL(teacher ‖ policy) in the actor's loss; 0 = off."""
    anneal_steps: types.Interval = 0
    """Training steps over which the weight falls linearly to 0; 0 = constant weight."""

    @model_validator(mode="after")
    def _weight_needs_run(self) -> Self:
        if self.weight and self.run is None:
            raise ValueError(
                f"weight {self.weight:g} requires a teacher; set run to a trained team"
            )
        return self


class LearningConfig(types.Section):
    """Training length, exploration, batches, targets, losses and learning rates."""

    training_steps: types.Count = 1500
    """Number of training steps."""
    patience: types.Interval = 100
    """Number of validations without improvement after which training stops; 0 = off."""
    use_eps: bool = True
    """Whether to explore by mixing a uniform choice into the policy."""
    eps_max: types.Share = 0.5
    """Initial share of the uniform choice."""
    eps_min: types.Share = 0.02
    """Final share of the uniform choice."""
    eps_anneal_phase: types.Count = 10000
    """Number of missions over which the share falls linearly from eps_max to eps_min."""
    data_passes: types.Count = 5
    """Number of passes over the data of a training step."""
    batch_size: types.Count = 60
    """Transitions (one UAV, one move) per batch; a training step collects at least one pass."""
    batch_number: types.Count = 5
    """Number of batches per pass."""
    update_interval: types.Count = 1
    """Number of training steps whose missions are flown first and then learned from together."""
    micro_batch: types.Interval = 0
    """Maximum number of transitions in a forward pass; 0 = a whole batch."""
    max_skipped_updates: types.Interval = 0
    """Number of skipped updates (non-finite loss or gradient) that are tolerated."""
    copy_rate: types.Count = 10
    """Training steps between hard copies into the target networks."""
    target_update_mode: Literal["hard", "soft"] = "hard"
    """Update of target networks: a copy every `copy_rate` steps, or a soft update in each step."""
    tau: types.Rate = 0.01
    """Weight τ of the learned network in a soft update."""
    gamma: types.Share = 0.99
    """Discount factor γ."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.8
    """Trace decay λ of targets and GAE: 0 = one step, 1 = the whole return."""
    entropy_coefficient: types.NonNegative = 0.0
    """Weight of the entropy bonus in the actor's loss; SAC learns a temperature instead."""
    temperature: types.Positive = 0.1
    """SAC: initial weight of the entropy in values and loss. QMIX: logits are Q / temperature."""
    target_entropy: types.Share = 0.3
    """SAC: entropy that the temperature aims at, as a share of log(number of allowed actions)."""
    replay_size: types.Interval = 0
    """SAC, QMIX: number of transitions stored on all ranks; at least those of one rollout."""
    advantage: Literal["critic", "return"] = "critic"
    """Credit of an action: critic (Q(s, a) or r + γ·V(s')) or TD(λ) return. PPO uses GAE."""
    normalize_advantages: bool = False
    """Whether to scale advantages to mean 0 and standard deviation 1 over each batch."""
    clip_ratio: types.Share = 0.0
    """PPO clip ratio: largest relative change of a probability per training step; 0 = off."""
    value_normalization: bool = True
    """Whether the critic learns returns normalised by their running mean and deviation."""
    value_clip: types.NonNegative = 0.2
    """Clip range for changes of the critic's output in a training step; 0 = off."""
    huber_delta: types.NonNegative = 10.0
    """Error above which the critic's Huber loss is linear; 0 = squared error."""
    kl_limit: types.NonNegative = 0.0
    """KL divergence from the flown policy that ends a step's actor updates [nat]; 0 = off."""
    symmetries: bool = False
    """Whether to flip and rotate transitions randomly; rewards must be symmetric."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Scaling of both learning rates with the ratio of batch size to `lr_base_batch`."""
    lr_base_batch: types.Count = 60
    """Batch size for which the learning rates are configured [transitions]."""
    warmup_steps: types.Interval = 0
    """Number of warm-up steps in which the learning rates rise; 0 = none."""
    lr_decay: types.Share = 1.0
    """Ratio of the last to the configured learning rate (`Schedule.learning_rate_factor`)."""
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
    """Training of the map predictor (`marl_framework.predict`)."""

    worlds: Annotated[tuple[SimulationConfig, ...], Field(min_length=1, max_length=100)] = _WORLDS
    """Terrains to learn from, each given like sensor.simulation; flown equally often."""
    rounds: types.Count = 12
    """Number of rounds; each flies with the current predictor, then learns from all flights."""
    missions: types.Count = 12
    """Number of missions per world and round."""
    random_share: types.Share = 0.15
    """Share of missions flown randomly; in the first round all are random."""
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
    """Distillation of several teachers into one team (`marl_framework.distill`)."""

    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=100)
    """Tasks by name; each holds the sections and keys that differ from this configuration."""
    teachers: dict[str, types.Text] = Field(default_factory=dict, max_length=100)
    """Teacher per task: run folder, run in `logging.directory`, checkpoint or planner."""
    rounds: types.Count = 40
    """Number of rounds; each flies missions with the current student, then learns."""
    missions: types.Count = 64
    """Number of missions per task and round."""
    updates: types.Count = 100
    """Number of updates per round."""
    batch_size: types.Count = 512
    """Number of states per update."""
    learning_rate: types.Rate = 0.001
    """First learning rate; it falls linearly to a hundredth."""
    replay_rounds: types.Count = 4
    """Number of latest rounds whose data are used."""
    teacher_share: types.Share = 0.5
    """Share of moves made by teachers in the first round."""
    teacher_rounds: types.Interval = 10
    """Rounds over which `teacher_share` falls to 0; 0 = the student makes all moves."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    """Temperature of the softmax over a planner's scores [unit of the scores]."""


class ComputeConfig(types.Section):
    """Device, precision and speed."""

    device: types.Device = "auto"
    """Device of all tensors; auto = first GPU, else CPU."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the networks' forward passes."""
    compile: bool = True
    """Whether to use compiled loops and GPU kernels where available."""
    tf32: bool = True
    """Whether float32 convolutions use TF32 tensor cores, with about three digits (GPU)."""
    cudnn_benchmark: bool = True
    """Whether to benchmark convolution algorithms at the start (GPU)."""
    convolutions: Literal["auto", "convolution", "channels_last", "product"] = "auto"
    """How a CPU computes convolutions; auto = product; in float32 also channels_last."""
    cuda_graphs: bool | Literal["auto"] = "auto"
    """Whether to record whole episodes and updates as CUDA graphs (GPU); auto = where it works."""
    deterministic: bool = False
    """Whether equal seeds give equal results on a GPU, too; slower."""
    distributed_backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend for gradient exchange with torchrun; auto = nccl on GPUs, gloo on CPUs."""


class LoggingConfig(types.Section):
    """Run folders and logs; intervals are in training steps; 0 = never."""

    directory: Annotated[types.Text, AfterValidator(os.path.expanduser)] = "runs"
    """Folder of all runs."""
    writers: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...],
        types.must(lambda names: len({*names}) == len(names), "different writers"),
    ] = ("tensorboard",)
    """Metric writers; wandb (Weights & Biases) requires the extra with this name."""
    scalar_interval: types.Count = 1
    """Interval of scalars."""
    histogram_interval: types.Interval = 50
    """Interval of histograms."""
    figure_interval: types.Interval = 0
    """Interval of mission figures; a figure is always drawn at the end."""
    checkpoint_interval: types.Interval = 50
    """Interval of checkpoints; improvements in validation and the end also save one."""
    checkpoint_minutes: types.NonNegative = 10.0
    """Time between additional checkpoints [min]; 0 = off."""
    checkpoints_kept: types.Count = 3
    """Number of newest checkpoints to keep, in addition to the best checkpoint."""
    save_replay: bool = False
    """SAC, QMIX: whether checkpoints contain the replay; else a resumed training refills it."""
