"""Decodes UTF-8 that arrives in pieces cut at any byte."""

from __future__ import annotations

import codecs

_incremental = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """Decodes one stream of UTF-8 that arrives cut at arbitrary bytes.

    Tokenisers with a byte fallback spread one emoji over several tokens, so a piece may end inside
    a character: its bytes wait for the next piece. A character that is incomplete at the end of the
    stream was cut off by a limit. It is dropped, because the model did not write U+FFFD. Bytes that
    cannot become UTF-8 do turn into U+FFFD, because the model wrote invalid bytes. Owned by the
    thread that produces the pieces.
    """

    __slots__ = ("decode",)

    def __init__(self) -> None:
        # The bound method itself: it is called for each token, and a wrapper would double the cost.
        self.decode = _incremental("replace").decode
