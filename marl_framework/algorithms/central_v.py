"""Central-V: a central critic of states without a counterfactual baseline."""

from __future__ import annotations

from marl_framework.algorithms.state_values import StateValues


class CentralV(StateValues):
    """Central-V (Foerster et al. 2018): V(s) of the team's state, no credit for single UAVs."""
