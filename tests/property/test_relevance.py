"""Any scores and any number of results: the response is a sorted part of the documents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine import Relevance
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.rerank import RerankCall

SCORES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


@given(scores=SCORES, top_n=st.none() | st.integers(min_value=0, max_value=30))
def test_results_are_the_best_documents_in_order(scores: list[float], top_n: int | None) -> None:
    documents = [f"document {index}" for index in range(len(scores))]
    body = {"query": "a", "documents": documents, "top_n": top_n}
    call = RerankCall.from_body(body, "tiny", OPENAI)
    answer = call.encode_response([Relevance(score, 2) for score in scores])
    results = answer["results"]
    assert len(results) == min(top_n or len(scores), len(scores))
    returned = [each["relevance_score"] for each in results]
    assert returned == sorted(scores, reverse=True)[: len(results)]
    assert len({each["index"] for each in results}) == len(results)
    for each in results:
        assert each["relevance_score"] == scores[each["index"]]
        assert each["document"] == {"text": documents[each["index"]]}
    assert answer["usage"]["total_tokens"] == 2 * len(scores)
