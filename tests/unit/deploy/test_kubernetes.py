"""The files in deploy/kubernetes: Kubernetes' schemas, settings and exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate.utils as schemas
import pytest
import yaml

from batch.__main__ import _create_parser
from batch.cli.run import DONE, INTERRUPTED, REFUSED, SOME_FAILED
from batch.settings import BatchSettings
from emulator.http.shutdown_state import ShutdownState
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.status.health import Health
from engine.backends.rkllm.board.device_lock import LOCK_FOLDERS
from tests.dockerfile import default_build
from tests.unit.deploy.reading import read

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
# The oldest version with all fields that the files use, and the newest one that the package has.
VERSIONS = ("1.29.0", "1.37.0")
# Lists whose entries a strategic merge patch finds by a field.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}

Document: TypeAlias = Mapping[str, Any]


def documents(name: str) -> dict[str, Document]:
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


def patched(value: Any, patch: Any, key: str = "") -> Any:
    """Return a value with a strategic merge patch, as `kubectl patch` applies it."""
    if isinstance(patch, Mapping):
        merged = {**value} if isinstance(value, Mapping) else {}
        for name, each in patch.items():
            merged[name] = patched(merged.get(name), each, name)
        return merged
    if (field := MERGE_KEYS.get(key)) is not None:
        entries = {each[field]: each for each in value or ()}
        for each in patch:
            entries[each[field]] = patched(entries.get(each[field]), each)
        return list(entries.values())
    return patch


SERVER = documents("deployment.yaml")
BATCH = documents("batch-job.yaml")
BOARD = patched(SERVER["Deployment"], documents("board.yaml")["Deployment"])
WORKLOADS = {"server": SERVER["Deployment"], "board": BOARD, "batch": BATCH["Job"]}


def pod(workload: str) -> Document:
    spec: Document = WORKLOADS[workload]["spec"]["template"]["spec"]
    return spec


def container(workload: str) -> Document:
    [only] = pod(workload)["containers"]
    return dict(only)


def variables(workload: str) -> dict[str, str]:
    """Return the variables of a container; a secret is replaced by a text."""
    return {each["name"]: each.get("value", "secret") for each in container(workload)["env"]}


def all_documents() -> Iterator[Document]:
    yield from SERVER.values()
    yield from BATCH.values()
    yield BOARD


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_is_valid(version: str) -> None:
    for document in all_documents():
        schemas.validate(dict(document), version, strict=True)


def test_a_misspelled_field_is_not_valid() -> None:
    wrong = patched(SERVER["Deployment"], {"spec": {"template": {"spec": {"restartpolicy": "x"}}}})
    with pytest.raises(schemas.ValidationError, match="restartpolicy"):
        schemas.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("workload", ["server", "board"])
def test_variables_of_the_server_are_valid_settings(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = variables(workload)
    # Read by the Hub's library.
    assert Path(own.pop("HF_HOME")).is_relative_to("/data")
    assert {name.lower() for name in own} <= set(EmulatorSettings.model_fields)
    settings = read(EmulatorSettings, own, monkeypatch)
    assert settings.keys() == ("secret",)
    assert settings.backend == ("rkllm" if workload == "board" else "llamacpp")
    assert Path(settings.job_db).parent == Path("/data")
    [port] = container(workload)["ports"]
    assert port["containerPort"] == settings.port
    [service_port] = SERVER["Service"]["spec"]["ports"]
    assert (service_port["port"], service_port["targetPort"]) == (settings.port, port["name"])
    assert pod(workload)["terminationGracePeriodSeconds"] > settings.drain_s


def test_key_of_the_server_comes_from_the_secret_of_the_docs() -> None:
    [key] = [each for each in container("server")["env"] if each["name"] == "API_KEYS"]
    reference = key["valueFrom"]["secretKeyRef"]
    command = (
        f"kubectl create secret generic {reference['name']} --from-literal={reference['key']}="
    )
    assert command in (ROOT / "docs" / "container.md").read_text()
    assert "Secret" not in SERVER


def test_variables_of_the_batch_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own = variables("batch")
    assert Path(own.pop("HF_HOME")).is_relative_to("/data")
    assert {name.lower() for name in own} <= set(BatchSettings.model_fields)
    read(BatchSettings, own, monkeypatch)


def test_probes_ask_for_the_health_and_wait_for_a_restart_of_the_engine() -> None:
    server = container("server")
    probes = [server[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
    route = Health(None, (), None, ShutdownState()).route()
    assert all(each["httpGet"] == {"path": route.path, "port": "http"} for each in probes)
    liveness = probes[-1]
    patience_s = liveness["periodSeconds"] * liveness["failureThreshold"]
    assert patience_s > EmulatorSettings.model_fields["engine_down_exit_s"].default


def test_old_server_ends_before_a_new_one_starts() -> None:
    spec = SERVER["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == SERVER["Service"]["spec"]["selector"]
    claims = [each.get("persistentVolumeClaim") for each in pod("server")["volumes"]]
    assert {"claimName": SERVER["PersistentVolumeClaim"]["metadata"]["name"]} in claims


@pytest.mark.parametrize("workload", WORKLOADS)
def test_container_is_the_image_s_user_with_a_read_only_root(workload: str) -> None:
    [user] = [each.text for each in default_build(ROOT / "Dockerfile") if each.name == "USER"]
    own_pod, own_container = pod(workload), container(workload)
    assert own_pod["securityContext"]["runAsUser"] == int(user)
    assert own_pod["securityContext"]["runAsNonRoot"] is True
    assert own_pod["enableServiceLinks"] is own_pod["automountServiceAccountToken"] is False
    context = own_container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    # Kubernetes refuses a privileged container without it.
    assert context["allowPrivilegeEscalation"] is context.get("privileged", False)
    assert context.get("privileged", False) is (workload == "board")
    mounted = {each["name"]: each["mountPath"] for each in own_container["volumeMounts"]}
    assert set(mounted) == {each["name"] for each in own_pod["volumes"]}
    assert {"data": "/data", "tmp": "/tmp"}.items() <= mounted.items()  # noqa: S108


def test_board_has_the_mounts_of_the_compose_file() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["server"]
    folders = {
        each["name"]: each.get("hostPath", {}).get("path") for each in pod("board")["volumes"]
    }
    mounts = {
        (folders[each["name"]], each["mountPath"]) for each in container("board")["volumeMounts"]
    }
    from_compose = [each.split(":")[:2] for each in (*compose["volumes"], *compose["devices"])]
    expected = {tuple(each) for each in from_compose if each[0].startswith("/")}
    assert expected <= mounts
    assert (f"/{LOCK_FOLDERS[0]}",) * 2 in mounts


def test_batch_answers_one_shard_for_each_index() -> None:
    batch = container("batch")
    assert batch["command"][:-1] == ["python", "-u", "-m", "batch"]
    arguments = _create_parser("batch").parse_args([batch["command"][-1], *batch["args"]])
    assert (arguments.input, arguments.output) == ("/data/requests.jsonl", "/data/answers.jsonl")
    spec = BATCH["Job"]["spec"]
    assert arguments.shards == spec["completions"]
    assert (spec["completionMode"], spec["podReplacementPolicy"]) == ("Indexed", "Failed")
    assert pod("batch")["restartPolicy"] == "Never"


def test_batch_is_tried_again_only_if_that_can_help() -> None:
    disrupted, final = BATCH["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert disrupted["action"] == "Ignore"
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    codes = final["onExitCodes"]
    assert (final["action"], codes["operator"]) == ("FailIndex", "In")
    assert codes["containerName"] == container("batch")["name"]
    assert codes["values"] == [SOME_FAILED, REFUSED]
    assert not {DONE, INTERRUPTED} & set(codes["values"])
