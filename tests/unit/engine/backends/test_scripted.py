"""Each feature of the script format, without an engine."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.backends.base import RunResult
from engine.backends.options import ScriptedOptions
from engine.backends.scripted import ScriptedBackend
from engine.errors import BackendFailed, ModelLoadFailed, PromptTooLong
from engine.output import FinishReason, TokenLogprob
from engine.request import Chat, Message, RenderedPrompt, SamplingParams
from tests.conftest import ScriptFactory


class Loaded:
    """A loaded backend that records its pieces."""

    def __init__(self, path: Path | None) -> None:
        self.backend = ScriptedBackend(
            ScriptedOptions(model_path=None if path is None else str(path))
        )
        self.capabilities = self.backend.load()
        self.pieces: list[bytes] = []
        self.logprobs: list[TokenLogprob | None] = []
        self.first = threading.Event()

    def run(
        self,
        prompt: RenderedPrompt = "hi",
        *,
        enough: Callable[[int], bool] = lambda _: False,
        run_id: int = 1,
        **sampling: Any,
    ) -> RunResult:
        def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            self.pieces.append(piece)
            self.logprobs.append(logprob)
            self.first.set()
            return enough(len(self.pieces))

        return self.backend.run(run_id, prompt, SamplingParams(**sampling), on_piece)


def test_without_a_script_the_prompt_is_repeated_word_by_word() -> None:
    loaded = Loaded(None)
    end = loaded.run("one two\n three ")
    assert loaded.pieces == [b"one", b" two", b"\n three", b" "]
    assert (end.prompt_tokens, end.completion_tokens, end.reason) == (4, 4, FinishReason.STOP)


def test_token_ids_are_repeated_as_numbers() -> None:
    loaded = Loaded(None)
    loaded.run((5, 7))
    assert loaded.pieces == [b"5", b" 7"]


def test_first_matching_answer_is_used(script: ScriptFactory) -> None:
    path = script(
        {"when": "^weather", "pieces": ["rain"]},
        {"when": "e", "pieces": ["sun"]},
    )
    loaded = Loaded(path)
    loaded.run("weather?")
    loaded.run("the weather?")
    assert loaded.pieces == [b"rain", b"sun"]
    with pytest.raises(BackendFailed, match="no answer for this prompt"):
        loaded.run("lots")


def test_pieces_may_be_text_or_parts_of_characters(script: ScriptFactory) -> None:
    loaded = Loaded(script({"pieces": ["a", {"text": "b"}, {"hex": "f09f"}, {"hex": "9880"}]}))
    assert loaded.run().completion_tokens == 4
    assert loaded.pieces == [b"a", b"b", b"\xf0\x9f", b"\x98\x80"]


def test_repeat_is_finite_or_endless(script: ScriptFactory) -> None:
    loaded = Loaded(script({"when": "twice", "pieces": ["a", "b"], "repeat": 2}, {"repeat": -1}))
    loaded.run("twice")
    assert b"".join(loaded.pieces) == b"abab"
    loaded.pieces.clear()
    end = loaded.run("x", enough=lambda count: count == 1000)
    assert (len(loaded.pieces), end.completion_tokens) == (1000, 1000)


def test_reason_comes_from_the_script(script: ScriptFactory) -> None:
    loaded = Loaded(script({"pieces": ["a"], "reason": "content_filter"}))
    assert loaded.run().reason is FinishReason.CONTENT_FILTER


def test_context_bounds_prompt_and_answer_together(script: ScriptFactory) -> None:
    loaded = Loaded(script({"pieces": ["a"], "repeat": -1}, context_length=5))
    end = loaded.run("1 2 3")
    assert (loaded.pieces, end.reason) == ([b"a", b"a"], FinishReason.LENGTH)
    with pytest.raises(PromptTooLong, match="5 tokens do not fit the context of 5") as caught:
        loaded.run("1 2 3 4 5")
    assert caught.value.details == {"prompt_tokens": 5, "context_length": 5}


def test_error_fails_the_run_at_its_position(script: ScriptFactory) -> None:
    loaded = Loaded(script({"pieces": ["a", {"error": "out of ink"}, "b"]}))
    with pytest.raises(BackendFailed, match="out of ink"):
        loaded.run()
    assert loaded.pieces == [b"a"]


def test_logprobs_are_reported_on_request(script: ScriptFactory) -> None:
    loaded = Loaded(script({"pieces": [{"text": "a", "logprob": -0.5}, "b"]}))
    loaded.run()
    loaded.run(logprobs=1)
    assert loaded.logprobs == [
        None,
        None,
        TokenLogprob("a", -0.5, (("a", -0.5),)),
        TokenLogprob("b", -1.0, (("b", -1.0),)),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {"pieces": ["a"], "prefill_ms": 60_000},
        {"pieces": [{"text": "a", "delay_ms": 60_000}]},
        {"pieces": ["a"], "delay_ms": 60_000},
        {"pieces": [{"hang_s": 60}]},
    ],
    ids=["prefill", "piece", "answer", "hang"],
)
@pytest.mark.parametrize("when", ["before", "during"])
def test_abort_ends_every_kind_of_delay(
    script: ScriptFactory, answer: dict[str, Any], when: str
) -> None:
    loaded = Loaded(script(answer))
    if when == "before":
        loaded.backend.abort(1)
    thread = threading.Thread(target=loaded.run)
    thread.start()
    if when == "during":
        loaded.backend.abort(1)
    thread.join(10)
    assert not thread.is_alive()
    assert loaded.pieces == []


def test_deaf_delay_ignores_aborts(script: ScriptFactory) -> None:
    path = script(
        {"when": "prefill", "pieces": [], "prefill_ms": 200, "deaf_prefill": True},
        {"pieces": [{"hang_s": 0.2, "deaf": True}]},
    )
    for prompt in ("prefill", "hang"):
        loaded = Loaded(path)
        loaded.backend.abort(1)
        thread = threading.Thread(target=loaded.run, args=(prompt,))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        thread.join(10)


def test_abort_of_another_run_has_no_effect(script: ScriptFactory) -> None:
    loaded = Loaded(script({"pieces": ["a"], "prefill_ms": 20}))
    loaded.backend.abort(2)
    loaded.run(run_id=1)
    assert loaded.pieces == [b"a"]


def test_script_overrides_capabilities(script: ScriptFactory) -> None:
    path = script(slots=2, context_length=99, capabilities={"seed": False, "grammar": True})
    capabilities = Loaded(path).capabilities
    assert (capabilities.slots, capabilities.context_length) == (2, 99)
    assert (capabilities.seed, capabilities.grammar) == (False, True)
    assert capabilities.backend == "scripted"


def test_chat_and_tokens() -> None:
    backend = Loaded(None).backend
    chat = Chat((Message("system", "Be brief."), Message("user", "Hi")))
    assert backend.render(chat) == "system: Be brief.\nuser: Hi\nassistant:"
    assert backend.tokenize("one two one") != backend.tokenize("one two two")
    assert len(backend.tokenize("one two one")) == 3


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "5",
        '{"answer": []}',
        '{"answers": 5}',
        '{"answers": [{"pieces": [5]}]}',
        '{"answers": [{"pieces": [{"text": 5}]}]}',
        '{"answers": [{"pieces": [{"hex": "xyz"}]}]}',
        '{"answers": [{"pieces": [{"txet": "a"}]}]}',
        '{"answers": [{"when": "("}]}',
        '{"answers": [{"reason": "boredom"}]}',
        '{"capabilities": {"flight": true}}',
        '{"capabilities": 5}',
        '{"load_signal": "SIGNOTHING"}',
    ],
)
def test_bad_script_fails_the_load_and_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ModelLoadFailed, match=r"MODEL_PATH: .*bad\.json is not a script: ."):
        ScriptedBackend(ScriptedOptions(model_path=str(path))).load()


def test_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"MODEL_PATH: there is no file .*gone\.json"):
        ScriptedBackend(ScriptedOptions(model_path=str(tmp_path / "gone.json"))).load()


def test_load_error_comes_from_the_script(script: ScriptFactory) -> None:
    with pytest.raises(ModelLoadFailed, match="no memory today"):
        ScriptedBackend(
            ScriptedOptions(model_path=str(script(load_error="no memory today")))
        ).load()


def test_embeddings_depend_on_words_and_are_normalised() -> None:
    backend = Loaded(None).backend
    vectors = {text: backend.embed(text)[0] for text in ("a red cat", "a red dog", "so far away")}
    same_words, tokens = backend.embed("a  red cat")
    assert (same_words, tokens) == (vectors["a red cat"], 3)
    assert all(math.isclose(math.hypot(*vector), 1) for vector in vectors.values())

    def nearness(one: str, other: str) -> float:
        return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

    assert nearness("a red cat", "a red dog") > nearness("a red cat", "so far away") + 0.2
    assert backend.embed((5, 7)) == backend.embed("5 7")


def test_embedding_of_a_long_text_is_refused(script: ScriptFactory) -> None:
    # R54
    backend = Loaded(script(context_length=3)).backend
    assert backend.embed("one two")[1] == 2
    with pytest.raises(PromptTooLong, match=r"^input: 3 tokens do not fit"):
        backend.embed("one two three")


def test_infill_marks_the_gap() -> None:
    assert Loaded(None).backend.infill(("before ", " after")) == "before <gap> after"
