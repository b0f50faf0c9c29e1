"""Pure functions from contract, model and catalog to a plan, or to every problem at once."""

from trtkit.catalog.model import ModelConfig
from trtkit.plan.machine import Machine
from trtkit.plan.resolve import make_plan
from trtkit.plan.types import Plan

__all__ = ["Machine", "ModelConfig", "Plan", "make_plan"]
