"""Find environment variables that look like settings and have no effect, to warn at start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from handler.settings.shared_settings import Settings

# Shorter names, such as HOST and PORT, resemble too many variables of other programs.
_MIN_NAME_CHARS = 6
# One wrong letter in six.
_SIMILARITY = 0.83
# Prefixes of other programs' variables, which may end like one of these settings. OLLAMA_ is not
# among them, because OLLAMA_PORT is a setting, and no variable of Ollama resembles one.
_FOREIGN_PREFIXES = (
    *("AWS_", "AZURE_", "BUILDKITE_", "CI_", "CIRCLE_", "COMPOSE_", "CONDA_", "CUDA_", "DEBIAN_"),
    *("DOCKER_", "GIT_", "GITHUB_", "GITLAB_", "GOOGLE_", "GPG_", "GRAFANA_", "HF_", "HUGGING"),
    *("JAVA_", "JENKINS_", "KUBE", "LC_", "LD_", "LESS", "NCCL_", "NODE_", "NPM_", "NV_"),
    *("NVIDIA_", "OMP_", "OPENAI_", "OTEL_", "PIP_", "POSTGRES_", "PYTHON", "PYTEST_"),
    *("REDIS_", "RUNNER_", "RUNPOD_", "SSH_", "SUDO_", "SYSTEMD_", "TERM", "TRANSFORMERS_", "UV_"),
    *("VIRTUAL_", "VLLM_", "VSCODE_", "XDG_", "XPC_", "_"),
)
# These resemble a setting of one command but are known to the local server or to RKLLM's library.
_KNOWN_VARIABLES = frozenset(
    {"BODY_TIMEOUT_S", "HEAD_TIMEOUT_S", "MODEL_NAME_MAP", "READ_TIMEOUT_S", "RKLLM_LOG_LEVEL"}
)
# Users may put the program's name before a setting's name.
_OWN_PREFIXES = ("WORKER_RKLLM_", "RKLLM_")

_FAULT_RULE = "set FAULTS_PER_REQUEST=on and add a rule with `POST /faults`, such as "
# Settings of earlier versions, and what to do instead.
_REMOVED_SETTINGS = {
    "LOST_JOBS": "MAX_LOSSES=1 ends jobs at the first lost worker",
    "BATCH_QUEUE_URL": "there is no AWS Lambda function any more, use `batch worker --queue-url`",
    "BATCH_RESULTS": "there is no AWS Lambda function any more, use `batch worker --results`",
    "FAULT_429": _FAULT_RULE + '{"fault": "status=429; retry-after=1", "probability": 0.1}',
    "FAULT_500": _FAULT_RULE + '{"fault": "status=500", "probability": 0.1}',
    "FAULT_DELAY_MS": _FAULT_RULE + '{"fault": "delay=0.2"}',
    "FAULT_DROP_POST": _FAULT_RULE
    + '{"fault": "close", "operation": "job-done", "probability": 0.1}, also for job-stream',
    "FAULT_LOSE_LEASE": _FAULT_RULE
    + '{"fault": "lose-lease", "operation": "job-take-batch", "probability": 0.1}, also for '
    "job-take",
    "RKLLM_PROMPT_CACHES": "the runtime reuses common beginnings of prompts by itself",
    "RUNPOD_RATE_LIMITS": _FAULT_RULE + '{"fault": "rate-limits"}',
    "STREAM_MULTI_PROMPT": "stream each prompt in a request of its own, or send them unstreamed",
}

_SEVERAL_MODELS_SETTINGS = frozenset({"model_memory_mb", "preload_models"})
_LLAMACPP_SETTINGS = frozenset({"draft_model_path", "lora_adapters", "mmproj_path", "threads"})
_CONTEXT_BACKENDS = frozenset({"llamacpp", "openai", "rkllm"})
_SLOT_BACKENDS = frozenset({"llamacpp", "openai", "scripted"})


def find_removed_settings(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that was a setting of an earlier version."""
    for name, value in sorted(environment.items()):
        advice = _REMOVED_SETTINGS.get(name.upper())
        if value and advice is not None:
            yield f"{name} was removed: {advice}; unset it"


def find_misspelled_settings(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable whose name resembles a setting but is not one."""
    known = {_normalize_name(name): name.upper() for name in type(settings).model_fields}
    for name, value in sorted(environment.items()):
        variable = name.upper()
        if not value or name.lower() in type(settings).model_fields:
            continue
        if variable in _KNOWN_VARIABLES or variable in _REMOVED_SETTINGS:
            continue
        if (suggestion := _without_own_prefix(variable, known)) is None:
            if variable.startswith(_FOREIGN_PREFIXES):
                continue
            suggestion = known.get(_find_similar(_normalize_name(name), known) or "")
        if suggestion is not None:
            yield f"{name} is not a setting and was ignored: did you mean {suggestion}?"


def _without_own_prefix(variable: str, known: Mapping[str, str]) -> str | None:
    for prefix in _OWN_PREFIXES:
        if variable.startswith(prefix):
            return known.get(_normalize_name(variable.removeprefix(prefix)))
    return None


def _find_similar(letters: str, known: Mapping[str, str]) -> str | None:
    if letters in known:
        return letters
    comparable = [each for each in known if len(each) >= _MIN_NAME_CHARS]
    # Two swapped letters: difflib rates "qeuue" and "queue" as less similar.
    same_letters = [each for each in comparable if sorted(each) == sorted(letters)]
    similar = same_letters or get_close_matches(letters, comparable, n=1, cutoff=_SIMILARITY)
    return similar[0] if similar else None


def _normalize_name(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())


def find_ineffective_settings(settings: Settings) -> Iterator[str]:
    """Yield a warning for each setting that is set and that no engine in use reads."""
    backends = settings.backends
    for name in sorted(settings.model_fields_set):
        if name in _SEVERAL_MODELS_SETTINGS and not settings.models:
            yield f"{name.upper()} has no effect: it is for the models of MODELS"
        readers = _engines_that_read(name)
        if readers is not None and not readers & backends:
            engines = " or ".join(sorted(readers))
            yield (
                f"{name.upper()} has no effect: it is for the {engines} engine, and this is the "
                f"{' and the '.join(sorted(backends))} engine"
            )


def _engines_that_read(name: str) -> frozenset[str] | None:
    """Return the engines that read a setting; None for all."""
    if name.startswith("rkllm_"):
        return frozenset({"rkllm"})
    if name.startswith("upstream_"):
        return frozenset({"openai"})
    if name in _LLAMACPP_SETTINGS:
        return frozenset({"llamacpp"})
    if name == "context_length":
        return _CONTEXT_BACKENDS
    return _SLOT_BACKENDS if name == "max_concurrency" else None
