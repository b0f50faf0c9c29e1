"""Which recipe writes a format."""

from __future__ import annotations

from trtkit.checkpoint.recipe import WEIGHT_ONLY, Plain, Recipe
from trtkit.errors import InputError
from trtkit.plan.types import QuantPlan


def recipe_for(plan: QuantPlan) -> Recipe:
    """Return the recipe of a plan's formats.

    Raises:
        InputError: This release does not write them.
    """
    if plan.quant_algo not in (None, WEIGHT_ONLY):
        message = f"this release does not write {plan.weights!r} weights ({plan.quant_algo})"
        raise InputError(message, hint="use none or int8-wo")
    if plan.kv_cache_quant_algo is not None:
        raise InputError(f"this release does not write a {plan.kv_cache!r} KV cache", hint="use auto")
    return Plain(plan)
