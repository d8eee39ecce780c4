"""Parse MODELS: syntax, errors, and the engine configurations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig
from engine.backends.lora_adapters import parse_adapters
from handler.models.model_list import ModelEntry
from handler.settings.engine_configs import build_engine_config, build_engine_configs
from handler.settings.shared_settings import Settings, read_settings

ONE = {"path": "/models/qwen.rkllm"}
OTHER = {"path": "/models/tiny.rkllm", "name": "small"}


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower() in Settings.model_fields:
            monkeypatch.delenv(name)


def configs(monkeypatch: pytest.MonkeyPatch, *models: dict[str, Any], **more: str) -> Any:
    for name, value in {"MODELS": json.dumps(models), **more}.items():
        monkeypatch.setenv(name, value)
    return build_engine_configs(read_settings(Settings))


def options(config: EngineConfig, name: str) -> list[object]:
    return [getattr(backend.options, name) for backend in (config.backend, *config.copies)]


def test_without_a_list_there_is_the_one_model() -> None:
    settings = Settings(model_path=Path("/models/a.rkllm"), model_name="mine")
    assert build_engine_configs(settings) == {"mine": build_engine_config(settings)}
    assert settings.served_models == ("mine",)


def test_each_model_has_its_engine_and_the_first_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = configs(monkeypatch, ONE, OTHER, MAX_QUEUE="3")
    assert list(entries) == ["qwen", "small"]
    assert options(entries["small"], "model_path") == ["/models/tiny.rkllm"]
    assert options(entries["small"], "model_name") == ["small"]
    assert {config.backend.backend for config in entries.values()} == {"rkllm"}
    assert [config.max_queue for config in entries.values()] == [3, 3]
    settings = read_settings(Settings)
    assert (settings.served_model, settings.served_models) == ("qwen", ("qwen", "small"))


def test_every_copy_has_a_memory_domain_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = configs(
        monkeypatch, ONE | {"copies": 2}, OTHER, {"path": "c.rkllm"}, RKLLM_BASE_DOMAIN_ID="4"
    )
    taken = [options(config, "base_domain_id") for config in entries.values()]
    assert taken == [[4, 5], [6], [7]]


def test_a_model_may_choose_its_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = configs(
        monkeypatch, ONE, OTHER | {"base_domain_id": 8, "copies": 2}, {"path": "c.rkllm"}
    )
    taken = [options(config, "base_domain_id") for config in entries.values()]
    assert taken == [[0], [8, 9], [10]]


def test_model_without_a_field_uses_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"context_length": 512, "tokenizer": "/t", "mmproj": "/v.rknn"}
    entries = configs(monkeypatch, ONE | own, OTHER, CONTEXT_LENGTH="1024", RKLLM_ABI="1.3")
    assert [options(each, "context_length") for each in entries.values()] == [[512], [1024]]
    assert [options(each, "tokenizer") for each in entries.values()] == [["/t"], [None]]
    assert [options(each, "vision") for each in entries.values()] == [["/v.rknn"], [None]]
    assert [options(each, "abi") for each in entries.values()] == [["1.3"], ["1.3"]]


def test_each_npu_model_may_have_its_own_library(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"lib_path": "/opt/1.2.3/librkllmrt.so", "copies": 2}
    entries = configs(monkeypatch, ONE | own, OTHER, RKLLM_LIB_PATH="/opt/1.3.1")
    assert [options(each, "lib_path") for each in entries.values()] == [
        [own["lib_path"]] * 2,
        ["/opt/1.3.1"],
    ]


def test_library_of_a_model_for_another_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        configs(monkeypatch, {"path": "a.gguf", "lib_path": "/opt/lib"})
    assert "MODELS: lib_path is for .rkllm models, and a.gguf is none" in capsys.readouterr().err


def test_each_model_has_its_own_projector(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = configs(monkeypatch, {"path": "a.gguf", "mmproj": "/p.gguf"}, {"path": "b.gguf"})
    assert [options(each, "mmproj_path") for each in entries.values()] == [["/p.gguf"], [None]]


def test_each_model_has_its_own_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = configs(
        monkeypatch,
        {"path": "a.gguf", "lora": {"french": "/f.gguf", "legal": "/l.gguf:0.5"}},
        {"path": "b.gguf", "copies": 2},
        {"path": "c.rkllm", "lora": {"german": "/g.rkllm"}},
    )
    assert [options(each, "adapters") for each in entries.values()] == [
        [parse_adapters("french=/f.gguf,legal=/l.gguf:0.5")],
        [(), ()],
        [parse_adapters("german=/g.rkllm")],
    ]
    settings = read_settings(Settings)
    assert settings.served_models == ("a", "b", "c", "french", "legal", "german")
    assert settings.adapters_by_model == {"a": ("french", "legal"), "b": (), "c": ("german",)}


def test_models_of_different_engines_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = configs(monkeypatch, ONE, {"path": "a.gguf"}, {"path": "b.json", "copies": 3})
    assert [each.backend.backend for each in entries.values()] == ["rkllm", "llamacpp", "scripted"]
    assert [len(each.copies) for each in entries.values()] == [0, 0, 2]


@pytest.mark.parametrize(
    ("written", "more", "expected"),
    [
        ("qwen.rkllm", {}, "MODELS: Value error, must be a JSON list: "),
        ("{}", {}, "MODELS: Value error, must be a JSON list of one or more like "),
        ("[]", {}, "MODELS: Value error, must be a JSON list of one or more like "),
        ('[{"name": "a"}]', {}, "MODELS[0].path: Field required"),
        ('[{"path": "a", "copy": 2}]', {}, "MODELS[0].copy: Extra inputs are not permitted"),
        ('[{"path": "a", "copies": 0}]', {}, "MODELS[0].copies: Input should be greater than or"),
        ('[{"path": "a", "name": ""}]', {}, "MODELS[0].name: String should have at least 1"),
        ('[{"path": "a"}]', {"MODEL_PATH": "b"}, "MODELS and MODEL_PATH cannot both be set\n"),
        ('[{"path": "a"}]', {"RKLLM_LORA": "b=c"}, "MODELS and RKLLM_LORA cannot both be set\n"),
        ('[{"path": "a"}]', {"LORA_ADAPTERS": "b=c"}, "MODELS and LORA_ADAPTERS cannot both be"),
        ('[{"path": "a", "lora": {"b": ""}}]', {}, "MODELS[0].lora: Value error, an adapter is"),
        ('[{"path": "a", "lora": {"b": "c,d=e"}}]', {}, "MODELS[0].lora: Value error, an adapter'"),
        (
            '[{"path": "a.gguf"}, {"path": "b.gguf", "lora": {"a": "c"}}]',
            {},
            "MODELS: lora has an adapter named a, and another adapter or a model has that name\n",
        ),
        (
            '[{"path": "a", "lora": {"c": "d"}}, {"path": "b", "lora": {"c": "d"}}]',
            {},
            "MODELS: lora has an adapter named c, and another adapter or a model has that name\n",
        ),
        ('[{"path": "a"}]', {"MODEL_NAME": "b"}, "MODELS and MODEL_NAME cannot both be set\n"),
        (
            '[{"path": "a.gguf"}, {"path": "b/a.json"}]',
            {},
            "MODELS has two models named a: give one another name, or set its copies\n",
        ),
        (
            '[{"path": "a"}, {"path": "b"}]',
            {"ENGINE_ISOLATION": "thread"},
            "MODELS must be one model with one copy where ENGINE_ISOLATION is thread\n",
        ),
        (
            '[{"path": "a.rkllm", "copies": 2}]',
            {"RKLLM_BASE_DOMAIN_ID": "63"},
            "MODELS: the copies of a would have base_domain_id 63 to 64, and 63 is the last\n",
        ),
        (
            '[{"path": "a.rkllm"}, {"path": "b.rkllm", "base_domain_id": 0}]',
            {},
            "MODELS: a and b would both have base_domain_id 0\n",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    written: str,
    more: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"MODELS": written, **more}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as leaving:
        read_settings(Settings)
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(expected)
    assert error.count("\n") == 1


@pytest.mark.parametrize("written", [",", " , "])
def test_model_name_without_a_name_is_one_line(
    written: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODEL_NAME", written)
    with pytest.raises(SystemExit):
        read_settings(Settings)
    error = capsys.readouterr().err
    assert error.startswith("MODEL_NAME: Value error, must be a name, or several separated by ")


def test_first_name_is_served_and_others_are_aliases() -> None:
    settings = Settings(model_path=Path("x.gguf"), model_name="a, b ,a,c")
    assert settings.served_model == "a"
    assert settings.served_models == ("a", "b", "c")
    assert settings.aliases == {"a": ("b", "c")}
    assert build_engine_config(settings).backend.options.model_name == "a"


def test_two_models_may_not_share_an_alias(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        configs(monkeypatch, ONE | {"name": "a,b"}, OTHER | {"name": "b"})
    assert capsys.readouterr().err.startswith("MODELS has two models named b: ")


def test_names_of_folders_and_repositories_are_compared_after_resolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MODELS", '[{"path": "one/model"}, {"path": "hf:org/model"}]')
    assert len(read_settings(Settings).models) == 2


def test_name_of_a_split_model_is_without_the_part() -> None:
    assert Settings(model_path=Path("q-00001-of-00003.gguf")).served_model == "q"


def test_pulled_model_leaves_the_first_one_as_it_was() -> None:
    settings = Settings(
        model_path=Path("a.gguf"),
        model_name="first,alias",
        draft_model_path=Path("draft.gguf"),
        lora_adapters=parse_adapters("french=f.gguf"),
    )
    grown = settings.with_model(ModelEntry(path=Path("b.gguf"), name="second"))
    first, second = grown.model_list
    assert first == settings.model_list[0]
    assert (second.names, second.draft, second.adapters) == (("second",), None, ())
    assert grown.served_models == ("first", "alias", "second", "french")
    assert len(settings.model_list) == 1
