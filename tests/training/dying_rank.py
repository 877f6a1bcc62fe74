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
from marl_framework.training.ranks import Ranks
from marl_framework.training.trainer import Trainer
from tests.training.steps import at_step

if __name__ == "__main__":
    steps, arguments = sys.argv[1].split(","), sys.argv[2:]
    ranks = Ranks.of()
    if ranks.rank == 1:
        last = int(steps[ranks.restarts])
        Trainer.make_steps = at_step(last, lambda _: os.kill(os.getpid(), signal.SIGKILL))
    sys.exit(main(arguments))
