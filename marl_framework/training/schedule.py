"""What follows from the training steps made so far alone: learning rates, and what is due."""

from __future__ import annotations

from marl_framework.config.model import Config


def learning_rate_factor(config: Config, step: int) -> float:
    """Return what the configured learning rates of actor and critic are multiplied by.

    Scale of the batch (`Config.learning_rate_scale`), times (step + 1) / warmup_steps until that
    is 1, times a line from 1 at the first to `lr_decay` at the last training step. It depends on
    nothing that a checkpoint would have to hold, and no tensor is read for it.

    Args:
        config: of the training.
        step: training steps made before, from 0.
    """
    learning = config.learning
    warm = min((step + 1) / learning.warmup_steps, 1.0) if learning.warmup_steps else 1.0
    done = min(step / max(config.learning.training_steps - 1, 1), 1.0)
    return config.learning_rate_scale * warm * (1 - (1 - learning.lr_decay) * done)


def passes(interval: int, before: int, step: int) -> bool:
    """Whether a multiple of an interval lies behind `before` and up to `step`; never for 0.

    Training steps come one by one, or `learning.update_interval` of them at once.
    """
    return interval > 0 and step // interval > before // interval
