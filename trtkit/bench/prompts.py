"""Chat prompts, rendered by the model's own template."""

from __future__ import annotations

import json
from pathlib import Path


def render_chat(tokenizer_folder: Path, message: str) -> str:
    """Return one user message as the model expects it; the message itself for a model without a template.

    The template comes from ``tokenizer_config.json`` and runs in a sandbox, as Hugging Face does.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    path = tokenizer_folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    template = config.get("chat_template")
    if not template:
        return message
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    tokens = {name: _text(config.get(name)) for name in ("bos_token", "eos_token")}
    messages = [{"role": "user", "content": message}]
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)


def _text(token: str | dict[str, str] | None) -> str:
    return token.get("content", "") if isinstance(token, dict) else token or ""
