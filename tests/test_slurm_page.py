"""The Slurm scripts of the pages: a shell takes them, and our commands in them are understood."""

import re
import shlex
import subprocess

import pytest

from marl_framework.main import make_parser
from tests.pages import Block, all_blocks

SCRIPTS = [block for block in all_blocks("bash") if "#SBATCH" in block.code]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_saves_and_goes_on(script: Block) -> None:
    subprocess.run(["bash", "-n", "-c", script.code], check=True)
    (command,) = (line for line in script.commands() if line.startswith("srun "))
    words = shlex.split(command)
    options = make_parser().parse_args(words[words.index("marl_framework.main") + 1 :])
    assert options.resume
    assert f"runs/{options.run_name}/status.json" in script.code
    assert "--requeue" in script.code
    warning = re.search(r"--signal=(\w+)@\d+", script.code)
    assert warning is not None
    assert warning[1] == "USR1"
    if "torchrun" in words:
        assert "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1" in words


def test_there_is_a_script_for_one_host_and_one_for_several() -> None:
    assert ["torchrun" in script.code for script in SCRIPTS] == [False, True]
