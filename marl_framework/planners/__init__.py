"""Planners: who decides where the UAVs fly."""

from marl_framework.planners.base import Planner
from marl_framework.planners.learned import LearnedPlanner
from marl_framework.planners.random_flight import RandomPlanner

__all__ = ["LearnedPlanner", "Planner", "RandomPlanner"]
