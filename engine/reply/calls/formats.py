"""The table of the forms in which models write tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.reply.calls.gemma_calls import read_gemma_calls
from engine.reply.calls.json_calls import read_json_calls
from engine.reply.calls.named_calls import (
    read_deepseek_calls,
    read_harmony_call,
    read_mistral_calls,
    read_named_arguments,
)
from engine.reply.calls.pythonic_calls import read_pythonic_calls
from engine.reply.calls.xml_calls import read_xml_calls
from engine.reply.marks import Marks
from engine.reply.parts import Reading
from engine.reply.reply_format import ReplyFormat, ToolForm
from engine.reply.source import TextSource

# Reads the calls at the position of the source and stops after the last one. Anything that is not a
# call of a known function is left to be read as text.
ReadCalls = Callable[[TextSource, ReplyFormat], Reading[None]]


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way to write calls.

    The calls follow one of the marks `opens`, or begin with one of `starts`. One of `closes` may
    come after them.
    """

    family: ToolForm
    read: ReadCalls
    opens: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()


_HARMONY_OPENS = tuple(
    f"{start}{channel}to=functions."
    for start in ("", "<|start|>assistant")
    for channel in ("<|channel|>commentary ", " ")
    if start or channel.strip()
)
# Forms with the same mark are tried in this order.
CALL_FORMS = (
    CallForm(
        "qwen_xml", read_xml_calls, ("<tool_call>",), ("<function=",), closes=("</tool_call>",)
    ),
    CallForm("hermes", read_json_calls, ("<tool_call>",), closes=("</tool_call>",)),
    CallForm("mistral", read_mistral_calls, ("[TOOL_CALLS]",)),
    CallForm(
        "llama",
        read_json_calls,
        ("<|python_tag|>",),
        ("{",),
        closes=("<|eom_id|>", "<|eot_id|>"),
    ),
    CallForm(
        "llama_pythonic",
        read_pythonic_calls,
        ("<|python_start|>",),
        ("[",),
        closes=("<|python_end|>",),
    ),
    CallForm("gemma4", read_gemma_calls, ("<|tool_call>",), closes=("<tool_call|>",)),
    CallForm("phi4", read_json_calls, ("functools", "<|tool_call|>"), closes=("<|/tool_call|>",)),
    CallForm(
        "deepseek",
        read_deepseek_calls,
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581begin\uff5c>"),
        closes=("<\uff5ctool\u2581calls\u2581end\uff5c>",),
    ),
    CallForm("harmony", read_harmony_call, _HARMONY_OPENS, closes=("<|call|>", "<|end|>")),
    CallForm("json", read_json_calls, ("```json", "```tool_call", "```"), closes=("```",)),
    CallForm("json", read_json_calls, starts=("{", "[")),
)


class CallForms:
    """The forms that are recognised in one answer, which is all or those of one family.

    A call counts only if it names a function of the request, so text is hardly ever taken for one.
    A call that a grammar holds is JSON in any family.
    """

    def __init__(self, reply_format: ReplyFormat) -> None:
        self._format = reply_format
        family = reply_format.tool_form
        starts = tuple(f"{name}[ARGS]" for name in reply_format.functions)
        forms = (*CALL_FORMS, CallForm("mistral", read_named_arguments, starts=starts))
        used = [
            form
            for form in forms
            if family is None
            or form.family == family
            or (reply_format.constrains_calls and form.family == "json")
        ]
        self._by_mark: dict[str, list[tuple[CallForm, bool]]] = {}
        for form in used:
            for mark in form.opens:
                self._by_mark.setdefault(mark, []).append((form, True))
            for mark in form.starts:
                self._by_mark.setdefault(mark, []).append((form, False))
        self.marks = tuple(self._by_mark)
        # Most brackets in a text begin no call, which the next character shows.
        names = tuple(reply_format.functions)
        first_characters = "".join({name[0] for name in names if name})
        self.openings = Marks(self.marks, {"[": "{,;" + first_characters, "{": '"{}'})
        self.reached = 0

    def read(self, source: TextSource) -> Reading[None]:
        """Read the calls at the position, and the closing mark after them.

        The forms that share the opening mark are tried in turn. If no form reads a call, the output
        before `reached` has no calls, and the parser searches from there.
        """
        start = self.reached = source.position
        mark = yield from source.skip(*self.marks)
        for form, is_open in self._by_mark.get(mark, ()):
            source.position = start + (len(mark) if is_open else 0)
            has_call = False
            for part in form.read(source, self._format):
                has_call = has_call or part is not None
                yield part
            if has_call:
                if form.closes:
                    yield from source.skip_after_space(*form.closes)
                break
            self.reached = max(self.reached, source.position)
