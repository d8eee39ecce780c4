"""The order of the calls into the library, in every mode, against the table in docs/rkllm.md."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from engine import EMBED, RERANK, Engine, Priority
from engine.backends.rkllm.abi.abi import ABI_12, Abi
from engine.backends.rkllm.board.profile import Profile, write_profile
from engine.errors import ModelLoadFailed
from engine.request import Chat, ChatImage, Message
from tests import fake_rknnlite
from tests.fake_rkllm import read_log
from tests.fake_rkllm.tokenizer import RERANK_TOKENS, tokenizer, write_tokenizer
from tests.integration.engine.rkllm.call_orders import read_calls, read_orders
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, request
from tests.unit.handler.input.images import png
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once")

ORDERS = read_orders()
NEVER_MADE = [order.name for order in ORDERS.values() if not order.is_used]

ANSWER = 'answer\n  spell "Answer \\{run}."\n'
SLOW = 'answer\n  spell "Answer" us=2000 times=500\n'
SLOW_PREFILL = 'answer\n  prefill_ms 300\n  say "late" us=100000 times=100\n'
NO_REUSE = "prefix_reuse off\n"
LOGITS = "vocabulary 260\nanswer\n"
PROMPT = (1, 2, 3, 4)


async def run_plainly(engine: Engine, log: Path) -> None:
    for _ in range(2):
        await ask(engine, PROMPT)


async def describe_images(engine: Engine, log: Path) -> None:
    image = ChatImage(base64.b64encode(png(28, 28)).decode())
    for text in ("What?", "Why?"):
        await ask(engine, Chat((Message("user", text, images=(image,)),)))


async def continue_chat(engine: Engine, log: Path) -> None:
    text, _ = await ask(engine, PROMPT)
    answer = tokenizer().encode(text, add_special_tokens=False).ids
    _, finish = await ask(engine, (*PROMPT, *answer, 5, 6))
    assert finish.usage.cached_tokens
    # Another chat.
    await ask(engine, (9, 8, 7))


async def sample_from_logits(engine: Engine, log: Path) -> None:
    for _ in range(2):
        await ask(engine, PROMPT, max_tokens=3, ignore_eos=True)


async def embed_texts(engine: Engine, log: Path) -> None:
    for _ in range(2):
        await engine.compute(EMBED, [(1, 2), (3, 4, 5)], Priority.INTERACTIVE)


async def rerank_documents(engine: Engine, log: Path) -> None:
    for _ in range(2):
        await engine.compute(RERANK, [("one", "two"), ("one", "three")], Priority.INTERACTIVE)


async def use_adapter(engine: Engine, log: Path) -> None:
    for lora in ("french", "french", None):
        await ask(engine, PROMPT, lora=lora)


async def stop_by_text(engine: Engine, log: Path) -> None:
    await ask(engine, PROMPT, stop=("s",))
    await ask(engine, PROMPT, max_tokens=2)


async def cancel_in_decode(engine: Engine, log: Path) -> None:
    async with await engine.generate(request(PROMPT)) as stream:
        await first_text(stream)
    await stream.wait_ended()


async def cancel_in_prefill(engine: Engine, log: Path) -> None:
    await engine.ready()
    async with await engine.generate(request(PROMPT)):
        await wait_until(lambda: "rkllm_run " in log.read_text())
    await wait_until(lambda: "run_end " in log.read_text())


async def close_in_run(engine: Engine, log: Path) -> None:
    async with await engine.generate(request(PROMPT)) as stream:
        await first_text(stream)
        await engine.close()


async def reload_for_sampling(engine: Engine, log: Path) -> None:
    for value in (0.7, 1.5):
        # ABI 1.2 sets the temperature at init, the newer ones only ignore_eos.
        await ask(engine, PROMPT, temperature=value, ignore_eos=value == 1.5, max_tokens=3)


class Mode(NamedTuple):
    """One way to use the engine, and the rows of the table that its calls match."""

    use: Callable[[Engine, Path], Awaitable[None]]
    orders: tuple[str, ...]
    script: str = ANSWER
    options: Mapping[str, Any] = MappingProxyType({})
    crashing: tuple[str, ...] = ()
    profile: Profile | None = None


FRESH = {"kv_reuse": False}
MODES = {
    "plain": Mode(run_plainly, ("Plain run",), options=FRESH),
    "images": Mode(describe_images, ("Images",), options={"vision": "vision.rknn"}),
    "history": Mode(continue_chat, ("History kept",), NO_REUSE + ANSWER),
    # With ABI 1.2 only if the doctor has found that it works.
    "logits": Mode(
        sample_from_logits,
        (),
        LOGITS,
        {"mode": "logits"},
        crashing=("Logits with history",),
        profile=Profile(logits_with_history=True),
    ),
    "shared prefixes": Mode(run_plainly, ("Plain run",), profile=Profile(prefix_reuse=True)),
    "tried at the load": Mode(run_plainly, (), profile=Profile()),
    "embeddings": Mode(embed_texts, ("Embeddings, cache cleared after each",)),
    "embeddings without history": Mode(
        embed_texts, ("Embeddings, cache cleared after each",), options=FRESH
    ),
    # Without a result of the doctor: nothing is tried at the load either.
    "reranking": Mode(
        rerank_documents,
        ("Logits without history",),
        "vocabulary 264\nanswer\n",
        {"mode": "logits", "model_name": "reranker"},
        profile=Profile(),
    ),
    "adapter": Mode(use_adapter, ("LoRA",), options={"lora": "french=french.lora", **FRESH}),
    "batch": Mode(run_plainly, ("Batch",), options={"n_batch": 2}),
    "stop string": Mode(stop_by_text, ("Abort from another thread",), SLOW),
    "stop string in a batch": Mode(
        cancel_in_decode, ("Abort from another thread",), SLOW, {"n_batch": 2}
    ),
    "cancel": Mode(cancel_in_decode, ("Abort from another thread",), SLOW),
    "cancel in prefill": Mode(cancel_in_prefill, ("Abort in prefill",), SLOW_PREFILL),
    "close": Mode(close_in_run, ("Abort from another thread",), SLOW),
    "reload": Mode(
        reload_for_sampling, ("Reload in the same process",), SLOW, {"sampling": "reload"}
    ),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
async def test_calls_are_in_an_order_that_the_table_lists(
    rkllm_of: RkllmMaker,
    mode: Mode,
    call_log: Path,
    tmp_path: Path,
    library: Path,
    model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_tokenizer(tmp_path, added=RERANK_TOKENS if "model_name" in mode.options else ())
    (tmp_path / "french.lora").write_text("weights")
    options = dict(mode.options)
    if "vision" in options:
        fake_rknnlite.install(monkeypatch)
        vision = fake_rknnlite.write_encoder(tmp_path / "vision.rknn")
        options |= {"vision": str(vision), "vision_size": 28}
    if "lora" in options:
        options["lora"] = f"french={tmp_path}/french.lora"
    path = model(mode.script)
    if mode.profile is not None:
        options["profile"] = str(tmp_path / "profile.json")
        write_profile(tmp_path / "profile.json", library, path, mode.profile)
    engine = rkllm_of(path, **options)
    await mode.use(engine, call_log)
    await engine.close()
    [calls] = read_calls(call_log).values()
    assert calls[-1] == "destroy"
    assert not {"refused", "crash"} & set(calls)
    for name in mode.orders:
        assert ORDERS[name].is_used
        assert ORDERS[name].occurs_in(calls), (name, calls)
    crashing = [order.name for order in ORDERS.values() if order.is_crashing]
    occurring = [name for name in crashing if ORDERS[name].occurs_in(calls)]
    assert occurring == [*mode.crashing], calls
    never_made = [name for name in NEVER_MADE if name not in mode.crashing]
    assert [name for name in never_made if ORDERS[name].occurs_in(calls)] == [], calls


async def test_every_abort_is_on_a_thread_of_its_own(
    rkllm_of: RkllmMaker, call_log: Path, abi: Abi
) -> None:
    engine = rkllm_of('answer\n  say "a" us=2000 times=500\n')
    await ask(engine, "go", stop=("aaa",))
    await ask(engine, "go", max_tokens=3)
    await engine.close()
    calls = read_log(call_log)
    aborts = [call for call in calls if call.name == "rkllm_abort"]
    assert len(aborts) >= (2 if abi is ABI_12 else 1)
    runs = {call.thread for call in calls if call.name == "rkllm_run"}
    assert not runs & {call.thread for call in aborts}


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("Logits with history", "init run[logits,history] end destroy"),
        (
            "Embeddings in a row, cache not cleared",
            "init run[hidden] end run[hidden] end destroy",
        ),
        ("Abort inside a callback", "init run[plain] abort[callback] end destroy"),
        ("Destroy in a run", "init run[plain] abort[thread] destroy"),
        ("Second init that fails", "init run[plain] end destroy init[failed]"),
        ("Two runs at once on one handle", "init run[plain] run[plain] end end destroy"),
    ],
)
def test_order_that_must_not_occur_is_recognised(name: str, calls: str) -> None:
    assert ORDERS[name].occurs_in(calls.split())


def test_order_of_another_handle_is_not_mistaken() -> None:
    calls = "init run[hidden] end destroy init run[hidden] end destroy"
    assert not ORDERS["Embeddings in a row, cache not cleared"].occurs_in(calls.split())


def test_table_has_a_status_and_a_source_for_each_order() -> None:
    for order in ORDERS.values():
        assert order.status.startswith(
            ("documented", "reported as working", "reported as crashing", "not documented")
        ), order
        assert bool(order.source) != order.status.startswith("not documented"), order
        assert order.use == "no" or order.use.startswith(("no, unless ", "yes: ")), order


def test_every_order_that_the_worker_makes_has_a_mode_or_needs_a_race_or_a_failure() -> None:
    tested = {name for mode in MODES.values() for name in (*mode.orders, *mode.crashing)}
    tested -= set(NEVER_MADE)
    # These depend on the moment of an abort, or on a reload that fails.
    untested = {
        "Abort as a run starts",
        "Abort after FINISH",
        "Second init that fails",
        "Init after a failed one",
    }
    assert {order.name for order in ORDERS.values() if order.is_used} == tested | untested


async def test_logits_with_history_are_not_tried_with_abi_12_before_the_doctor_has(
    rkllm_of: RkllmMaker, call_log: Path, tmp_path: Path, abi: Abi
) -> None:
    write_tokenizer(tmp_path)
    engine = rkllm_of(LOGITS, mode="logits", profile=None)
    if abi is not ABI_12:
        await engine.ready()
        return
    with pytest.raises(ModelLoadFailed, match="RKLLM_MODE=logits"):
        await engine.ready()
    # The library may not have been called at all: then there is no log.
    call_log.open("a").close()
    assert read_calls(call_log) == {}
