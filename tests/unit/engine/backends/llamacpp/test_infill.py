"""The fill-in-the-middle template, read from llama.cpp's own prompt."""

from __future__ import annotations

from typing import Any

import pytest

from engine.backends.llamacpp.infill import fill_infill_template, read_infill_template
from engine.errors import BackendFailed, UnsupportedParameter


class Server:
    """A fake llama.cpp server for a model that starts each text with `<s>`, or does not."""

    def __init__(self, prompt: str | None, *, begins: bool) -> None:
        self.prompt = prompt
        self.begins = begins

    def request(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/infill":
            if self.prompt is None:
                raise UnsupportedParameter("prefix token is missing")
            assert body["n_predict"] == 0
            return {"prompt": self.prompt}
        if path == "/detokenize":
            assert body == {"tokens": [1]}
            return {"content": "<s>"}
        # One token per marker; `<s>` occurs twice if the prompt already contains it.
        first = [1, 1] if self.begins else [7, 8]
        return {"tokens": [*first, 9]}


def frame(prompt: str | None, *, begins: bool = False) -> tuple[str, ...]:
    server: Any = Server(prompt, begins=begins)
    return read_infill_template(server)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<P>alpha<S>omega<M>", "<P>one<S>two<M>"),
        ("<S>omega<P>alpha<M>", "<S>two<P>one<M>"),
    ],
)
def test_template_has_the_models_order(prompt: str, expected: str) -> None:
    assert fill_infill_template(frame(prompt), "one", "two") == expected


def test_any_texts_are_filled_into_the_template() -> None:
    filled = fill_infill_template(frame("<S>omega<P>alpha<M>"), "my omega", "an alpha")
    assert filled == "<S>an alpha<P>my omega<M>"


def test_beginning_of_sequence_token_is_removed() -> None:
    assert (
        fill_infill_template(frame("<s><P>alpha<S>omega<M>", begins=True), "a", "b")
        == "<P>a<S>b<M>"
    )


def test_model_without_infill_markers_has_no_template() -> None:
    assert frame(None) == ()


def test_prompt_without_both_placeholders_is_refused() -> None:
    with pytest.raises(BackendFailed, match="<P>alpha<M>"):
        frame("<P>alpha<M>")
