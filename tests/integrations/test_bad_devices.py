"""A device that is none is told by the wrapper, with the name of the argument."""

from __future__ import annotations

from typing import Any

import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.integrations.gymnasium import MissionEnv as MissionGymEnv
from marl_framework.integrations.gymnasium import MissionVectorEnv
from marl_framework.integrations.missions import Missions
from marl_framework.integrations.pettingzoo import MissionParallelEnv
from marl_framework.integrations.torchrl import MissionEnv
from tests.small import small_config

WRAPPERS = {
    "missions": lambda device: Missions(small_config(), 1, device=device),
    "torchrl": lambda device: MissionEnv(small_config(), 1, device=device),
    "gymnasium": lambda device: MissionGymEnv(small_config(), device=device),
    "vector": lambda device: MissionVectorEnv(small_config(), 1, device=device),
    "pettingzoo": lambda device: MissionParallelEnv(small_config(), device=device),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("device", [4, None, "tpu:x", "cuda:99"])
def test_a_bad_device_is_named(wrapper: str, device: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^device: '?{device}'? "):
        WRAPPERS[wrapper](device)
