"""Chat prompts, rendered by the model's own template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from trtkit.errors import InputError

_TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"


def render_chat(tokenizer_folder: Path, message: str) -> str:
    """Return one user message as the model expects it; the message itself for a model without a template.

    The template is ``chat_template.jinja``, else ``chat_template`` of ``tokenizer_config.json`` (its ``default`` where
    there are several). It runs in a sandbox, with what transformers offers to templates.

    Raises:
        InputError: The template cannot be read or rendered.
    """
    config = _read_config(tokenizer_folder)
    template = _template(tokenizer_folder, config)
    if not template:
        return message
    import jinja2

    tokens = {name: _text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    messages = [{"role": "user", "content": message}]
    try:
        compiled = _environment().from_string(template)
        return str(compiled.render(messages=messages, add_generation_prompt=True, **tokens))
    except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
        hint = "mend the template, or remove it to send prompts as they are"
        raise InputError(
            f"the chat template cannot be rendered: {error}", path=tokenizer_folder, hint=hint
        ) from error


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / _CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"not JSON: {error}", path=path, hint="download the file again") from error
    if not isinstance(config, dict):
        raise InputError("not a JSON object", path=path, hint="download the file again")
    return config


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / _TEMPLATE_FILE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default") or ""
    return str(template)


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's part for training; here it means nothing."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        # Unlike jinja2's own filter, it does not escape for HTML.
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _text(token: str | dict[str, str] | None) -> str:
    return token.get("content", "") if isinstance(token, dict) else token or ""
