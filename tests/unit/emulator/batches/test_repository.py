"""The batch repository: memory and disk agree, also after a restart."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from emulator.batches.file_storage import FileStorage, InsufficientStorage
from emulator.batches.models import BATCH_ID_PREFIX, FILE_ID_PREFIX, StoredBatch, StoredFile
from emulator.batches.repository import BatchRepository, Reservation, is_valid_id
from handler.errors import InvalidRequest, NotFound
from jobs import StoreUnavailable

OpenRepository = Callable[[], BatchRepository]


@pytest.fixture
async def open_repository(tmp_path: Path) -> AsyncIterator[OpenRepository]:
    """Return a function that opens the same folder again, as the next server does."""
    repositories: list[BatchRepository] = []

    def build_next() -> BatchRepository:
        for repository in repositories:
            repository.close()
        repositories.append(BatchRepository(FileStorage(tmp_path / "kept"), 1_000))
        return repositories[-1]

    yield build_next
    repositories[-1].close()


async def add_file(repository: BatchRepository, data: bytes = b"12345") -> StoredFile:
    upload = repository.storage.new_upload("0123456789abcdef")
    upload.write_bytes(data)
    file = StoredFile(
        id=repository.new_id(FILE_ID_PREFIX),
        bytes=len(data),
        created_at=1,
        filename="a",
        purpose="batch",
    )
    await repository.add_upload(file, upload, Reservation(repository))
    return file


async def add_batch(repository: BatchRepository, file: StoredFile) -> StoredBatch:
    batch = StoredBatch(
        id=repository.new_id(BATCH_ID_PREFIX),
        endpoint="/v1/completions",
        input_file_id=file.id,
        created_at=1,
        expires_at=2,
        model="little",
    )
    await repository.add_batch(batch)
    return batch


async def test_open_restores_files_and_batches_after_a_restart(
    open_repository: OpenRepository,
) -> None:
    repository = open_repository()
    await repository.open()
    files = [await add_file(repository) for _ in range(3)]
    batch = await add_batch(repository, files[0])
    changed = await repository.update_batch(
        batch.id, lambda batch, at: batch.start("digest", 7, at)
    )
    await repository.delete_file(files[1].id)
    reopened = open_repository()
    await reopened.open()
    assert reopened.files == [files[0], files[2]]
    assert reopened.batches == [changed]
    assert reopened.storage.content_path(files[0].id).read_bytes() == b"12345"
    # The next id sorts after all others.
    assert (await add_file(reopened)).id > files[2].id


async def test_open_removes_content_without_a_record_and_journals_of_ended_batches(
    open_repository: OpenRepository, tmp_path: Path
) -> None:
    repository = open_repository()
    await repository.open()
    file = await add_file(repository)
    batch, ended = await add_batch(repository, file), await add_batch(repository, file)
    await repository.update_batch(ended.id, lambda batch, at: batch.fail_validation([], at))
    for each in (batch, ended):
        repository.storage.journal_path(each.id).write_bytes(b"x")
    files, batches = tmp_path / "kept" / "files", tmp_path / "kept" / "batches"
    digits = "0" * 28
    for name in (f".upload-{digits[:16]}", f"file-{digits}", f"file-{digits}.json.new"):
        (files / name).write_bytes(b"half")
    lost = await add_file(repository)
    repository.storage.content_path(lost.id).unlink()
    reopened = open_repository()
    await reopened.open()
    assert {each.name for each in files.iterdir()} == {file.id, f"{file.id}.json"}
    assert {each.name for each in batches.iterdir()} == {
        f"{batch.id}.json",
        f"{batch.id}.partial",
        f"{ended.id}.json",
    }
    assert reopened.files == [file]


async def test_open_lists_damaged_records_and_serves_the_others(
    open_repository: OpenRepository, tmp_path: Path
) -> None:
    repository = open_repository()
    await repository.open()
    file, other = await add_file(repository), await add_file(repository)
    batch, kept = await add_batch(repository, file), await add_batch(repository, other)
    repository.storage.journal_path(batch.id).write_bytes(b"answers")
    kept_folder = tmp_path / "kept"
    for damage in (b"", b"{}", b"[]", b'{"status": "odd"}', b'{"id": "../../x"}'):
        for path in (
            kept_folder / "batches" / f"{batch.id}.json",
            kept_folder / "files" / f"{file.id}.json",
        ):
            path.write_bytes(damage)
        before = sorted(kept_folder.rglob("*"))
        reopened = open_repository()
        await reopened.open()
        assert reopened.files == [other]
        assert reopened.batches == [kept]
        assert reopened.storage.damaged_ids == [file.id, batch.id]
        assert sorted(kept_folder.rglob("*")) == before
        # The ids of damaged records are not used again.
        assert reopened.new_id(BATCH_ID_PREFIX)[6:18] > batch.id[6:18]


@pytest.mark.parametrize(
    "changes", [{"bytes": "5"}, {"filename": 5}, {"id": "file-" + "0" * 28}, {"extra": 1}]
)
async def test_open_lists_records_with_wrong_values_as_damaged(
    open_repository: OpenRepository, tmp_path: Path, changes: dict[str, object]
) -> None:
    repository = open_repository()
    await repository.open()
    file = await add_file(repository)
    record = tmp_path / "kept" / "files" / f"{file.id}.json"
    record.write_bytes(orjson.dumps(orjson.loads(record.read_bytes()) | changes))
    reopened = open_repository()
    await reopened.open()
    assert reopened.files == []
    assert reopened.storage.damaged_ids == [file.id]
    assert repository.storage.content_path(file.id).read_bytes() == b"12345"


async def test_open_raises_store_unavailable_when_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    repository = BatchRepository(FileStorage(tmp_path / "kept"), 1)
    with pytest.raises(StoreUnavailable, match=r"\(BATCH_DIR\) cannot be used"):
        await repository.open()
    repository.close()


async def test_delete_file_refuses_the_input_of_an_unfinished_batch(
    open_repository: OpenRepository,
) -> None:
    repository = open_repository()
    await repository.open()
    file = await add_file(repository)
    batch = await add_batch(repository, file)
    with pytest.raises(InvalidRequest, match=f"{batch.id} needs the file"):
        await repository.delete_file(file.id)
    await repository.update_batch(batch.id, lambda batch, at: batch.fail_validation([], at))
    await repository.delete_file(file.id)
    with pytest.raises(NotFound):
        await add_batch(repository, file)


async def test_reserve_counts_the_bytes_of_stored_and_deleted_files(
    open_repository: OpenRepository,
) -> None:
    repository = open_repository()
    await repository.open()
    file = await add_file(repository, b"x" * 600)
    with pytest.raises(InsufficientStorage, match="BATCH_STORE_MB"):
        await add_file(repository, b"x" * 500)
    await repository.add_file(file)
    await repository.delete_file(file.id)
    await add_file(repository, b"x" * 900)


async def test_update_batch_applies_concurrent_changes_one_at_a_time(
    open_repository: OpenRepository,
) -> None:
    repository = open_repository()
    await repository.open()
    batch = await add_batch(repository, await add_file(repository))

    def start_or_cancel(batch: StoredBatch, at: int) -> StoredBatch:
        return batch.start("digest", 1, at) if batch.lines == 0 else batch.cancel(at)

    await asyncio.gather(*(repository.update_batch(batch.id, start_or_cancel) for _ in range(5)))
    assert repository.batch(batch.id).status == "cancelling"


def test_new_id_sorts_in_the_order_of_creation() -> None:
    repository = BatchRepository(FileStorage(Path("nowhere")), 1)
    ids = [repository.new_id(FILE_ID_PREFIX) for _ in range(300)]
    assert ids == sorted(ids)
    assert all(map(is_valid_id, ids))
    assert not any(map(is_valid_id, ("", "file-1", f"../{ids[0]}", f"{ids[0]}.json")))
    assert re.fullmatch(r"file-[0-9a-f]{28}", ids[0])
