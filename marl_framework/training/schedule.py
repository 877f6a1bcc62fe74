"""What depends on the number of training steps alone: learning rates and intervals."""

from __future__ import annotations

from marl_framework.config.model import Config


def learning_rate_factor(config: Config, step: int) -> float:
    """Return the factor of the configured learning rates.

    It is the scale of the batch (`Config.learning_rate_scale`), times (step + 1) / warmup_steps
    until that is 1, times a line from 1 at the first to `lr_decay` at the last training step.

    Args:
        config: of the training.
        step: training steps made before.
    """
    learning = config.learning
    warm = min((step + 1) / learning.warmup_steps, 1.0) if learning.warmup_steps else 1.0
    done = min(step / max(config.learning.training_steps - 1, 1), 1.0)
    return config.learning_rate_scale * warm * (1 - (1 - learning.lr_decay) * done)


def passes(interval: int, before: int, step: int) -> bool:
    """Whether a multiple of an interval lies in (before, step]; never for interval 0.

    Several steps may be made at once, `learning.update_interval` of them.
    """
    return interval > 0 and step // interval > before // interval
