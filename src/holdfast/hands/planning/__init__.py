"""A plan of the work, as tools: `plan`."""

from holdfast.hands.planning.family import plan
from holdfast.hands.planning.plans import Plan, Step, StepStatus
from holdfast.hands.planning.reading import plan_of

__all__ = ["Plan", "Step", "StepStatus", "plan", "plan_of"]
