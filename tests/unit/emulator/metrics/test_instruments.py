"""Counters, histograms and their label values."""

from __future__ import annotations

from emulator.metrics.instruments import Counter, Family, Histogram, MetricSpec, PolledMetric


def spec(**labels: tuple[str, ...]) -> MetricSpec:
    return MetricSpec(name="n", kind="counter", help="h", labels=labels)


def test_observation_is_in_the_first_bucket_with_a_sufficient_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5
    assert round(histogram.total, 9) == 4.65


def test_equal_observations_are_recorded_in_one_call() -> None:
    histogram = Histogram((0.1,))
    histogram.observe(0.05, 99)
    assert (histogram.counts, round(histogram.total, 9)) == ([99, 0], 4.95)


def test_all_series_exist_from_the_start() -> None:
    family = Family(spec(a=("x", "y"), b=("1", "2")), Counter)
    assert [values for values, _ in family.samples()] == [
        ("x", "1"),
        ("x", "2"),
        ("y", "1"),
        ("y", "2"),
    ]
    assert [values for values, _ in Family(spec(), Counter).samples()] == [()]


def test_sparse_series_exist_after_their_first_event() -> None:
    family = Family(spec(a=("x", "y")), Counter, sparse=True)
    assert list(family.samples()) == []
    family.labels("y").add(2)
    assert [(values, each.value) for values, each in family.samples()] == [(("y",), 2)]


def test_undeclared_label_values_count_as_other() -> None:
    family = Family(spec(a=("x", "other"), b=("1", "other")), Counter)
    for number in range(1_000):
        family.labels(f"made up {number}", "1").add()
        family.labels("x", f"{number}!").add()
    values_by_labels = {values: each.value for values, each in family.samples()}
    assert values_by_labels == {
        ("x", "1"): 0,
        ("x", "other"): 1_000,
        ("other", "1"): 1_000,
        ("other",) * 2: 0,
    }


def test_polled_metrics_are_read_each_time() -> None:
    numbers = iter([1.0, 2.0])
    reading = PolledMetric(spec(), lambda: next(numbers))
    assert [list(reading.samples()) for _ in range(2)] == [[((), 1.0)], [((), 2.0)]]
    assert list(PolledMetric(spec(a=("x",)), lambda: {("x",): 3}).samples()) == [(("x",), 3)]
