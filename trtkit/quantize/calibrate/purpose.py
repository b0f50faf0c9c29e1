"""What a calibration is for, and what it may do; read by the command line before anything heavy is."""

from __future__ import annotations

import enum


class Purpose(str, enum.Enum):
    """What the file is for: ranges are in each; weights in INT4 are looked for only when asked."""

    RANGES = "ranges"
    INT4_AWQ = "int4-awq"
    INT4_GPTQ = "int4-gptq"
    W4A8_AWQ = "w4a8-awq"

    @property
    def is_int4(self) -> bool:
        """Whether weights are looked for."""
        return self is not Purpose.RANGES


class Unreached(str, enum.Enum):
    """What becomes of experts that no token came to."""

    ABORT = "abort"
    BORROW = "borrow"
