"""Planners: they choose the actions of the UAVs."""

from marl_framework.planners.coverage import CoveragePlanner
from marl_framework.planners.information_gain import InformationGainPlanner
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.oracle import OraclePlanner
from marl_framework.planners.protocol import Decision, Planner
from marl_framework.planners.random_flight import RandomPlanner

__all__ = [
    "CoveragePlanner",
    "Decision",
    "InformationGainPlanner",
    "LearnedPlanner",
    "OraclePlanner",
    "Planner",
    "RandomPlanner",
]
