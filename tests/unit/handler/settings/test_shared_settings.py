"""Read settings from the environment: names, defaults, and one line per invalid value."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from engine import Timeouts
from engine.backends.lora_adapters import LoraAdapter
from engine.backends.options import LlamaCppOptions, RkllmOptions
from handler.models.default_model import DEFAULT_MODEL_NAME, DEFAULT_MODEL_PATH
from handler.models.model_list import ModelEntry
from handler.settings.engine_configs import build_engine_config, build_engine_configs
from handler.settings.shared_settings import DEFAULT_SLOTS, Settings, read_settings
from handler.settings.worker_settings import WorkerSettings

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower() in WorkerSettings.model_fields:
            monkeypatch.delenv(name)


def read(monkeypatch: pytest.MonkeyPatch, **environment: str) -> WorkerSettings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return read_settings(WorkerSettings)


def test_every_field_is_described() -> None:
    for name, field in WorkerSettings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


# One value of each variable that is not the default, and the value that is read.
VALUES: dict[str, tuple[str, object]] = {
    "ENGINE": ("scripted", "scripted"),
    "MODEL_PATH": ("some/model.gguf", Path("some/model.gguf")),
    "DRAFT_MODEL_PATH": ("some/draft.gguf", Path("some/draft.gguf")),
    "MMPROJ_PATH": ("some/mmproj.gguf", Path("some/mmproj.gguf")),
    "LORA_ADAPTERS": (
        "one=some/one.gguf:0.5",
        (LoraAdapter("one", Path("some/one.gguf"), 0.5),),
    ),
    "MODEL_NAME": ("tiny", "tiny"),
    "MODELS": ('[{"path": "a.rkllm", "copies": 2}]', (ModelEntry(path=Path("a.rkllm"), copies=2),)),
    "MODEL_MEMORY_MB": ("6000", 6000),
    "PRELOAD_MODELS": ("small,large", "small,large"),
    "KEEP_ALIVE": ("5m", "5m"),
    "CONTEXT_LENGTH": ("2048", 2048),
    "MAX_CONCURRENCY": ("7", 7),
    "MAX_QUEUE": ("0", 0),
    "UPSTREAM_URL": ("http://box:8000/v1,http://box2", "http://box:8000/v1,http://box2"),
    "UPSTREAM_KEY": ("secret", SecretStr("secret")),
    "RKLLM_LIB_PATH": ("some/librkllmrt.so", Path("some/librkllmrt.so")),
    "RKLLM_ABI": ("1.3", "1.3"),
    "RKLLM_SAMPLING": ("reload", "reload"),
    "RKLLM_TOKENIZER": ("some/folder", Path("some/folder")),
    "RKLLM_CPU_MASK": ("240", 240),
    "RKLLM_BASE_DOMAIN_ID": ("1", 1),
    "RKLLM_MODE": ("logits", "logits"),
    "RKLLM_POOLING": ("mean", "mean"),
    "RKLLM_LORA": ("one=some/one.rkllm", (LoraAdapter("one", Path("some/one.rkllm")),)),
    "RKLLM_KV_REUSE": ("off", False),
    "RKLLM_PROFILE": ("some/profile.json", Path("some/profile.json")),
    "RKLLM_N_BATCH": ("4", 4),
    "RKLLM_RECORD": ("some/board.jsonl", Path("some/board.jsonl")),
    "RKLLM_RECORD_TEXT": ("on", True),
    "RKLLM_VISION": ("some/vision.rknn", Path("some/vision.rknn")),
    "RKLLM_VISION_SIZE": ("448", 448),
    "RKLLM_VISION_CORES": ("0_1", "0_1"),
    "RKLLM_VISION_TOKENS": ("<img>,</img>,<IMG>", "<img>,</img>,<IMG>"),
    "RKLLM_DEVICE_LOCK": ("off", False),
    "THREADS": ("3", 3),
    "APPLY_CHAT_TEMPLATE": ("off", "off"),
    "TOOL_PARSER": ("hermes", "hermes"),
    "STOP_IN_REASONING": ("on", True),
    "DEFAULT_MAX_TOKENS": ("99", 99),
    "REQUEST_TIMEOUT_S": ("1.5", 1.5),
    "PREFILL_TIMEOUT_S": ("2.5", 2.5),
    "STALL_TIMEOUT_S": ("3.5", 3.5),
    "ABORT_GRACE_S": ("4.5", 4.5),
    "LOAD_TIMEOUT_S": ("5.5", 5.5),
    "ENGINE_ISOLATION": ("thread", "thread"),
    "ENGINE_MEMORY_MB": ("512", 512),
    "ENGINE_DRAIN_S": ("6.5", 6.5),
    "ENGINE_DOWN_EXIT_S": ("7.5", 7.5),
    "PRIVATE_TARGETS": ("off", "off"),
    "DETERMINISTIC": ("on", True),
    "ENABLE_VALIDATION": ("off", False),
    "VALIDATION_RULES": ("some/rules.yaml", Path("some/rules.yaml")),
    "VALIDATION_SCHEMA": ("some/schema.json", Path("some/schema.json")),
    "VALIDATION_LANGUAGE": ("de", "de"),
    "REDACT_PII": ("card,email", "card,email"),
    "BLOCKED_INTENTS": ("general", "general"),
    "BLOCKED_TERMS": ("one word, another", "one word, another"),
    "REGENERATE": ("1", True),
    "LOG_LEVEL": ("debug", "DEBUG"),
    "LOG_FORMAT": ("json", "json"),
    "LOG_TEXTS": ("on", True),
    "BUCKET_ENDPOINT_URL": ("https://s3.example.com", "https://s3.example.com"),
    "BUCKET_ACCESS_KEY_ID": ("id", "id"),
    "BUCKET_SECRET_ACCESS_KEY": ("secret", SecretStr("secret")),
    "BUCKET_NAME": ("results", "results"),
    "RESULT_MAX_MB": ("0.5", 0.5),
    "STREAM_MODE": ("generator", "generator"),
    "STREAM_INTERVAL_MS": ("12.5", 12.5),
}


def test_every_variable_is_tested() -> None:
    assert {name.lower() for name in VALUES} == set(WorkerSettings.model_fields)


@pytest.mark.parametrize("name", VALUES)
def test_variable_is_read_by_its_plain_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = VALUES[name]
    field = name.lower()
    assert getattr(read_settings(WorkerSettings), field) != value
    assert getattr(read(monkeypatch, **{name: text}), field) == value


@pytest.mark.parametrize("name", VALUES)
def test_empty_counts_as_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # RunPod's console sends empty values for fields left blank.
    assert read(monkeypatch, **{name: ""}) == WorkerSettings.model_construct()


def test_other_variables_cause_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, RUNPOD_POD_ID="x", MODEL="y") == WorkerSettings.model_construct()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENGINE", "gpt"),
        ("CONTEXT_LENGTH", "-1"),
        ("CONTEXT_LENGTH", "4k"),
        ("MAX_CONCURRENCY", "257"),
        ("MAX_QUEUE", "-1"),
        ("THREADS", "two"),
        ("DEFAULT_MAX_TOKENS", "0"),
        ("APPLY_CHAT_TEMPLATE", "yes"),
        ("TOOL_PARSER", "gpt"),
        ("REQUEST_TIMEOUT_S", "0"),
        ("STALL_TIMEOUT_S", "nan"),
        ("STALL_TIMEOUT_S", "0.4"),
        ("ENGINE_ISOLATION", "vm"),
        ("DETERMINISTIC", "maybe"),
        ("ENABLE_VALIDATION", "2"),
        ("REGENERATE", "twice"),
        ("LOG_LEVEL", "LOUD"),
        ("LOG_FORMAT", "xml"),
        ("RESULT_MAX_MB", "-1"),
        ("RESULT_MAX_MB", "21"),
        ("STREAM_MODE", "both"),
        ("STREAM_INTERVAL_MS", "-1"),
        ("STREAM_INTERVAL_MS", "inf"),
        ("STREAM_INTERVAL_MS", "a\nb"),
    ],
)
def test_bad_value_ends_with_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        read(monkeypatch, **{name: value})
    assert leaving.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{name}: Input should be ")
    assert err.endswith(f", got {value!r}\n")
    assert err.count("\n") == 1


def test_each_bad_value_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, THREADS="x", ENGINE="y")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ENGINE", "THREADS"]


def test_worker_with_an_invalid_value_exits_immediately() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "handler", "--test_input", '{"input":{"prompt":"x"}}'],
        env={**os.environ, "MAX_QUEUE": "lots", "ENGINE": "scripted"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("MAX_QUEUE: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("environment", "backend", "served"),
    [
        ({}, "llamacpp", DEFAULT_MODEL_NAME),
        ({"MODEL_PATH": "a/tiny.gguf"}, "llamacpp", "tiny"),
        ({"MODEL_PATH": "a/tiny.json"}, "scripted", "tiny"),
        ({"MODEL_PATH": "a/tiny.json", "ENGINE": "llamacpp"}, "llamacpp", "tiny"),
        ({"MODEL_PATH": "a/tiny.txt", "ENGINE": "scripted"}, "scripted", "tiny"),
        ({"ENGINE": "scripted"}, "scripted", "scripted"),
        ({"ENGINE": "scripted", "MODEL_NAME": "mine"}, "scripted", "mine"),
        ({"MODEL_PATH": "a/tiny.gguf", "MODEL_NAME": "mine"}, "llamacpp", "mine"),
    ],
)
def test_backend_and_name_go_by_the_model(
    environment: dict[str, str], backend: str, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read(monkeypatch, **environment)
    assert settings.backend == backend
    assert settings.served_model == served
    config = build_engine_config(settings).backend
    assert config.backend == backend
    assert config.options.model_name == served
    path = environment.get("MODEL_PATH")
    default = {"llamacpp": str(DEFAULT_MODEL_PATH), "rkllm": ""}.get(backend)
    assert config.options.model_path == (path or default)


def test_engine_config_of_defaults() -> None:
    config = build_engine_config(Settings())
    assert config.isolation == "process"
    assert isinstance(config.backend.options, LlamaCppOptions)
    assert config.slots == DEFAULT_SLOTS == config.backend.options.slots
    assert config.max_queue == 256
    assert config.timeouts == Timeouts()


def test_engine_config_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read(
        monkeypatch,
        **{
            name: text
            for name, (text, _) in VALUES.items()
            if name
            not in {
                *("ENGINE", "DETERMINISTIC", "KEEP_ALIVE", "MODELS", "RKLLM_N_BATCH"),
                "RKLLM_VISION",
            }
        },
    )
    config = build_engine_config(settings)
    assert config.slots == 7
    assert config.isolation == "thread"
    assert config.max_queue == 0
    assert config.timeouts == Timeouts(
        prefill_timeout_s=2.5,
        stall_timeout_s=3.5,
        abort_grace_s=4.5,
        request_timeout_s=1.5,
        load_timeout_s=5.5,
        neighbour_grace_s=6.5,
        down_limit_s=7.5,
    )
    assert config.backend.options == LlamaCppOptions(
        model_name="tiny",
        model_path="some/model.gguf",
        context_length=2048,
        slots=7,
        threads=3,
        deterministic=False,
        draft_path="some/draft.gguf",
        mmproj_path="some/mmproj.gguf",
        adapters=(LoraAdapter("one", Path("some/one.gguf"), 0.5),),
    )


def test_deterministic_reuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, reuses in (("off", True), ("on", False)):
        model = {"MODEL_PATH": "some/model.rkllm", "DETERMINISTIC": setting}
        config = build_engine_config(read(monkeypatch, **model))
        assert isinstance(config.backend.options, RkllmOptions)
        assert config.backend.options.kv_reuse is reuses


def test_rkllm_n_batch_sets_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, slots in (("off", 4), ("on", 1)):
        model = {"MODEL_PATH": "some/model.rkllm", "RKLLM_N_BATCH": "4", "MAX_CONCURRENCY": "9"}
        config = build_engine_config(read(monkeypatch, **model, DETERMINISTIC=setting))
        assert isinstance(config.backend.options, RkllmOptions)
        assert (config.slots, config.backend.options.n_batch) == (slots, slots)


def test_logits_mode_excludes_rkllm_n_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, RKLLM_N_BATCH="2", RKLLM_MODE="logits")
    assert "RKLLM_N_BATCH must be 1 if RKLLM_MODE is" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("RKLLM_MODE", "logits"), ("RKLLM_N_BATCH", "2")])
def test_settings_that_exclude_rkllm_vision_are_refused(
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, **{"RKLLM_VISION": "vision.rknn", name: value})
    error = capsys.readouterr().err
    assert f"{name} must be" in error
    assert "if RKLLM_VISION is set" in error


@pytest.mark.parametrize("value", ["<img>", "a,b,", "a,b,c,d"])
def test_rkllm_vision_tokens_must_be_three_texts(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, RKLLM_VISION_TOKENS=value)
    assert "must have three texts separated by commas" in capsys.readouterr().err


def test_rkllm_vision_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {name: VALUES[name][0] for name in VALUES if name.startswith("RKLLM_VISION")}
    options = build_engine_config(read(monkeypatch, MODEL_PATH="a.rkllm", **values)).backend.options
    assert isinstance(options, RkllmOptions)
    assert options.vision == "some/vision.rknn"
    assert (options.vision_size, options.vision_tokens) == (448, "<img>,</img>,<IMG>")
    assert options.vision_cores == "0_1"


@pytest.mark.parametrize(("encoder", "expected"), [("vision.rknn", True), (None, False)])
def test_all_npu_models_lock_out_the_encoder_of_one(
    monkeypatch: pytest.MonkeyPatch, encoder: str | None, expected: bool
) -> None:
    models = [{"path": "a.rkllm"}, {"path": "b.rkllm", "mmproj": encoder}, {"path": "c.gguf"}]
    configs = build_engine_configs(read(monkeypatch, MODELS=json.dumps(models)))
    options = [config.backend.options for config in configs.values()]
    locks = [each.encoder_lock for each in options if isinstance(each, RkllmOptions)]
    assert locks == [expected, expected]


def test_deterministic_is_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_engine_config(read(monkeypatch, DETERMINISTIC="on", MAX_CONCURRENCY="8"))
    assert config.slots == 1
    assert isinstance(config.backend.options, LlamaCppOptions)
    assert config.backend.options.deterministic is True


@pytest.mark.parametrize("value", ["soon", "5 m"])
def test_keep_alive_must_be_a_duration(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, KEEP_ALIVE=value)
    assert "KEEP_ALIVE" in capsys.readouterr().err


def test_model_on_a_thread_cannot_be_unloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, KEEP_ALIVE="5m", ENGINE_ISOLATION="thread")
    assert "ENGINE_ISOLATION=process" in capsys.readouterr().err
    assert read(monkeypatch, KEEP_ALIVE="-1").keep_alive_s == math.inf
