"""Kinds of single values that parts of the contract have in common."""

from typing import Annotated

from pydantic import Field

Milliseconds = Annotated[float, Field(gt=0, le=86_400_000, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
Pattern = Annotated[str, Field(min_length=1)]
NAME_HINT = "use 1 to 63 of a-z, 0-9, dot, dash and underscore; the first and the last a letter or a digit"
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
