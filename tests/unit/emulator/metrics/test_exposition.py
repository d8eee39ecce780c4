"""Prometheus's own library parses the text, with any label values."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from emulator.metrics.exposition import PrometheusText
from emulator.metrics.instruments import Counter, Family, Histogram, MetricSpec, PolledMetric
from emulator.metrics.snapshot import metrics_as_json

NASTY = 'a "quoted" \\back\\slash\nand a new line, é'


def made() -> list[Family[Counter] | Family[Histogram] | PolledMetric]:
    counted = Family(
        MetricSpec(name="c_total", kind="counter", help="C.", labels={"l": ("x",)}), Counter
    )
    counted.labels("x").add(3)
    spread = Family(
        MetricSpec(name="h_seconds", kind="histogram", help="H.", labels={"l": ("x",)}),
        lambda: Histogram((0.1, 1.0)),
    )
    for value in (0.05, 0.5, 5.0):
        spread.labels("x").observe(value)
    info = MetricSpec(name="info", kind="gauge", help="I.", labels={"a": (NASTY,), "b": ("",)})
    level = PolledMetric(MetricSpec(name="g", kind="gauge", help="G."), lambda: 0.25)
    return [counted, spread, PolledMetric(info, lambda: {(NASTY, ""): 1}), level]


def test_text_is_parsed_by_the_library() -> None:
    families = list(text_string_to_metric_families(PrometheusText(made()).render().decode()))
    samples = {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}
    assert {f.name: (f.type, f.documentation) for f in families if f.name in ("c", "g")} == {
        "c": ("counter", "C."),
        "g": ("gauge", "G."),
    }
    assert samples["c_total", ("l", "x")] == 3
    assert samples["g",] == 0.25
    assert samples["info", ("a", NASTY), ("b", "")] == 1
    buckets = [samples["h_seconds_bucket", ("l", "x"), ("le", le)] for le in ("0.1", "1.0", "+Inf")]
    assert buckets == [1, 2, 3]
    assert samples["h_seconds_sum", ("l", "x")] == 5.55
    assert samples["h_seconds_count", ("l", "x")] == 3


def test_text_has_the_metrics_of_the_process() -> None:
    families = list(text_string_to_metric_families(PrometheusText([]).render().decode()))
    assert {"process_resident_memory_bytes", "process_open_fds"} <= {each.name for each in families}


def test_json_has_the_same_numbers_as_the_text() -> None:
    assert metrics_as_json(made()) == {
        "c_total": {"x": 3},
        "h_seconds": {"x": {"count": 3, "sum": 5.55}},
        "info": {NASTY: {"": 1}},
        "g": 0.25,
    }
