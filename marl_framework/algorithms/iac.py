"""Independent actor-critic: each UAV learns from its own observation."""

from __future__ import annotations

from marl_framework.algorithms.state_values import StateValues


class IAC(StateValues):
    """IAC-V (Foerster et al. 2018): no central knowledge, in flight or in learning.

    All UAVs share the weights of one actor and one critic, as in COMA.
    """

    central = False
