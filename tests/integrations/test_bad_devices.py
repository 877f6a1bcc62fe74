"""An unknown device is refused by every wrapper, with the name of the argument."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from marl_framework.config.errors import ConfigError
from marl_framework.integrations import gymnasium, pettingzoo, torchrl
from marl_framework.integrations.missions import Missions
from tests.small import small_config

WRAPPERS = {
    "missions": partial(Missions, num_envs=1),
    "torchrl": partial(torchrl.MissionEnv, num_envs=1),
    "gymnasium": gymnasium.MissionEnv,
    "vector": gymnasium.MissionVectorEnv,
    "pettingzoo": pettingzoo.MissionParallelEnv,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("device", [4, None, "tpu:x", "cuda:99"])
def test_a_bad_device_is_named(wrapper: str, device: Any) -> None:
    with pytest.raises(ConfigError, match=f"^device: .*{device}"):
        WRAPPERS[wrapper](small_config(), device=device)
