"""Find misspelled variables, and settings that no engine in use reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from batch.settings import BatchSettings
from emulator.settings.emulator_settings import EmulatorSettings
from handler.models.model_list import ModelEntry
from handler.settings.shared_settings import Settings
from handler.settings.unused_settings import (
    _REMOVED_SETTINGS,
    find_ineffective_settings,
    find_misspelled_settings,
    find_removed_settings,
)
from handler.settings.worker_settings import WorkerSettings

COMMANDS: tuple[type[Settings], ...] = (WorkerSettings, EmulatorSettings, BatchSettings)
ALL_NAMES = sorted({name.upper() for cls in COMMANDS for name in cls.model_fields})

# Of a desktop, Docker, GitHub's and GitLab's runners, RunPod's pods and what tools document.
ORDINARY = """
PATH HOME USER LOGNAME SHELL PWD OLDPWD LANG LANGUAGE LC_ALL TERM COLORTERM EDITOR PAGER MAIL HOST
HOSTNAME HOSTTYPE PORT DISPLAY WAYLAND_DISPLAY XDG_RUNTIME_DIR XDG_SESSION_ID
DBUS_SESSION_BUS_ADDRESS SSH_AUTH_SOCK
SSH_CONNECTION GPG_AGENT_INFO TMPDIR TEMP TMP TZ SHLVL LS_COLORS LESSOPEN HISTSIZE
MODEL_DIR MODEL_REPO_ID MODELS_DIR MODEL_REVISION MODEL_NAMES_FILE MODE TIMEOUT VERBOSE DEBUG
CI GITHUB_ACTIONS GITHUB_TOKEN GITHUB_WORKSPACE GITHUB_REF_NAME RUNNER_OS RUNNER_TEMP CI_JOB_ID
CI_COMMIT_SHA CI_PROJECT_NAME GITLAB_USER_LOGIN GITLAB_FEATURES BUILD_NUMBER JENKINS_URL NODE_NAME
RUNPOD_POD_ID RUNPOD_API_KEY RUNPOD_ENDPOINT_ID RUNPOD_WEBHOOK_GET_JOB RUNPOD_WEBHOOK_POST_OUTPUT
RUNPOD_WEBHOOK_PING RUNPOD_AI_API_KEY RUNPOD_GPU_COUNT RUNPOD_CPU_COUNT RUNPOD_PUBLIC_IP
RUNPOD_TCP_PORT_22 RUNPOD_LOG_LEVEL RUNPOD_PING_INTERVAL RUNPOD_DC_ID RUNPOD_MEM_GB PUBLIC_KEY
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION AWS_LAMBDA_FUNCTION_NAME AWS_ENDPOINT_URL
AWS_BUCKET_NAME AWS_SESSION_TOKEN OTEL_SERVICE_NAME OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
OTEL_EXPORTER_OTLP_HEADERS OTEL_LOG_LEVEL HF_HOME HF_TOKEN HF_HUB_OFFLINE HUGGING_FACE_HUB_TOKEN
TRANSFORMERS_CACHE PIP_INDEX_URL PIP_CERT UV_CACHE_DIR VIRTUAL_ENV PYTHONPATH PYTHONUNBUFFERED
PYTEST_CURRENT_TEST NVIDIA_VISIBLE_DEVICES CUDA_VERSION LD_LIBRARY_PATH OMP_NUM_THREADS NCCL_DEBUG
KUBERNETES_SERVICE_HOST KUBERNETES_PORT REDIS_URL POSTGRES_PASSWORD DATABASE_URL OPENAI_API_KEY
OPENAI_BASE_URL OPENAI_MODEL ANTHROPIC_API_KEY VLLM_PORT RKLLM_LOG_LEVEL
SERVICE_NAME WORKSPACE JAVA_HOME GOPATH NVM_DIR HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE
REQUESTS_CA_BUNDLE INVOCATION_ID JOURNAL_STREAM SYSTEMD_EXEC_PID NOTIFY_SOCKET MEMORY_PRESSURE_WATCH
OLLAMA_API_KEY OLLAMA_BASE_URL OLLAMA_CONTEXT_LENGTH OLLAMA_DEBUG OLLAMA_FLASH_ATTENTION
OLLAMA_GPU_OVERHEAD OLLAMA_HOME OLLAMA_HOST OLLAMA_INTEL_GPU OLLAMA_KEEP_ALIVE OLLAMA_KV_CACHE_TYPE
OLLAMA_LLM_LIBRARY OLLAMA_LOAD_TIMEOUT OLLAMA_MAX_LOADED_MODELS OLLAMA_MAX_QUEUE OLLAMA_MAX_VRAM
OLLAMA_MODELS OLLAMA_MULTIUSER_CACHE OLLAMA_NEW_ENGINE OLLAMA_NOHISTORY OLLAMA_NOPRUNE
OLLAMA_NUM_PARALLEL OLLAMA_ORIGINS OLLAMA_RUNNERS_DIR OLLAMA_SCHED_SPREAD OLLAMA_TMPDIR
""".split()


@pytest.mark.parametrize("command", COMMANDS)
def test_ordinary_variables_are_never_named(command: type[Settings]) -> None:
    settings = command.model_construct()
    assert [name for name in ORDINARY if [*find_misspelled_settings(settings, {name: "x"})]] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_of_every_command_are_never_named(command: type[Settings]) -> None:
    environment = dict.fromkeys(ALL_NAMES, "x") | {each.lower(): "x" for each in ALL_NAMES}
    assert [*find_misspelled_settings(command.model_construct(), environment)] == []


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("MODEL_PTAH", "MODEL_PATH"),
        ("MAX_CONCURENCY", "MAX_CONCURRENCY"),
        ("STREAM-MODE", "STREAM_MODE"),
        ("ModelPath", "MODEL_PATH"),
        ("WORKER_RKLLM_MODEL_PATH", "MODEL_PATH"),
        ("WORKER_RKLLM_LOG_LEVEL", "LOG_LEVEL"),
        ("RKLLM_MODEL_PATH", "MODEL_PATH"),
        ("RKLLM_LIBPATH", "RKLLM_LIB_PATH"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("REQUEST_TIMEOUT", "REQUEST_TIMEOUT_S"),
    ],
)
def test_misspelled_variable_is_named_with_a_suggestion(variable: str, suggestion: str) -> None:
    assert [*find_misspelled_settings(WorkerSettings.model_construct(), {variable: "x"})] == [
        f"{variable} is not a setting and was ignored: did you mean {suggestion}?"
    ]
    assert [*find_misspelled_settings(WorkerSettings.model_construct(), {variable: ""})] == []


@pytest.mark.parametrize("variable", [*_REMOVED_SETTINGS, "batch_results"])
def test_removed_setting_is_named_once_with_what_to_do_instead(variable: str) -> None:  # R83
    advice = _REMOVED_SETTINGS[variable.upper()]
    assert [*find_removed_settings({variable: "x", "PATH": "x"})] == [
        f"{variable} was removed: {advice}; unset it"
    ]
    assert [*find_removed_settings({variable: ""})] == []
    for command in COMMANDS:
        assert variable.lower() not in command.model_fields
        assert [*find_misspelled_settings(command.model_construct(), {variable: "x"})] == []


@pytest.mark.long_except("BatchSettings")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_single_edit_of_a_name_is_named(command: type[Settings]) -> None:
    # Other programs' short names and prefixes are left alone.
    names = [
        each.upper()
        for each in command.model_fields
        if len(each.replace("_", "")) >= 6 and not each.startswith(("otel_", "runpod_"))
    ]
    for name in names:
        edits = {name[:at] + name[at + 1 :] for at in range(1, len(name))}
        edits |= {f"{name[:at]}X{name[at:]}" for at in range(1, len(name))}
        edits |= {
            f"{name[:at]}{name[at + 1]}{name[at]}{name[at + 2 :]}" for at in range(len(name) - 1)
        }
        wrong = edits - set(ALL_NAMES)
        warnings = find_misspelled_settings(command.model_construct(), dict.fromkeys(wrong, "x"))
        assert wrong - {warning.split()[0] for warning in warnings} == set()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(engine="llamacpp", threads=2, draft_model_path=Path("d.gguf")), []),
        (
            Settings(engine="llamacpp", rkllm_abi="1.3", rkllm_n_batch=2),
            ["RKLLM_ABI", "RKLLM_N_BATCH"],
        ),
        (Settings(engine="rkllm", rkllm_abi="1.3"), []),
        (
            Settings(engine="rkllm", threads=2, max_concurrency=3, draft_model_path=Path("d.gguf")),
            ["DRAFT_MODEL_PATH", "MAX_CONCURRENCY", "THREADS"],
        ),
        (Settings(engine="scripted", context_length=5, max_concurrency=3), ["CONTEXT_LENGTH"]),
        (
            Settings(
                models=(ModelEntry(path=Path("a.gguf")), ModelEntry(path=Path("b.rkllm"))),
                rkllm_abi="1.3",
                threads=2,
            ),
            [],
        ),
        (Settings(), []),
    ],
)
def test_setting_that_no_engine_in_use_reads_is_named(settings: Settings, named: list[str]) -> None:
    sentences = [*find_ineffective_settings(settings)]
    assert [each.split()[0] for each in sentences] == named
    assert all("has no effect: it is for the " in each for each in sentences)
