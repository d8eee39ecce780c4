"""A chat of ten turns over llama.cpp: the tenth first token compared with the second.

Each prompt is the whole chat so far. Its computed part is in the engine's cache, and a server that
renders it differently or uses another slot computes it all again. Each server gets its own answers
back, as its clients would send them. Both are measured turn by turn, one after the other, so that
neighbours in time are the same turn.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from benchmarks.client import ask
from benchmarks.greedy import CHAT, answer_text, chat, user_message
from benchmarks.measure import Pairs, Table, max_budget
from benchmarks.options import Options, print_progress

_TURNS = 10
_ANSWER_TOKENS = 24
_LIMIT_S = 1800.0
# The first turn also computes the template's beginning, so the second one is the reference.
_EARLY, _LATE = 2, _TURNS
_GROWTH = max_budget(1.5)
_RATIO_BUDGET = max_budget(1.1, "ratio")


@dataclass(slots=True)
class _Chat:
    """One server's side of a chat; `firsts_ms` are the times to the first tokens."""

    port: int
    messages: list[dict[str, str]] = field(default_factory=list)
    firsts_ms: list[float] = field(default_factory=list)

    async def send(self, content: str) -> None:
        """Run the next turn."""
        self.messages.append(user_message(content))
        reply = await ask(self.port, CHAT, chat(self.messages, _ANSWER_TOKENS, streamed=True))
        answer = answer_text(reply, _ANSWER_TOKENS, streamed=True)
        self.messages.append({"role": "assistant", "content": answer})
        self.firsts_ms.append(reply.first_text_ms)

    def first_ms(self, turn: int) -> float:
        """Return the time to the first token of a turn, counted from 1."""
        return self.firsts_ms[turn - 1]

    @property
    def growth(self) -> float:
        """Return the time of the late turn divided by that of the early one."""
        return self.first_ms(_LATE) / self.first_ms(_EARLY)


async def ten_turns(table: Table, options: Options, ours: int, peer: int) -> None:
    """Compare two idle servers with the same model."""
    early, late, growth = Pairs(), Pairs(), Pairs()
    same = 0
    async with asyncio.timeout(_LIMIT_S):
        # The first chat is a warm-up.
        for number in range(options.pairs + 1):
            print_progress(
                f"{table.title}: chat {number} of {options.pairs}" if number else table.title
            )
            of_ours, of_peer = _Chat(ours), _Chat(peer)
            for turn in range(_TURNS):
                for each in (of_ours, of_peer):
                    await each.send(_message(number, turn))
            if not number:
                continue
            early.add(of_ours.first_ms(_EARLY), of_peer.first_ms(_EARLY))
            late.add(of_ours.first_ms(_LATE), of_peer.first_ms(_LATE))
            growth.add(of_ours.growth, of_peer.growth)
            same += of_ours.messages == of_peer.messages
    table.compare(f"time to first token, turn {_EARLY}", "ms", early, _RATIO_BUDGET)
    table.compare(f"time to first token, turn {_LATE}", "ms", late, _RATIO_BUDGET)
    table.compare(f"turn {_LATE} over turn {_EARLY}", "x", growth, _GROWTH)
    table.notes.append(
        f"Answers of {_ANSWER_TOKENS} tokens. Of {options.pairs} chats, {same} were identical on "
        "both sides."
    )


def _message(number: int, turn: int) -> str:
    """Return a message of constant length with unique first words."""
    return (
        f"Note {number}.{turn}: yesterday we walked from the harbour to the old mill, and on the "
        f"way somebody counted {number * 17 + turn * 5 + 3} boats, most of them painted blue. What "
        "would you ask the people who live there, and what would you rather not ask them at all?"
    )
