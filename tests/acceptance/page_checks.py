"""What is expected of a page whose blocks are done one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.pages import ROOT, RUN, Block, blocks, not_run, pages
from tests.acceptance.reader import PUT_IN_LONG, Reader, reader

BLOCKS: Mapping[str, Sequence[Block]] = {
    path.relative_to(ROOT).as_posix(): blocks(path) for path in pages()
}
ALL = [block for each in BLOCKS.values() for block in each]
LISTED = frozenset(not_run())
# They start workers, clients and servers of a cloud, or say what the README says as well:
# `make test-long` has the time.
LONG_PAGES = frozenset({"docs/batch.md", "docs/index.md", "docs/runpod.md"})


def to_be_run(page: str, *, long: bool) -> Sequence[Block]:
    """Return what a reader of a page runs; what takes minutes only if there is time."""
    return [
        block
        for block in BLOCKS[page]
        if (block.is_output or block.language in RUN)
        and (block.language != "json" or block.is_output)
        and (block.page, block.first_line) not in LISTED
        and (long or not any(words in block.text for words in PUT_IN_LONG))
    ]


def long_pages() -> Sequence[str]:
    """Return every page that says what to do."""
    return [page for page in BLOCKS if to_be_run(page, long=True)]


def short_pages() -> Sequence[str]:
    """Return those of them that are read in seconds."""
    return [page for page in BLOCKS if page not in LONG_PAGES and to_be_run(page, long=False)]


def read_page(page: str, folder: Path, *, long: bool = False) -> None:
    """Do all that a page says, and look at what comes of it."""
    with reader(folder, long=long) as somebody:
        output = ""
        for block in to_be_run(page, long=long):
            if block.is_output and block.language == "json":
                [shown], [printed] = documents(block.text), documents(output)
                assert keys(shown) == keys(printed), block
            elif block.is_output and block.text.startswith("data: "):
                judge_shown_stream(block, output)
            elif block.is_output:
                assert block.text.strip() == output.strip(), block
            else:
                output = somebody.run(block)
                judge(block, output, somebody)


def judge_shown_stream(block: Block, output: str) -> None:
    """Compare the events of a page with those that the command before it printed.

    A page may shorten a stream; its first event, its last one and `[DONE]` must have the same form.
    """
    shown, printed = event_keys(block.text), event_keys(output)
    assert (shown[0], shown[-2:]) == (printed[0], printed[-2:]), block


def event_keys(stream: str) -> Sequence[Any]:
    """Return the keys of each server-sent event's JSON; None for `[DONE]`."""
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line[:6] == "data: "]
    return [None if event == "[DONE]" else keys(json.loads(event)) for event in events]


def documents(text: str) -> Iterator[Any]:
    """Find the JSON in what was printed, however it is laid out."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            at += 1
        else:
            yield found


def keys(value: Any) -> Any:
    """Return which keys JSON has, and not what is in them."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keys(each) for each in value if isinstance(each, dict)]
    return None


def judge(block: Block, output: str, somebody: Reader) -> None:
    """A command that ends with 0 may have been answered with an error all the same."""
    if "| grep" in block.text:
        return
    if "curl -N" in block.text:
        events = output.strip().split("\n\n")
        assert events[-1] == "data: [DONE]", block
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert chunks[-1]["choices"][0]["finish_reason"], block
    elif "curl" in block.text or "json.tool" in block.text:
        assert output.strip(), block
        for each in documents(output):
            assert not each.get("error"), block
            assert each.get("status") not in ("FAILED", "TIMED_OUT", "CANCELLED"), block
            if "timings" in each:
                judge_job(each)
    elif "sent.jsonl" in block.text:
        sent = (somebody.folder / "sent.jsonl").read_text().splitlines()
        assert {somebody.ended(json.loads(line)["job"]) for line in sent} == {"COMPLETED"}, block
    elif block.language != "sh":
        # What a handler says is in the SDK's log.
        assert output.strip() or "# my_handler" in block.text, block
    if output_file := re.search(r"-o (\w+\.jsonl)", block.text):
        asked, answered = (
            [json.loads(line) for line in (somebody.folder / name).read_text().splitlines()]
            for name in ("requests.jsonl", output_file[1])
        )
        assert [each["custom_id"] for each in asked] == [each["custom_id"] for each in answered]
        assert {each["response"]["status_code"] for each in answered} == {200}


# R45, R46, R47
def judge_job(output: Mapping[str, Any]) -> None:
    (choice,) = output["choices"]
    if output["streaming"]:
        joined = "".join(choice["deltas"])
        assert (joined != choice["text"]) == output["validation"]["sanitized"]
        assert choice["tokens"] == choice["deltas"]
        assert output["usage"]["output"] >= len(choice["deltas"])
    assert output["usage"]["total"] == output["usage"]["input"] + output["usage"]["output"]
