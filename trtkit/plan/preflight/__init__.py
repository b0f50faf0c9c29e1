"""Checks of plans for GPUs, by what they are about; the order is that of their problems."""

from trtkit.plan.check import Check
from trtkit.plan.preflight.exported import EXPORTED_CHECKS
from trtkit.plan.preflight.flags import FLAG_CHECKS
from trtkit.plan.preflight.formats import FORMAT_CHECKS
from trtkit.plan.preflight.limits import LIMIT_CHECKS
from trtkit.plan.preflight.lora import LORA_CHECKS
from trtkit.plan.preflight.ranks import RANK_CHECKS
from trtkit.plan.preflight.source import SOURCE_CHECKS
from trtkit.plan.preflight.speculation import SPECULATION_CHECKS

GPU_CHECKS: tuple[Check, ...] = (
    *SOURCE_CHECKS,
    *FORMAT_CHECKS,
    *RANK_CHECKS,
    *LIMIT_CHECKS,
    *FLAG_CHECKS,
    *SPECULATION_CHECKS,
    *LORA_CHECKS,
    *EXPORTED_CHECKS,
)

RANKLESS_CHECKS: tuple[Check, ...] = (*SOURCE_CHECKS, *FORMAT_CHECKS, *FLAG_CHECKS)
"""Those that hold however the model is divided."""

__all__ = ["GPU_CHECKS", "RANKLESS_CHECKS"]
