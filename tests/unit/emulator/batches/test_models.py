"""The status changes of a batch, and their times."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from emulator.batches.models import BatchResult, BatchStatus, StoredBatch
from handler.errors import InvalidRequest

NEW = StoredBatch(
    id="batch_1",
    endpoint="/v1/completions",
    input_file_id="file-1",
    created_at=100,
    expires_at=200,
    model="little",
)
STARTED = NEW.start("digest", 3, 110)
IDS = ("file-2", "file-3")
ALL_ANSWERED = BatchResult(completed=2, failed=1, output_file_id="file-2", error_file_id="file-3")
SOME_ANSWERED = BatchResult(completed=1, output_file_id="file-2", error_file_id="file-3")


def test_batch_completes_with_the_times_and_counts_of_its_steps() -> None:
    done = STARTED.finalize(IDS, 120).finish(ALL_ANSWERED, 130)
    fields = done.to_openai()
    assert fields["status"] == "completed"
    times = {name: fields[f"{name}_at"] for name in ("in_progress", "finalizing", "completed")}
    assert times == {"in_progress": 110, "finalizing": 120, "completed": 130}
    assert fields["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert (fields["output_file_id"], fields["error_file_id"]) == IDS
    assert done.changed_at == 130


def test_finish_expires_a_batch_with_unanswered_lines() -> None:
    done = STARTED.finalize(IDS, 210).finish(SOME_ANSWERED, 220)
    assert (done.status, done.expired_at, done.completed_at) == (BatchStatus.EXPIRED, 220, None)


@pytest.mark.parametrize("batch", [NEW, STARTED])
def test_cancelled_batch_ignores_later_status_changes(batch: StoredBatch) -> None:
    cancelling = batch.cancel(115)
    assert cancelling.status is BatchStatus.CANCELLING
    assert cancelling.cancel(116) is cancelling
    assert cancelling.start("other", 9, 117) is cancelling
    assert cancelling.fail_validation([(1, "no")], 117) is cancelling
    finalized = cancelling.finalize(IDS, 118)
    assert (finalized.status, finalized.finalizing_at) == (BatchStatus.CANCELLING, None)
    done = finalized.finish(BatchResult(), 120)
    assert (done.status, done.cancelling_at, done.cancelled_at) == (
        BatchStatus.CANCELLED,
        115,
        120,
    )
    assert done.cancel(130) is done


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda batch: batch.finalize(IDS, 120), "finalizing"),
        (lambda batch: batch.finalize(IDS, 120).finish(ALL_ANSWERED, 130), "completed"),
        (lambda batch: batch.finalize(IDS, 120).finish(SOME_ANSWERED, 130), "expired"),
        (lambda batch: batch.fail_input_lost("gone", 120), "failed"),
    ],
)
def test_cancel_is_refused_when_the_batch_is_finalizing_or_has_ended(
    change: Callable[[StoredBatch], StoredBatch], status: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"the batch is {status} and cannot be cancelled"):
        change(STARTED).cancel(140)


def test_finalize_keeps_the_ids_of_the_first_call() -> None:
    first = STARTED.finalize(IDS, 120)
    assert first.finalize(("file-8", "file-9"), 125).results == IDS
    assert first.finish(ALL_ANSWERED, 130).results is None


def test_fail_validation_lists_the_problems_by_line() -> None:
    failed = NEW.fail_validation([(3, "no"), (None, "and more")], 120).to_openai()
    assert (failed["status"], failed["failed_at"]) == ("failed", 120)
    assert [(each["line"], each["message"]) for each in failed["errors"]["data"]] == [
        (3, "no"),
        (None, "and more"),
    ]


def test_status_times_never_decrease_when_the_clock_is_put_back() -> None:
    done = NEW.start("digest", 3, 50).finalize(IDS, 20).finish(ALL_ANSWERED, 10)
    assert done.in_progress_at == done.finalizing_at == done.completed_at == 100


@pytest.mark.parametrize(
    "batch",
    [
        NEW,
        STARTED,
        STARTED.finalize(IDS, 1),
        STARTED.cancel(1),
        NEW.fail_validation([(1, "no")], 1),
    ],
)
def test_record_round_trip_returns_the_same_batch(batch: StoredBatch) -> None:
    assert StoredBatch.from_record(orjson.loads(orjson.dumps(batch.to_record()))) == batch


def test_to_openai_omits_internal_fields() -> None:
    assert not {"digest", "lines", "results", "output_expires_s"} & STARTED.to_openai().keys()
