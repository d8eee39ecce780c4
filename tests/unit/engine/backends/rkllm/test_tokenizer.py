"""Rendering chats with the model's own files, and damaged files."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.backends.rkllm.tokenizer_files import find_tokenizer_folder
from engine.errors import ModelLoadFailed, RequestRejected
from engine.request import Chat, Message
from tests.fake_rkllm.tokenizer import CHATML, id_of, text_of, tokenizer, write_tokenizer


def chat(*turns: tuple[str, str], **template_kwargs: Any) -> Chat:
    return Chat(tuple(Message(role, content) for role, content in turns), template_kwargs)


HI = chat(("user", "hi"))


@pytest.fixture
def rendered(tmp_path: Path) -> Callable[..., str]:
    """Return a function that renders a chat; keywords are fields of tokenizer_config.json."""

    def render(template: Any, conversation: Chat = HI, **config: Any) -> str:
        return ChatTokenizer(write_tokenizer(tmp_path, template, **config)).render(conversation)

    return render


@pytest.mark.parametrize("name", ["reasoning_content", "thinking"])
def test_template_gets_the_reasoning_of_earlier_turns(
    rendered: Callable[..., str], name: str
) -> None:
    # As the templates of Qwen3 and of gpt-oss write the reasoning of a tool loop.
    template = (
        "{% for m in messages %}{{ m.role }}<{{ m." + name + " }}>{{ m.content }};{% endfor %}"
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = (
        Message("user", "hi"),
        Message("assistant", "", tool_calls=(call,), reasoning="look it up"),
        Message("tool", "3", tool_call_id="c"),
    )
    assert rendered(template, Chat(turns)) == "user<>hi;assistant<look it up>;tool<>3;"


def test_gpt_oss_gets_no_reasoning_with_text_and_calls(rendered: Callable[..., str]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = Message("assistant", "so:", tool_calls=(call,), reasoning="look it up")
    assert rendered("{{ messages[1].thinking }}|", Chat((Message("user", "hi"), turn))) == "|"


# ---- the folder ----


def test_tokenizer_folder_next_to_the_model_is_used(tmp_path: Path) -> None:
    model = tmp_path / "tiny.rkllm"
    assert find_tokenizer_folder(model, None) is None
    write_tokenizer(tmp_path)
    assert find_tokenizer_folder(model, None) == tmp_path
    # Several models may share a folder.
    write_tokenizer(tmp_path / "tiny")
    assert find_tokenizer_folder(model, None) == tmp_path / "tiny"


def test_configured_tokenizer_folder_is_used(tmp_path: Path) -> None:
    model = tmp_path / "tiny.rkllm"
    write_tokenizer(tmp_path)
    configured = write_tokenizer(tmp_path / "given")
    assert find_tokenizer_folder(model, str(configured)) == configured
    assert find_tokenizer_folder(model, str(configured / "tokenizer.json")) == configured
    with pytest.raises(ModelLoadFailed, match=r"RKLLM_TOKENIZER: there is no .*none/tokenizer\.j"):
        find_tokenizer_folder(model, str(tmp_path / "none"))


# ---- tokens ----


def test_special_tokens_are_one_token_each(tmp_path: Path) -> None:
    # R38
    made = ChatTokenizer(write_tokenizer(tmp_path))
    ids = made.encode("<|im_start|>user\nHé 😀<|im_end|>", special=False)
    assert ids[0] == id_of("<|im_start|>")
    assert ids[-1] == id_of("<|im_end|>")
    assert text_of(ids) == "<|im_start|>user\nHé 😀<|im_end|>"


def test_beginning_of_sequence_token_is_not_doubled(tmp_path: Path) -> None:
    made = ChatTokenizer(write_tokenizer(tmp_path, "{{ bos_token }}" + CHATML))
    ids = made.encode(made.render(HI), special=False)
    assert ids.count(id_of("<s>")) == 1
    assert made.encode("hi", special=True)[0] == id_of("<s>")
    assert made.encode("hi", special=True).count(id_of("<s>")) == 1


def test_known_tokens(tmp_path: Path) -> None:
    made = ChatTokenizer(write_tokenizer(tmp_path))
    assert [made.has_token(number) for number in (0, 259, 260, -1, 2**31, 2**32, 2**70)] == [
        True,
        True,
        *[False] * 5,
    ]


def test_training_settings_do_not_truncate(tmp_path: Path) -> None:
    trained = tokenizer()
    trained.enable_truncation(4)
    trained.enable_padding(length=50)
    write_tokenizer(tmp_path)
    trained.save(str(tmp_path / "tokenizer.json"))
    made = ChatTokenizer(tmp_path)
    assert text_of(made.encode("a longer prompt", special=True)) == "<s>a longer prompt"


# ---- templates ----


def test_template_from_the_config(rendered: Callable[..., str]) -> None:
    assert rendered(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_template_file_has_priority(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "from the config")
    (tmp_path / "chat_template.jinja").write_text("from the file: {{ messages[0].content }}")
    assert ChatTokenizer(tmp_path).render(HI) == "from the file: hi"


def test_template_without_any_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert not ChatTokenizer(tmp_path).has_template
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}!")
    assert ChatTokenizer(tmp_path).render(HI) == "!"


def test_default_one_of_several_templates(rendered: Callable[..., str]) -> None:
    several = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
        "nonsense",
    ]
    assert rendered(several) == "plain"


@pytest.mark.parametrize("none", [None, "", [], [{"name": "tool_use", "template": "x"}]])
def test_no_template(tmp_path: Path, none: Any) -> None:
    assert not ChatTokenizer(write_tokenizer(tmp_path, none)).has_template


def test_template_receives_messages_and_special_tokens(rendered: Callable[..., str]) -> None:
    conversation = Chat((Message("user", "<a> & 'b'", name="Ann"), Message("tool", "{}")))
    template = (
        "{{ bos_token }}{{ eos_token }}{{ unk_token }}|"
        "{% for m in messages %}{{ m.role }},{{ m['content'] }},{{ m.name }};{% endfor %}|"
        "{{ add_generation_prompt }}"
    )
    # Nothing is escaped, and special tokens are strings or objects.
    assert rendered(template, conversation, unk_token={"content": "<unk>", "lstrip": False}) == (
        "<s></s><unk>|user,<a> & 'b',Ann;tool,{},;|True"
    )


def test_tools_and_documents_are_defined_as_none(rendered: Callable[..., str]) -> None:
    # As transformers defines them.
    assert rendered("{{ tools is not none }} {{ documents is defined }}") == "False True"


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({}, "thinks"),
        ({"enable_thinking": True}, "thinks"),
        ({"enable_thinking": False}, "does not"),
        ({"tools": ["t"]}, "thinks['t']"),
    ],
)
def test_template_kwargs(rendered: Callable[..., str], kwargs: Any, text: str) -> None:
    # R39
    template = (
        "{% if enable_thinking is defined and enable_thinking is false %}does not"
        "{% else %}thinks{% endif %}{{ tools or '' }}"
    )
    assert rendered(template, chat(("user", "hi"), **kwargs)) == text


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "self"])
def test_template_kwargs_cannot_override_messages(rendered: Callable[..., str], name: str) -> None:
    with pytest.raises(RequestRejected, match="messages: "):
        rendered(CHATML, chat(("user", "hi"), **{name: []}))


def test_template_extensions_are_available(rendered: Callable[..., str]) -> None:
    # Whitespace around blocks, loop controls, JSON without HTML escapes, the date.
    assert rendered("  {% if true %}\na\n  {% endif %}\nb") == "a\nb"
    loop = "{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert rendered(loop) == "012"
    assert rendered("{{ messages[0] | tojson }}") == '{"role": "user", "content": "hi"}'
    quotes = chat(("user", "<é>'"))
    assert rendered("{{ messages[0].content | tojson }}", quotes) == '"<é>\'"'
    assert rendered("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    year = str(datetime.now().astimezone().year)
    assert rendered("{{ strftime_now('%Y') }}") == year
    assert rendered("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == "abuserc"


def test_template_error_contains_its_message(rendered: Callable[..., str]) -> None:
    with pytest.raises(RequestRejected, match=r"cannot take them: roles must alternate$"):
        rendered("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__ }}{{ strftime_now.__globals__.x }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ self._TemplateReference__context.environment.x }}",
        "{% set x = messages.append(1) %}",
        "{% set x = messages[0].update({'role': 'x'}) %}",
    ],
)
def test_template_is_sandboxed(rendered: Callable[..., str], template: str) -> None:
    with pytest.raises(RequestRejected):
        rendered(template)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 // 0 }}",
        "{{ messages[5].content }}",
        "{{ messages[0].content.no.such.thing }}",
        "{{ messages + 5 }}",
        "{{ none() }}",
        "{{ messages | sum }}",
    ],
)
def test_template_error_rejects_the_request(rendered: Callable[..., str], template: str) -> None:
    with pytest.raises(RequestRejected, match="messages: the model's chat template cannot take"):
        rendered(template)


# ---- damage ----


def damaged(folder: Path) -> str:
    with pytest.raises(ModelLoadFailed) as caught:
        ChatTokenizer(folder)
    message = caught.value.message
    assert message.startswith("RKLLM_TOKENIZER: ")
    assert "\n" not in message.removesuffix("\n")
    return message


def spoilt(**fields: Any) -> str:
    return json.dumps({**json.loads(tokenizer().to_str()), **fields})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        spoilt(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}),
        spoilt(pre_tokenizer={"type": "None of ours"}),
        # The damage shows only in use; then the library panics.
        spoilt(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        ),
    ],
)
def test_damaged_tokenizer(tmp_path: Path, text: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    assert f"{tmp_path / 'tokenizer.json'} is no tokenizer: " in damaged(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_file_that_is_not_text(tmp_path: Path, name: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    assert f"{tmp_path / name} is not text: " in damaged(tmp_path)


def test_tokenizer_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    assert "tokenizer.json cannot be read: Is a directory" in damaged(tmp_path)
    (tmp_path / "tokenizer.json").rmdir()
    assert "there is no " in damaged(tmp_path)


@pytest.mark.parametrize(("text", "why"), [("{", "is not JSON: "), ("[1]", "must hold an object")])
def test_damaged_config(tmp_path: Path, text: str, why: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text)
    assert f"{tmp_path / 'tokenizer_config.json'} {why}" in damaged(tmp_path)


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ x", "{% unknown %}", "{{ x | nofilter }}", "(" * 5000, 5, {"a": 1}]
)
def test_damaged_template(tmp_path: Path, template: Any) -> None:
    write_tokenizer(tmp_path, "{{" + template if template == "(" * 5000 else template)
    assert "the chat template in" in damaged(tmp_path)


def test_damaged_template_in_its_own_file_names_that(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    assert f"in {tmp_path / 'chat_template.jinja'} is damaged: " in damaged(tmp_path)


@pytest.mark.parametrize("missing", ["tokenizers", "jinja2"])
def test_error_for_a_missing_package_names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    write_tokenizer(tmp_path)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "`pip install jinja2 tokenizers`" in damaged(tmp_path)
