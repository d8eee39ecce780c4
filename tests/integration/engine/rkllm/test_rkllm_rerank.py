"""Reranking with both ABIs: a model whose logits are known scores each pair in a fresh run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import EMBED, RERANK, Engine, Priority
from engine.backends.options import options_from_wire
from engine.backends.rkllm.board.profile import Profile, write_profile
from engine.doctor.examiner import Doctor
from engine.errors import BackendFailed, ModelLoadFailed, PromptTooLong, UnsupportedParameter
from handler.apis.openai import service
from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from tests.fake_rkllm import read_log
from tests.fake_rkllm.oracle import logits_after
from tests.fake_rkllm.tokenizer import RERANK_TOKENS, tokenizer, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask
from tests.unit.engine.backends.rkllm.logits.test_reranker import PROMPT

pytestmark = pytest.mark.usefixtures("examined_once")
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

NAME = "qwen3-reranker"
SIZE = 264
MODEL = f'vocabulary {SIZE}\nprefix_reuse on\nanswer\n  say "text"\n'
QUERY, DOCUMENTS = "capital?", ["Paris.", "Bananas are yellow.", "no", "Paris."]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test, with Qwen3-Reranker's tokens."""
    return write_tokenizer(tmp_path, added=RERANK_TOKENS)


def reranker(rkllm_of: RkllmMaker, script: str = MODEL, **options: Any) -> Engine:
    """Return an engine without a result of the doctor: reranking needs none."""
    return rkllm_of(script, **{"mode": "logits", "model_name": NAME, "profile": None, **options})


def expected(query: str, document: str) -> tuple[float, int]:
    """Return the expected score of a pair and the tokens of its prompt."""
    made = tokenizer(RERANK_TOKENS)
    text = PROMPT.replace("capital?", query).replace("Paris.", document)
    tokens = made.encode(text, add_special_tokens=False).ids
    row = logits_after(tokens, SIZE)
    yes, no = (math.exp(row[made.token_to_id(answer)]) for answer in ("yes", "no"))
    return yes / (yes + no), len(tokens)


