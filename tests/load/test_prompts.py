import json

import pytest

from trtkit.bench.prompts import render_chat
from trtkit.errors import InputError


@pytest.fixture
def render(tmp_path):
    def render(template, **config):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
        return render_chat(tmp_path, "hi <b>")

    return render


def test_a_template_is_rendered_with_the_models_tokens(render):
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ eos_token }}"
    )
    assert render(template, bos_token={"content": "<s>"}, eos_token="</s>") == "<s>[user] hi <b></s>"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "hi <b>"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi <b>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi <b>"}]'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ([{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}], "yes"),
    ],
)
def test_what_transformers_offers_to_templates_is_there(render, template, text):
    assert render(template) == text


def test_a_file_of_its_own_goes_first(tmp_path, render):
    (tmp_path / "chat_template.jinja").write_text("own: {{ messages[0].content }}")
    assert render("not this") == "own: hi <b>"


def test_without_a_template_the_message_is_the_prompt(tmp_path, render):
    assert render_chat(tmp_path, "hi") == "hi"
    assert render("") == "hi <b>"


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('only tools') }}", "{% if %}", "{{ messages[7].content }}"]
)
def test_a_template_that_fails_is_named(render, template):
    with pytest.raises(InputError, match="chat template cannot be rendered"):
        render(template)


@pytest.mark.parametrize("content", ["[]", "<html>"])
def test_a_damaged_tokenizer_config_is_named(tmp_path, content):
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer_config\.json: not"):
        render_chat(tmp_path, "hi")
