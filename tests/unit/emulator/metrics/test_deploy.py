"""The dashboard and the alerts use only existing metrics, and each alert has its page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from emulator.http.route_facts import OperationName
from emulator.metrics.exposition import PrometheusText
from tests.promql import COUNTING, Expression, read
from tools.docs.metrics import specs

ROOT = Path(__file__).resolve().parents[4]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "worker-rkllm.json"
# Labels that Prometheus adds to each series, and the series for the scrape itself.
ADDED, UP = {"job", "instance"}, "up"


class Known:
    """All possible series: their labels with the values, and whether they only grow."""

    def __init__(self) -> None:
        self.labels: dict[str, Mapping[str, tuple[str, ...]]] = {UP: {}}
        self.counters: set[str] = set()
        for spec in specs():
            values = {name: tuple(label_values) for name, label_values in spec.labels.items()}
            if spec.kind == "histogram":
                self.labels[f"{spec.name}_bucket"] = {**values, "le": ()}
                self.labels |= {f"{spec.name}{end}": values for end in ("_sum", "_count")}
                self.counters |= {f"{spec.name}{end}" for end in ("_bucket", "_sum", "_count")}
            else:
                self.labels[spec.name] = values
                self.counters |= {spec.name} if spec.kind == "counter" else set()
        for family in text_string_to_metric_families(PrometheusText([]).render().decode()):
            self.labels |= {sample.name: {} for sample in family.samples}

    def check(self, expression: Expression) -> None:
        grouped = expression.labels - ADDED
        for selector in expression.selectors:
            labels = self.labels[selector.name]
            counting = selector.function in COUNTING
            assert counting == selector.ranged, selector
            assert counting == (selector.name in self.counters), selector
            for label, operator, value in selector.conditions:
                assert label in labels or label in ADDED, selector
                values = labels.get(label, ())
                # Each alternative matches an existing value.
                for part in value.split("|") if "~" in operator else [re.escape(value)]:
                    assert not values or any(re.fullmatch(part, each) for each in values), selector
            assert grouped <= labels.keys(), selector


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [each for each in entries if each["type"] != "row"]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alerts_use_existing_metrics_and_have_instructions(
    alert: dict[str, Any], known: Known
) -> None:
    expression = read(alert["expr"])
    assert expression.selectors
    known.check(expression)
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"\d+m", alert.get("for", "0m"))
    annotations = alert["annotations"]
    assert "{{ $labels.instance }}" in annotations["summary"]
    # The summary names the instance, so the result must keep that label.
    assert not expression.labels or "instance" in expression.labels
    name = alert["alert"]
    assert annotations["runbook"] == f"docs/metrics.md#{name.lower()}"
    page = (ROOT / "docs" / "metrics.md").read_text()
    section = re.search(rf"^### {name}\n\n(.+?)\n\n", page, re.M | re.S)
    assert section is not None, f"{name} has no page"
    assert len(section[1]) > 80


def test_failure_rate_is_relative_to_client_requests() -> None:
    # Scrapes and workers' polls rarely fail, so they would hide the failures of client requests.
    [alert] = [each for each in alerts() if each["alert"] == "WorkerRkllmErrors"]
    for selector in read(alert["expr"]).selectors:
        [excluded] = [
            value
            for label, operator, value in selector.conditions
            if (label, operator) == ("operation", "!~")
        ]
        left = {each for each in OperationName if not re.fullmatch(excluded, each)}
        assert left.isdisjoint({"metrics", "health", "console", "ping", "job-take", "job-stop"})
        assert left >= {"run", "runsync", "status", "chat", "completions", "batches"}


def test_alert_names_are_unique_and_match_the_page() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names))
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^### (WorkerRkllm\w+)$", page, re.M) == names


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panels_use_existing_metrics(panel: dict[str, Any], known: Known) -> None:
    assert panel["title"]
    assert panel["description"]
    assert panel["targets"]
    for target in panel["targets"]:
        expression = read(target["expr"])
        known.check(expression)
        # Every curve can be filtered by server.
        for selector in expression.selectors:
            assert ("instance", "=~", "$instance") in selector.conditions
        labels_in_legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        first = expression.selectors[0]
        assert labels_in_legend <= expression.labels | ADDED | known.labels[first.name].keys()


def test_states_are_displayed_by_name() -> None:
    # For a single series Grafana shows the value by default, which is 1 in any state.
    [panel] = [each for each in panels() if each["title"] == "Engine"]
    assert panel["options"]["textMode"] == "name"
    assert "{{state}}" in panel["targets"][0]["legendFormat"]


def test_metrics_are_on_the_dashboard_with_few_exceptions() -> None:
    displayed = {
        re.sub("_(bucket|sum|count)$", "", selector.name)
        for panel in panels()
        for target in panel["targets"]
        for selector in read(target["expr"]).selectors
    }
    missing = {spec.name.removeprefix("worker_rkllm_") for spec in specs()} - {
        name.removeprefix("worker_rkllm_") for name in displayed
    }
    assert missing == {"info", "jobs_max"}


def test_dashboard_is_valid_for_grafana() -> None:
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables.keys() == {"datasource", "job", "instance"}
    names = {spec.name for spec in specs()}
    for variable in ("job", "instance"):
        metric, label = re.findall(
            r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variables[variable]["query"]
        )[0]
        assert metric in names
        assert label == variable


def test_scrape_configuration_matches_the_alerts() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    documents = [
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.+?)^```", page, re.M | re.S)
    ]
    [scrape] = [each["scrape_configs"][0] for each in documents if "scrape_configs" in each]
    named = {
        value
        for alert in alerts()
        for selector in read(alert["expr"]).selectors
        for label, _, value in selector.conditions
        if label == "job"
    }
    assert named == {scrape["job_name"]}
    # This path is Prometheus's default, so the file may omit it.
    assert scrape.get("metrics_path", "/metrics") == "/metrics"


WRONG = (
    "rate(worker_rkllm_jobs_ended_total)",
    "rate(worker_rkllm_jobs[5m])",
    "worker_rkllm_completion_tokens_total > 3",
    'worker_rkllm_jobs{state="IN_QUEUE"}',
    'worker_rkllm_jobs{status="WAITING"}',
    'worker_rkllm_jobs{status=~"IN_QUEUE|WAITING"}',
    "sum by (endpoint) (worker_rkllm_jobs)",
    "worker_rkllm_made_up",
    "sum(worker_rkllm_jobs",
    "sum(worker_rkllm_jobs))",
    "average(worker_rkllm_jobs)",
    "rate(worker_rkllm_jobs_ended_total[$__rate])",
    "worker_rkllm_jobs{status}",
    "worker_rkllm_jobs ~ 3",
)


@pytest.mark.parametrize("expression", WRONG)
def test_checks_find_mistakes(expression: str, known: Known) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        known.check(read(expression))


def test_expressions_are_parsed_completely() -> None:
    expression = read(
        'histogram_quantile(0.9, sum by (le, a) (rate(x_bucket{b="c", d=~"e|f"}[5m]))) / on (g) y'
    )
    assert [(each.name, each.function, each.ranged) for each in expression.selectors] == [
        ("x_bucket", "rate", True),
        ("y", "", False),
    ]
    assert expression.selectors[0].conditions == [("b", "=", "c"), ("d", "=~", "e|f")]
    assert expression.labels == {"le", "a", "g"}
