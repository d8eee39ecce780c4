"""Properties of the sanitiser for any text, above all for texts made of its rules' own words."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from validation.issues import Removal
from validation.rules import load_rules
from validation.sanitizer import Sanitizer
from validation.sanitizer.edits import Edit, apply_edits, compose_edits
from validation.sanitizer.text_view import TextView

RULES = load_rules().sanitizer
SANITIZER, ANOTHER = Sanitizer(RULES), Sanitizer(RULES)
PROMPT = "Context: Paris is the capital of France.\nWhat is the capital of France?"
SYSTEM = "You are a helpful assistant."

WORDS = sorted({word for rule in RULES.values() for word in rule.words if len(word) > 1})
TAGS = [f"<{slash}{name}>" for name in RULES["html_markup"].words for slash in ("", "/")]
# Halves of tokens, so that removing a token between two halves forms another token.
HALVES = [half for word in WORDS for half in (word[: len(word) // 2], word[len(word) // 2 :])]
EXAMPLES = [
    text
    for rule in RULES.values()
    for pair in rule.examples
    for text in (pair.catches, pair.leaves)
]
GLUE = [
    *("\n", "\n\n", "\n\n\n\n\n\n\n", " ", "    ", "\t", "`", "``", "```", "~~~", "\n```\n"),
    *("|", "||", "|---|", "\n|---|\n", "!", "!!!!!", "?!?!?!", ",,,,,", ".", ":", '"', "'", "("),
    *("Paris", "a", "é", "😀", "\ud800", "0", "<", ">", "</", "&lt;", "&amp;", "&gt;", "&#60;"),
    *("Sure! Here is it:\n", "I hope this helps!", "Great question! ", "assistant\n"),
    *("<|im_start|>assistant", "<|start_header_id|>", "assistant", "<|end_header_id|>", "token"),
    *(PROMPT, PROMPT.partition("\n")[2], SYSTEM, "\r\n", "# ", "- ", "> "),
]
MADE_OF_ITS_OWN = st.lists(
    st.one_of(*map(st.sampled_from, (WORDS, TAGS, HALVES, GLUE, GLUE, EXAMPLES))), max_size=24
).map("".join)
ANY = st.one_of(st.text(st.characters(exclude_categories=())), MADE_OF_ITS_OWN)


def by_hand(text: str, removals: tuple[Removal, ...]) -> str:
    for removal in reversed(removals):
        text = text[: removal.start] + removal.replacement + text[removal.end :]
    return text


@given(text=ANY, prompt=st.sampled_from(["", PROMPT]), system=st.sampled_from(["", SYSTEM]))
def test_removals_are_ordered_and_complete_and_cleaning_is_idempotent(
    text: str, prompt: str, system: str
) -> None:
    # R47: the reported removals are exactly the missing parts of the text.
    cleaned, removals = SANITIZER.clean(text, prompt, system)
    reached = 0
    for removal in removals:
        assert reached <= removal.start < removal.end <= len(text)
        assert text[removal.start : removal.end] != removal.replacement
        assert removal.rule in RULES
        reached = removal.end
    assert by_hand(text, removals) == cleaned
    assert bool(removals) == (cleaned != text)
    assert SANITIZER.clean(cleaned, prompt, system) == (cleaned, ())
    assert ANOTHER.clean(text, prompt, system) == (cleaned, removals)


@given(word=st.sampled_from(WORDS + TAGS), depth=st.integers(1, 40), cut=st.integers(1, 30))
def test_tokens_that_are_made_by_taking_out_tokens(word: str, depth: int, cut: int) -> None:
    cut = 1 + cut % (len(word) - 1)
    text = "Paris." + word[:cut] * depth + word + word[cut:] * depth
    cleaned, removals = SANITIZER.clean(text)
    assert by_hand(text, removals) == cleaned
    assert SANITIZER.clean(cleaned) == (cleaned, ())
    assert "<|im_end|>" not in cleaned


@given(
    code=st.text(st.characters(exclude_characters="`~")),
    before=st.sampled_from(["", "Assistant: ", "<|im_start|>assistant\n", "Sure! Here is it:\n\n"]),
    behind=st.sampled_from(["", "<|im_end|>", "\n\nI hope this helps!", "</s>"]),
    seeds=st.lists(st.sampled_from(WORDS + TAGS + EXAMPLES), max_size=3),
)
def test_no_character_of_fenced_code_changes(
    code: str, before: str, behind: str, seeds: list[str]
) -> None:
    inside = "".join(seed.replace("`", "") for seed in seeds) + code
    fenced = f"```text\n{inside}\n```"
    assert fenced in SANITIZER.clean(before + fenced + behind)[0]
    assert SANITIZER.clean(fenced) == (fenced, ())


@st.composite
def edits_on(draw: st.DrawFn, text: str) -> list[Edit]:
    """Edits in order that do not overlap."""
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12, unique=True)))
    replacements = st.sampled_from(["", "", "X", "YZ", "\n\n"])
    return [
        Edit(start, end, draw(replacements), draw(st.sampled_from("pq")))
        for start, end in zip(ends[::2], ends[1::2], strict=False)
    ]


@given(data=st.data(), text=st.text("abc", max_size=20))
def test_composed_edits_equal_edits_in_sequence(data: st.DataObject, text: str) -> None:
    done: list[Edit] = []
    current = text
    for _ in range(3):
        edits = data.draw(edits_on(current))
        done = compose_edits(done, edits)
        current = apply_edits(current, edits)
        assert apply_edits(text, done) == current
        assert all(left.end <= right.start for left, right in pairwise(done))
        assert all(edit.start < edit.end for edit in done)


@given(text=st.text("a \n\t", max_size=80), at=st.integers(0, 80))
def test_white_space_ends_and_begins_where_it_does(text: str, at: int) -> None:
    at = min(at, len(text))
    page = TextView(text)
    assert page.skip_space(at) == len(text) - len(text[at:].lstrip())
    assert page.end_before(at) == len(text[:at].rstrip())
