"""Run the blocks of a page in order, and check their output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.page_runner import REPLACEMENTS_LONG, PageRunner, open_page_runner
from tests.acceptance.pages import ROOT, RUN, Block, blocks, not_run, pages

BLOCKS: Mapping[str, Sequence[Block]] = {
    path.relative_to(ROOT).as_posix(): blocks(path) for path in pages()
}
ALL = [block for each in BLOCKS.values() for block in each]
LISTED = frozenset(not_run())
# These pages start workers, clients, several servers and servers of a cloud, or repeat the README:
# `make test-long` runs them.
LONG_PAGES = frozenset(
    {
        *("docs/batch.md", "docs/index.md", "docs/runpod.md"),
        *("docs/faults.md", "docs/messages.md", "docs/models.md", "docs/ollama.md"),
        *("docs/openai.md", "docs/operations.md", "docs/responses.md"),
        *("docs/metrics.md", "docs/settings.md", "docs/torture.md", "docs/upstream.md"),
    }
)
# tests/long/test_handler_examples.py runs the blocks of this page in a server of their own.
EXAMPLES_PAGE = "docs/handler-examples.md"
# tests/image runs the blocks that call `docker` or run an image, with a daemon.
_CALLS_DOCKER = re.compile(r"^(?:docker |worker-rkllm serve --(?:build|image))", re.M)


def blocks_to_run(page: str, *, long: bool) -> Sequence[Block]:
    """Return the blocks of a page to run; with `long`, also the ones that take minutes."""
    if page == EXAMPLES_PAGE:
        return []
    return [
        block
        for block in BLOCKS[page]
        if (block.is_output or block.language in RUN)
        and (block.language != "json" or block.is_output)
        and (block.page, block.first_line) not in LISTED
        and not _CALLS_DOCKER.search(block.text)
        and (long or not any(words in block.text for words in REPLACEMENTS_LONG))
    ]


def docker_blocks() -> Sequence[Block]:
    """Return the blocks that call `docker` and can run without a board."""
    return [
        block
        for block in ALL
        if block.language == "sh"
        and _CALLS_DOCKER.search(block.text)
        and (block.page, block.first_line) not in LISTED
    ]


def long_pages() -> Sequence[str]:
    """Return every page with blocks to run."""
    return [page for page in BLOCKS if blocks_to_run(page, long=True)]


def short_pages() -> Sequence[str]:
    """Return the pages that run in seconds."""
    return [page for page in BLOCKS if page not in LONG_PAGES and blocks_to_run(page, long=False)]


def run_page(page: str, folder: Path, *, long: bool = False) -> None:
    """Run all blocks of a page, and check their output."""
    with open_page_runner(folder, long=long) as runner:
        output = ""
        for block in blocks_to_run(page, long=long):
            if block.is_output and block.language == "json":
                [documented], [printed] = documents(block.text), documents(output)
                assert keys(documented) == keys(printed), block
            elif block.is_output and block.text.startswith("data: "):
                check_stream(block, output)
            elif block.is_output:
                assert block.text.strip() == output.strip(), block
            else:
                output = runner.run(block)
                check_output(block, output, runner)


def check_stream(block: Block, output: str) -> None:
    """Compare the events on a page with the output of the command before them.

    A page may shorten a stream; its first event, its last one and `[DONE]` must have the same form.
    """
    documented, printed = event_keys(block.text), event_keys(output)
    assert (documented[0], documented[-2:]) == (printed[0], printed[-2:]), block


def event_keys(stream: str) -> Sequence[Any]:
    """Return the keys of each server-sent event's JSON; None for `[DONE]`."""
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line[:6] == "data: "]
    return [None if event == "[DONE]" else keys(json.loads(event)) for event in events]


def documents(text: str) -> Iterator[Any]:
    """Yield each JSON object in a text, whatever its layout."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            at += 1
        else:
            yield document


def keys(value: Any) -> Any:
    """Return the keys of JSON, at all levels, without the values."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keys(each) for each in value if isinstance(each, dict)]
    return None


def check_output(block: Block, output: str, runner: PageRunner) -> None:
    """Check output for errors, because a command can exit with 0 after an error response."""
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
                check_job(each)
    elif "sent.jsonl" in block.text:
        sent = (runner.folder / "sent.jsonl").read_text().splitlines()
        assert {runner.final_status(json.loads(line)["job"]) for line in sent} == {"COMPLETED"}, (
            block
        )
    elif block.language != "sh":
        # A handler writes to the SDK's log instead.
        assert output.strip() or "# my_handler" in block.text, block
    if output_file := re.search(r"-o (\w+\.jsonl)", block.text):
        requests, responses = (
            [json.loads(line) for line in (runner.folder / name).read_text().splitlines()]
            for name in ("requests.jsonl", output_file[1])
        )
        assert [each["custom_id"] for each in requests] == [each["custom_id"] for each in responses]
        assert {each["response"]["status_code"] for each in responses} == {200}


# R45, R46, R47
def check_job(output: Mapping[str, Any]) -> None:
    (choice,) = output["choices"]
    if output["streaming"]:
        joined = "".join(choice["deltas"])
        assert (joined != choice["text"]) == output["validation"]["sanitized"]
        assert choice["tokens"] == choice["deltas"]
        assert output["usage"]["output"] >= len(choice["deltas"])
    assert output["usage"]["total"] == output["usage"]["input"] + output["usage"]["output"]
