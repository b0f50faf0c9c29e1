"""The contract's JSON Schema, for editors and for other tools."""

from __future__ import annotations

import json
from pathlib import Path

from trtkit.contract.models import Contract

SCHEMA_FILE = Path(__file__).with_name("contract.schema.json")
"""The committed schema; a test compares it with :func:`contract_schema`."""


def contract_schema() -> str:
    """Return the JSON Schema (draft 2020-12, within what draft-7 editors read) as indented text."""
    schema = Contract.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "trtkit contract"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