async def test_score_is_the_probability_of_yes(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = reranker(rkllm_of)
    capabilities = await engine.ready()
    assert (capabilities.rerank, capabilities.embeddings) == (True, False)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    scores = await engine.compute(RERANK, pairs, Priority.INTERACTIVE)
    wanted = [expected(*pair) for pair in pairs]
    assert [each.score for each in scores] == pytest.approx([score for score, _ in wanted])
    assert [each.tokens for each in scores] == [tokens for _, tokens in wanted]
    await engine.close()
    # Each prompt is computed in one run, of which nothing is kept or shared.
    contexts = [entry.values for entry in read_log(call_log) if entry.name == "context"]
    assert [int(each["new"]) for each in contexts] == [each.tokens for each in scores]
    assert {each["held"] for each in contexts} == {"0"}


@only_threads
async def test_answers_and_scores_do_not_share_a_cache(rkllm_of: RkllmMaker) -> None:
    engine = reranker(rkllm_of)
    for _ in range(2):
        # It generates as in the other mode: without logits of tokens that follow others.
        assert (await ask(engine, "hi"))[0] == "text"
        [score] = await engine.compute(RERANK, [(QUERY, "Paris.")], Priority.JOB)
        assert score.score == pytest.approx(expected(QUERY, "Paris.")[0])


@only_threads
@pytest.mark.parametrize("worked", [False, None])
async def test_library_without_logits_of_a_history_scores(
    rkllm_of: RkllmMaker,
    library: Path,
    model: Callable[[str], Path],
    tmp_path: Path,
    worked: bool | None,
) -> None:
    path = model(f"history_logits crash\n{MODEL}")
    write_profile(tmp_path / "profile", library, path, Profile(logits_with_history=worked))
    engine = rkllm_of(path, mode="logits", model_name=NAME, profile=str(tmp_path / "profile"))
    [score] = await engine.compute(RERANK, [(QUERY, "Paris.")], Priority.JOB)
    assert score.score == pytest.approx(expected(QUERY, "Paris.")[0])


@only_threads
async def test_failed_run_and_long_pair_are_reported(rkllm_of: RkllmMaker) -> None:
    engine = reranker(rkllm_of, "vocabulary 100\nanswer\n", context_length=480)
    with pytest.raises(BackendFailed, match="gave 100 logits, and none for the tokens"):
        await engine.compute(RERANK, [(QUERY, "a")], Priority.JOB)
    params = [("query", "documents[0]")]
    with pytest.raises(PromptTooLong) as caught:
        await engine.compute(RERANK, [(QUERY, "a" * 300)], Priority.JOB, params=params)
    assert caught.value.details["param"] == "documents[0]"
    failing = reranker(rkllm_of, f"{MODEL}  returns 3\n")
    with pytest.raises(BackendFailed, match="rkllm_run answered 3"):
        await failing.compute(RERANK, [(QUERY, "a")], Priority.JOB)


async def call(engine: Engine, route: str, body: dict[str, Any]) -> Any:
    return await OpenAIService(Pipeline(engine, NAME)).answer_without_generation(route, body)


@only_threads
async def test_openai_routes_sort_and_score(rkllm_of: RkllmMaker) -> None:
    engine = reranker(rkllm_of)
    documents = DOCUMENTS[:3]
    scores = [expected(QUERY, document) for document in documents]
    answer = await call(engine, service.RERANK, {"query": QUERY, "documents": documents})
    order = sorted(range(3), key=lambda index: -scores[index][0])
    assert [each["index"] for each in answer["results"]] == order
    assert answer["usage"]["prompt_tokens"] == sum(tokens for _, tokens in scores)
    answer = await call(engine, service.SCORE, {"text_1": QUERY, "text_2": documents})
    assert [each["score"] for each in answer["data"]] == [
        pytest.approx(score) for score, _ in scores
    ]


@only_threads
@pytest.mark.parametrize(
    ("has_files", "settings"),
    [
        (True, "RKLLM_MODE=logits"),
        (
            False,
            "RKLLM_MODE=logits and the tokenizer files of the model (RKLLM_TOKENIZER)",
        ),
    ],
)
async def test_other_mode_names_the_setting(
    rkllm_of: RkllmMaker, files: Path, call_log: Path, has_files: bool, settings: str
) -> None:
    if not has_files:
        (files / "tokenizer.json").unlink()
    engine = reranker(rkllm_of, mode="generate")
    reason = f"{NAME} is a reranking model by its name, and scores texts only with {settings}"
    for route, body, param in (
        (service.RERANK, {"query": QUERY, "documents": DOCUMENTS}, "query"),
        (service.SCORE, {"queries": QUERY, "documents": DOCUMENTS}, "queries"),
    ):
        with pytest.raises(UnsupportedParameter) as caught:
            await call(engine, route, body)
        assert (caught.value.message, caught.value.details["param"]) == (
            f"{param}: {reason}",
            param,
        )
    with pytest.raises(UnsupportedParameter) as caught:
        await engine.compute(RERANK, [(QUERY, "a")], Priority.JOB)
    assert caught.value.message == f"query: {reason}"
    assert (await ask(engine, "hi"))[0] == "text"


@only_threads
@pytest.mark.parametrize("mode", ["generate", "logits"])
async def test_reranking_model_has_no_embeddings(rkllm_of: RkllmMaker, mode: str) -> None:
    engine = reranker(rkllm_of, mode=mode)
    with pytest.raises(UnsupportedParameter) as caught:
        await call(engine, service.EMBEDDINGS, {"input": "a"})
    assert caught.value.message == f"input: {NAME} is a reranking model, which has no embeddings"
    with pytest.raises(UnsupportedParameter):
        await engine.compute(EMBED, ["a"], Priority.JOB)


@only_threads
async def test_logits_mode_needs_tokenizer_files(rkllm_of: RkllmMaker, files: Path) -> None:
    (files / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadFailed, match="RKLLM_MODE=logits needs the tokenizer files"):
        await reranker(rkllm_of).ready()


def test_doctor_makes_no_vector_of_a_reranking_model(
    library: Path, model: Callable[[str], Path]
) -> None:
    options = {
        "model_path": str(model(f"chatter none\n{MODEL}")),
        "model_name": NAME,
        "lib_path": str(library),
        "mode": "logits",
    }
    steps = {step for step, *_ in Doctor(options_from_wire("rkllm", options)).examine()}
    assert "closing" in steps
    assert "vector" not in steps
