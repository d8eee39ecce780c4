"""What may become of a batch, and when it says that it did."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from emulator.batches.batch import BatchStatus, Results, StoredBatch
from handler.errors import InvalidRequest

NEW = StoredBatch(
    id="batch_1",
    endpoint="/v1/completions",
    input_file_id="file-1",
    created_at=100,
    expires_at=200,
    model="little",
)
BEGUN = NEW.begin("digest", 3, 110)
IDS = ("file-2", "file-3")
ALL = Results(completed=2, failed=1, output_file_id="file-2", error_file_id="file-3")
SOME = Results(completed=1, output_file_id="file-2", error_file_id="file-3")


def test_from_its_beginning_to_its_end() -> None:
    done = BEGUN.finalize(IDS, 120).end(ALL, 130)
    shown = done.shown()
    assert shown["status"] == "completed"
    moments = {name: shown[f"{name}_at"] for name in ("in_progress", "finalizing", "completed")}
    assert moments == {"in_progress": 110, "finalizing": 120, "completed": 130}
    assert shown["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert (shown["output_file_id"], shown["error_file_id"]) == IDS
    assert done.changed_at == 130


def test_lines_without_an_answer_are_an_expired_batch() -> None:
    done = BEGUN.finalize(IDS, 210).end(SOME, 220)
    assert (done.status, done.expired_at, done.completed_at) == (BatchStatus.EXPIRED, 220, None)


@pytest.mark.parametrize("batch", [NEW, BEGUN])
def test_a_cancel_goes_before_all_that_comes_after_it(batch: StoredBatch) -> None:
    cancelling = batch.cancel(115)
    assert cancelling.status is BatchStatus.CANCELLING
    assert cancelling.cancel(116) is cancelling
    assert cancelling.begin("other", 9, 117) is cancelling
    assert cancelling.refuse([(1, "no")], 117) is cancelling
    held = cancelling.finalize(IDS, 118)
    assert (held.status, held.finalizing_at) == (BatchStatus.CANCELLING, None)
    done = held.end(Results(), 120)
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
        (lambda batch: batch.finalize(IDS, 120).end(ALL, 130), "completed"),
        (lambda batch: batch.finalize(IDS, 120).end(SOME, 130), "expired"),
        (lambda batch: batch.lose("gone", 120), "failed"),
    ],
)
def test_a_cancel_that_comes_too_late_is_refused(
    change: Callable[[StoredBatch], StoredBatch], status: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"the batch is {status} and cannot be cancelled"):
        change(BEGUN).cancel(140)


def test_ids_of_its_files_are_chosen_once() -> None:
    first = BEGUN.finalize(IDS, 120)
    assert first.finalize(("file-8", "file-9"), 125).results == IDS
    assert first.end(ALL, 130).results is None


def test_what_is_wrong_is_told_by_lines() -> None:
    failed = NEW.refuse([(3, "no"), (None, "and more")], 120).shown()
    assert (failed["status"], failed["failed_at"]) == ("failed", 120)
    assert [(each["line"], each["message"]) for each in failed["errors"]["data"]] == [
        (3, "no"),
        (None, "and more"),
    ]


def test_a_clock_that_is_put_back_turns_no_moment_round() -> None:
    done = NEW.begin("digest", 3, 50).finalize(IDS, 20).end(ALL, 10)
    assert done.in_progress_at == done.finalizing_at == done.completed_at == 100


@pytest.mark.parametrize(
    "batch", [NEW, BEGUN, BEGUN.finalize(IDS, 1), BEGUN.cancel(1), NEW.refuse([(1, "no")], 1)]
)
def test_a_record_is_the_batch_again(batch: StoredBatch) -> None:
    assert StoredBatch.from_record(orjson.loads(orjson.dumps(batch.record()))) == batch


def test_nothing_of_ours_is_shown() -> None:
    assert not {"digest", "lines", "results", "output_expires_s"} & BEGUN.shown().keys()
