"""Environment variables that look like settings and have no effect, for warnings at start (R61)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from handler.settings import Settings

# Shorter names, such as HOST and PORT, resemble too many variables of other programs.
_MIN_CHARS = 6
# One wrong letter of six.
_SIMILARITY = 0.83
# Of other programs; a tool's own variables may well end like one of ours.
_PREFIXES = (
    *("AWS_", "AZURE_", "BUILDKITE_", "CI_", "CIRCLE_", "COMPOSE_", "CONDA_", "CUDA_", "DEBIAN_"),
    *("DOCKER_", "GIT_", "GITHUB_", "GITLAB_", "GOOGLE_", "GPG_", "GRAFANA_", "HF_", "HUGGING"),
    *("JAVA_", "JENKINS_", "KUBE", "LC_", "LD_", "LESS", "NCCL_", "NODE_", "NPM_", "NV_"),
    *("NVIDIA_", "OLLAMA_", "OMP_", "OPENAI_", "OTEL_", "PIP_", "POSTGRES_", "PYTHON", "PYTEST_"),
    *("REDIS_", "RUNNER_", "RUNPOD_", "SSH_", "SUDO_", "SYSTEMD_", "TERM", "TRANSFORMERS_", "UV_"),
    *("VIRTUAL_", "VLLM_", "VSCODE_", "XDG_", "XPC_", "_"),
)
# Close to a setting of one command, and known: to the local server, to RKLLM's library.
_OTHERS = frozenset({"BODY_TIMEOUT_S", "HEAD_TIMEOUT_S", "READ_TIMEOUT_S", "RKLLM_LOG_LEVEL"})
# People put the program's name before a setting's.
_OWN_PREFIXES = ("WORKER_RKLLM_", "RKLLM_")

_LLAMACPP_ONLY = frozenset({"draft_model_path", "threads"})
_HAS_CONTEXT = frozenset({"llamacpp", "rkllm"})
_HAS_SLOTS = frozenset({"llamacpp", "scripted"})


def misspelled_settings(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable whose name resembles a setting but is not one."""
    known = {_letters(name): name.upper() for name in type(settings).model_fields}
    for name, value in sorted(environment.items()):
        variable = name.upper()
        if not value or name.lower() in type(settings).model_fields or variable in _OTHERS:
            continue
        if (suggestion := _without_own_prefix(variable, known)) is None:
            if variable.startswith(_PREFIXES):
                continue
            suggestion = known.get(_closest(_letters(name), known) or "")
        if suggestion is not None:
            yield f"{name} is not a setting and was ignored: did you mean {suggestion}?"


def _without_own_prefix(variable: str, known: Mapping[str, str]) -> str | None:
    for prefix in _OWN_PREFIXES:
        if variable.startswith(prefix):
            return known.get(_letters(variable.removeprefix(prefix)))
    return None


def _closest(letters: str, known: Mapping[str, str]) -> str | None:
    if letters in known:
        return letters
    comparable = [each for each in known if len(each) >= _MIN_CHARS]
    # Two letters that changed places: difflib finds less in common in "qeuue" and "queue".
    same_letters = [each for each in comparable if sorted(each) == sorted(letters)]
    similar = same_letters or get_close_matches(letters, comparable, n=1, cutoff=_SIMILARITY)
    return similar[0] if similar else None


def _letters(name: str) -> str:
    return "".join(each for each in name.casefold() if each.isalnum())


def ineffective_settings(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each setting that is set and that no engine in use looks at."""
    backends = settings.backends
    for name in sorted(settings.model_fields_set):
        needed = _engines_of(name)
        if needed is not None and not needed & backends:
            engines = " or ".join(sorted(needed))
            yield (
                f"{name.upper()} has no effect: it is for the {engines} engine, and this is the "
                f"{' and the '.join(sorted(backends))} engine"
            )


def _engines_of(name: str) -> frozenset[str] | None:
    """Return the engines that look at a setting; None for all."""
    if name.startswith("rkllm_"):
        return frozenset({"rkllm"})
    if name in _LLAMACPP_ONLY:
        return frozenset({"llamacpp"})
    if name == "context_length":
        return _HAS_CONTEXT
    return _HAS_SLOTS if name == "max_concurrency" else None
