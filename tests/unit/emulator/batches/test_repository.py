"""The book of files and batches: what it says is on disk, and the other way round."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import orjson
import pytest

from emulator.batches.batch import PREFIX as BATCH
from emulator.batches.batch import StoredBatch
from emulator.batches.file import PREFIX as FILE
from emulator.batches.file import StoredFile
from emulator.batches.file_storage import Folder, NoRoom
from emulator.batches.repository import BatchStore, Reservation, is_id
from handler.errors import InvalidRequest, NotFound
from jobs import StoreUnavailable

Opened = Callable[[], BatchStore]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens the one folder anew, as the next server does."""
    stores: list[BatchStore] = []

    def made() -> BatchStore:
        for store in stores:
            store.close()
        stores.append(BatchStore(Folder(tmp_path / "kept"), 1_000))
        return stores[-1]

    yield made
    stores[-1].close()


async def add(store: BatchStore, data: bytes = b"12345") -> StoredFile:
    upload = store.folder.new_upload("0123456789abcdef")
    upload.write_bytes(data)
    file = StoredFile(
        id=store.new_id(FILE), bytes=len(data), created_at=1, filename="a", purpose="batch"
    )
    await store.add_upload(file, upload, Reservation(store))
    return file


async def begin(store: BatchStore, file: StoredFile) -> StoredBatch:
    batch = StoredBatch(
        id=store.new_id(BATCH),
        endpoint="/v1/completions",
        input_file_id=file.id,
        created_at=1,
        expires_at=2,
        model="little",
    )
    await store.add_batch(batch)
    return batch


async def test_what_was_kept_is_there_after_a_restart(opened: Opened) -> None:
    store = opened()
    await store.open()
    files = [await add(store) for _ in range(3)]
    batch = await begin(store, files[0])
    changed = await store.change(batch.id, lambda batch, at: batch.begin("digest", 7, at))
    await store.remove_file(files[1].id)
    again = opened()
    await again.open()
    assert again.files == [files[0], files[2]]
    assert again.batches == [changed]
    assert again.folder.bytes_of(files[0].id).read_bytes() == b"12345"
    # What is made next comes behind all that there is.
    assert (await add(again)).id > files[2].id


async def test_bytes_without_a_record_and_old_journals_go_at_the_start(
    opened: Opened, tmp_path: Path
) -> None:
    store = opened()
    await store.open()
    file = await add(store)
    batch, ended = await begin(store, file), await begin(store, file)
    await store.change(ended.id, lambda batch, at: batch.refuse([], at))
    for each in (batch, ended):
        store.folder.journal_of(each.id).write_bytes(b"x")
    files, batches = tmp_path / "kept" / "files", tmp_path / "kept" / "batches"
    digits = "0" * 28
    for name in (f".upload-{digits[:16]}", f"file-{digits}", f"file-{digits}.json.new"):
        (files / name).write_bytes(b"half")
    lost = await add(store)
    store.folder.bytes_of(lost.id).unlink()
    again = opened()
    await again.open()
    assert {each.name for each in files.iterdir()} == {file.id, f"{file.id}.json"}
    assert {each.name for each in batches.iterdir()} == {
        f"{batch.id}.json",
        f"{batch.id}.partial",
        f"{ended.id}.json",
    }
    assert again.files == [file]


async def test_damaged_record_is_set_aside_and_the_rest_is_served(
    opened: Opened, tmp_path: Path
) -> None:
    store = opened()
    await store.open()
    file, other = await add(store), await add(store)
    batch, kept = await begin(store, file), await begin(store, other)
    store.folder.journal_of(batch.id).write_bytes(b"answers")
    kept_folder = tmp_path / "kept"
    for damage in (b"", b"{}", b"[]", b'{"status": "odd"}', b'{"id": "../../x"}'):
        for path in (
            kept_folder / "batches" / f"{batch.id}.json",
            kept_folder / "files" / f"{file.id}.json",
        ):
            path.write_bytes(damage)
        before = sorted(kept_folder.rglob("*"))
        again = opened()
        await again.open()
        assert again.files == [other]
        assert again.batches == [kept]
        assert again.folder.set_aside == [file.id, batch.id]
        assert sorted(kept_folder.rglob("*")) == before
        # Ids of what was set aside are not given to anything else.
        assert again.new_id(BATCH)[6:18] > batch.id[6:18]


@pytest.mark.parametrize(
    "changes", [{"bytes": "5"}, {"filename": 5}, {"id": "file-" + "0" * 28}, {"extra": 1}]
)
async def test_record_with_wrong_values_is_set_aside(
    opened: Opened, tmp_path: Path, changes: dict[str, object]
) -> None:
    store = opened()
    await store.open()
    file = await add(store)
    record = tmp_path / "kept" / "files" / f"{file.id}.json"
    record.write_bytes(orjson.dumps(orjson.loads(record.read_bytes()) | changes))
    again = opened()
    await again.open()
    assert again.files == []
    assert again.folder.set_aside == [file.id]
    assert store.folder.bytes_of(file.id).read_bytes() == b"12345"


async def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    store = BatchStore(Folder(tmp_path / "kept"), 1)
    with pytest.raises(StoreUnavailable, match=r"\(BATCH_DIR\) cannot be used"):
        await store.open()
    store.close()


async def test_a_file_that_a_batch_needs_stays(opened: Opened) -> None:
    store = opened()
    await store.open()
    file = await add(store)
    batch = await begin(store, file)
    with pytest.raises(InvalidRequest, match=f"{batch.id} needs the file"):
        await store.remove_file(file.id)
    await store.change(batch.id, lambda batch, at: batch.refuse([], at))
    await store.remove_file(file.id)
    with pytest.raises(NotFound):
        await begin(store, file)


async def test_bytes_are_counted_whatever_happens_at_once(opened: Opened) -> None:
    store = opened()
    await store.open()
    file = await add(store, b"x" * 600)
    with pytest.raises(NoRoom, match="BATCH_STORE_MB"):
        await add(store, b"x" * 500)
    await store.add_file(file)
    await store.remove_file(file.id)
    await add(store, b"x" * 900)


async def test_changes_come_one_after_the_other(opened: Opened) -> None:
    store = opened()
    await store.open()
    batch = await begin(store, await add(store))

    def one_more(batch: StoredBatch, at: int) -> StoredBatch:
        return batch.begin("digest", 1, at) if batch.lines == 0 else batch.cancel(at)

    await asyncio.gather(*(store.change(batch.id, one_more) for _ in range(5)))
    assert store.batch(batch.id).status == "cancelling"


def test_ids_sort_by_what_was_made_first() -> None:
    store = BatchStore(Folder(Path("nowhere")), 1)
    made = [store.new_id(FILE) for _ in range(300)]
    assert made == sorted(made)
    assert all(map(is_id, made))
    assert not any(map(is_id, ("", "file-1", f"../{made[0]}", f"{made[0]}.json")))
    assert re.fullmatch(r"file-[0-9a-f]{28}", made[0])
