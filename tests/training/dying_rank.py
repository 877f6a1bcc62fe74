"""One of the ranks of `test_lost_rank.py`: the second one dies in a training step of each start.

torchrun --nproc_per_node=2 tests/training/dying_rank.py STEP,STEP [arguments of the command line]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from marl_framework.main import main
from marl_framework.training.trainer import Trainer

if __name__ == "__main__":
    steps, arguments = sys.argv[1].split(","), sys.argv[2:]
    training_step = Trainer.training_step

    def dying(trainer: Trainer, timer):
        last = int(steps[trainer.ranks.restarts])
        if trainer.ranks.rank == 1 and trainer.algorithm.training_steps == last - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return training_step(trainer, timer)

    Trainer.training_step = dying
    Trainer._draw_mission = lambda *_: None
    sys.exit(main(arguments))
