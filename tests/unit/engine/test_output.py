import orjson

from engine.output import Finish, FinishReason, Timings, Usage


def test_total_is_the_sum() -> None:
    # R2
    assert Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=6).total_tokens == 12


def test_finish_to_wire_keeps_only_the_hosts_timings() -> None:
    finish = Finish(
        reason=FinishReason.LENGTH,
        usage=Usage(1, 2, 3),
        stop_reason=7,
        timings=Timings(queue_ms=1, prefill_ms=2.5, total_ms=3),
    )
    rebuilt = Finish.from_wire(orjson.loads(orjson.dumps(finish.to_wire())))
    assert rebuilt == Finish(
        reason=FinishReason.LENGTH,
        usage=Usage(1, 2, 3),
        stop_reason=7,
        timings=Timings(prefill_ms=2.5),
    )
