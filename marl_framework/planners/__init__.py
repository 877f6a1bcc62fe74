"""Planners: they choose the actions of the UAVs."""

from marl_framework.planners.coverage import CoveragePlanner
from marl_framework.planners.information_gain import InformationGainPlanner
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.protocol import Decision, Planner
from marl_framework.planners.random_flight import RandomPlanner
from marl_framework.planners.search.planner import OraclePlanner, SearchPlanner

__all__ = [
    "CoveragePlanner",
    "Decision",
    "InformationGainPlanner",
    "LearnedPlanner",
    "OraclePlanner",
    "Planner",
    "RandomPlanner",
    "SearchPlanner",
]
