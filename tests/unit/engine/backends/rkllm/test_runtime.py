"""The calls into the library, with a fake library that records them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABIS, Abi, Functions
from engine.backends.rkllm.abi.structs import RKLLMResult
from engine.backends.rkllm.board.encoder_lock import EncoderLock, open_encoder_files
from engine.backends.rkllm.runs.run import InitConfig, Run, UserTurn, fill_sampling
from engine.backends.rkllm.runtime import Runtime
from engine.errors import BackendFailed, ModelLoadFailed
from engine.request import SamplingParams
from tests.waiting import PATIENCE

NORMAL, WAITING, FINISH, ERROR = range(4)
TIMEOUT_S = 10 * PATIENCE
CONFIG = InitConfig(model=Path("/models/tiny.rkllm"), context_length=64, sampling=SamplingParams())


class FakeLibrary:
    """A fake of the bound functions; `script` implements a run."""

    def __init__(self, abi: Abi) -> None:
        self.abi = abi
        self.script: Callable[[int | None], int] = lambda number: 0
        self.calls: list[str] = []
        self.numbers: list[int | None] = []
        self.inputs: Any = None
        self.infer: Any = None
        self.param: Any = None
        self.code = 0
        self.cached = 12
        self.cached_after_clear = 0
        self.handle: int | None = 4096
        self.aborted = threading.Event()
        self.aborts: list[str] = []
        self._callback: Any = None

    def createDefaultParam(self) -> Any:
        param = self.abi.param()
        ctypes.memset(ctypes.addressof(param.extend_param), 0, 14)
        param.extend_param.enabled_cpus_num = 4
        param.extend_param.enabled_cpus_mask = 0xF0
        return param

    def init(self, handle: ctypes.c_void_p, param: Any, callback: Any) -> int:
        self.calls.append("init")
        self.param, self._callback = param, callback
        handle.value = self.handle
        return self.code

    def run(self, handle: ctypes.c_void_p, inputs: Any, infer: Any, number: int | None) -> int:
        assert handle.value == self.handle
        self.calls.append("run")
        self.numbers.append(number)
        # The array has n_batch inputs and one more; this is the first.
        self.inputs, self.infer = inputs[0], infer
        self.aborted.clear()
        code = self.script(number)
        self.calls.append("returned")
        return code

    def abort(self, handle: ctypes.c_void_p) -> int:
        self.calls.append("abort")
        self.aborts.append(threading.current_thread().name)
        self.aborted.set()
        return 0

    def destroy(self, handle: ctypes.c_void_p) -> int:
        self.calls.append("destroy")
        return 0

    def get_kv_cache_size(self, handle: ctypes.c_void_p, sizes: Any) -> int:
        sizes[0] = self.cached
        return self.code

    def clear_kv_cache(self, handle: Any, keep_system_prompt: int, start: Any, end: Any) -> int:
        self.calls.append(f"clear {keep_system_prompt} {start} {end}")
        self.cached = self.cached_after_clear
        return -1

    def call_back(self, number: int | None, state: int = NORMAL, **fields: Any) -> int:
        """Make a callback as the C library would."""
        callback = self._callback if self.abi is ABI_12 else self._callback.result_callback
        answer: int = callback(ctypes.pointer(RKLLMResult(**fields)), number, state)
        return answer

    def call_back_with_null(self, number: int | None, state: int) -> None:
        """Make a callback with a NULL result."""
        callback = self._callback if self.abi is ABI_12 else self._callback.result_callback
        callback(ctypes.POINTER(RKLLMResult)(), number, state)


@pytest.fixture(params=ABIS.values(), ids=lambda abi: f"abi{abi.name}")
def library(request: pytest.FixtureRequest) -> FakeLibrary:
    return FakeLibrary(request.param)


@pytest.fixture
def runtime(library: FakeLibrary) -> Iterator[Runtime]:
    """A runtime with a loaded model."""
    created = Runtime(cast("Functions", library), library.abi)
    created.init(CONFIG)
    yield created
    created.close()


class RecordedPieces(list[bytes]):
    """Records pieces; stops the run after `stop_after` of them."""

    def __init__(self, stop_after: int = 0) -> None:
        self._enough = stop_after

    def __call__(self, piece: bytes, token: int, logprob: object) -> bool:
        self.append(piece)
        return len(self) == self._enough


def run_of(runtime: Runtime, pieces: RecordedPieces | None = None, **options: Any) -> Run:
    inputs = {
        "prompt": UserTurn("hi"),
        "sampling": SamplingParams(),
        "limit": 50,
        "on_piece": RecordedPieces() if pieces is None else pieces,
        "aborted": threading.Event(),
        **options,
    }
    return runtime.run(**inputs)


# ---- sampling ----

STRUCTS = [ABI_12.param, ABI_13.param, ABI_13.sampling]


@pytest.mark.parametrize("struct", STRUCTS, ids=["param1.2", "param1.3", "run1.3"])
def test_every_sampling_field_is_written(struct: Any) -> None:
    # R9: a run's struct replaces the handle's completely, so every field must be set.
    filled = struct()
    ctypes.memset(ctypes.addressof(filled), 0xA5, ctypes.sizeof(filled))
    fill_sampling(
        filled,
        SamplingParams(
            temperature=0.25,
            top_p=0.5,
            top_k=7,
            repetition_penalty=1.5,
            frequency_penalty=-0.5,
            presence_penalty=0.75,
        ),
    )
    values = {
        "top_k": 7,
        "top_p": 0.5,
        "temperature": 0.25,
        "repeat_penalty": 1.5,
        "frequency_penalty": -0.5,
        "presence_penalty": 0.75,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": pytest.approx(0.1),
    }
    assert {name: getattr(filled, name) for name in values} == values
    if struct.__name__ == "RKLLMSamplingParam":
        assert {field[0] for field in struct._fields_} == set(values)


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_p": 0.0}])
def test_greedy_sampling_uses_top_k_1(greedy: dict[str, Any]) -> None:
    # R9: a temperature of 0 would be a divisor.
    filled: Any = ABI_13.sampling() if ABI_13.sampling else None
    fill_sampling(filled, SamplingParams(**{"top_k": 40, "repetition_penalty": 1.5, **greedy}))
    assert (filled.top_k, filled.temperature, filled.top_p) == (1, 1.0, 1.0)
    assert filled.repeat_penalty == 1.5


@pytest.mark.parametrize(
    ("requested", "expected"),
    [(-1, 10**6), (0, 10**6), (1, 1), (50, 50), (10**6 + 1, 10**6), (2**32 - 1, 10**6)],
)
def test_top_k_is_within_the_fields_range(requested: int, expected: int) -> None:
    filled: Any = ABI_13.sampling() if ABI_13.sampling else None
    fill_sampling(filled, SamplingParams(top_k=requested))
    assert filled.top_k == expected


# ---- init and destroy ----


def test_init_parameters(library: FakeLibrary, runtime: Runtime) -> None:
    param = library.param
    assert (param.model_path, param.max_context_len) == (b"/models/tiny.rkllm", 64)
    assert (param.max_new_tokens, param.skip_special_token, param.is_async) == (-1, True, False)
    # The defaults of the runtime.
    extend = param.extend_param
    assert (extend.enabled_cpus_mask, extend.enabled_cpus_num, extend.base_domain_id) == (
        0xF0,
        4,
        0,
    )
    if library.abi is ABI_13:
        assert param.ignore_eos_token is False
    assert runtime.is_loaded


def test_board_settings(library: FakeLibrary) -> None:
    setup = InitConfig(
        model=Path("m"),
        context_length=32,
        sampling=SamplingParams(ignore_eos=True),
        cpu_mask=0b1110_0000,
        base_domain_id=2,
    )
    runtime = Runtime(cast("Functions", library), library.abi)
    runtime.init(setup)
    runtime.close()
    extend = library.param.extend_param
    assert (extend.enabled_cpus_mask, extend.enabled_cpus_num, extend.base_domain_id) == (
        0xE0,
        3,
        2,
    )
    if library.abi is ABI_13:
        assert library.param.ignore_eos_token is True


def test_path_of_a_model_may_be_any_bytes(library: FakeLibrary, runtime: Runtime) -> None:
    runtime.init(InitConfig(model=Path("ü\udcff"), context_length=32, sampling=SamplingParams()))
    assert library.param.model_path == b"\xc3\xbc\xff"


@pytest.mark.parametrize(("code", "handle"), [(-1, None), (-1, 4096), (0, None), (5, None)])
def test_init_that_fails(library: FakeLibrary, code: int, handle: int | None) -> None:
    library.code, library.handle = code, handle
    runtime = Runtime(cast("Functions", library), library.abi)
    with pytest.raises(ModelLoadFailed, match=f"rkllm_init failed with {code}"):
        runtime.init(CONFIG)
    assert not runtime.is_loaded
    runtime.close()
    assert library.calls == ["init"]


def test_second_init_replaces_the_first(library: FakeLibrary, runtime: Runtime) -> None:
    runtime.init(CONFIG)
    library.code = -1
    with pytest.raises(ModelLoadFailed):
        runtime.init(CONFIG)
    assert library.calls == ["init", "destroy", "init", "destroy", "init"]
    with pytest.raises(BackendFailed, match="no model is loaded"):
        run_of(runtime)
    library.code = 0
    runtime.init(CONFIG)
    assert run_of(runtime).code == 0
    assert library.calls[5:] == ["init", "run", "returned"]


def test_handle_is_freed_once(library: FakeLibrary, runtime: Runtime) -> None:
    # A second one ends the process.
    runtime.close()
    runtime.close()
    assert library.calls == ["init", "destroy"]
    with pytest.raises(BackendFailed, match="no model is loaded"):
        run_of(runtime)


# ---- inputs of a run ----


def test_text_is_sent_as_a_user_turn(library: FakeLibrary, runtime: Runtime) -> None:
    run_of(runtime, prompt=UserTurn("Grüße \ud800", enable_thinking=True))
    inputs = library.inputs
    assert (inputs.role, inputs.input_type, inputs.enable_thinking) == (b"user", 0, True)
    assert inputs.prompt_input == "Grüße ?".encode()
    assert (library.infer.mode, library.infer.keep_history) == (0, 0)
    assert not library.infer.lora_params
    run_of(runtime)
    assert library.inputs.enable_thinking is False


def test_tokens_are_sent_unchanged(library: FakeLibrary, runtime: Runtime) -> None:
    sent: list[list[int]] = []

    def script(number: int | None) -> int:
        tokens = library.inputs.token_input
        sent.append(tokens.input_ids[: tokens.n_tokens])
        return 0

    library.script = script
    run_of(runtime, prompt=[1, 2**31 - 1, 0])
    assert sent == [[1, 2**31 - 1, 0]]
    assert (library.inputs.role, library.inputs.input_type) == (b"user", 1)


def test_run_keeps_history_and_saves_no_prompt(library: FakeLibrary, runtime: Runtime) -> None:
    run_of(runtime, prompt=[1], keep_history=True)
    assert library.infer.keep_history == 1
    assert not library.infer.prompt_cache_params


def test_ids_are_those_of_all_callbacks(library: FakeLibrary, runtime: Runtime) -> None:
    # Tokens after an abort count too, because they are in the key-value cache.
    def script(number: int | None) -> int:
        library.call_back(number, text=b"a", token_id=5)
        library.call_back_with_null(number, WAITING)
        library.call_back(number, WAITING, token_id=6)
        assert library.aborted.wait(TIMEOUT_S)
        library.call_back(number, text=b"b", token_id=7)
        return 0

    library.script = script
    pieces = RecordedPieces(stop_after=3)
    assert run_of(runtime, pieces).ids == [5, -1, 6, 7]
    assert pieces == [b"a", b"", b""]


def test_run_has_its_own_sampling_where_supported(library: FakeLibrary, runtime: Runtime) -> None:
    received: list[tuple[float, int]] = []

    def script(number: int | None) -> int:
        if library.abi is ABI_13:
            own = library.infer.sampling_params.contents
            received.append((own.temperature, library.infer.max_new_tokens))
        return 0

    library.script = script
    run_of(runtime, sampling=SamplingParams(temperature=0.5), limit=9)
    assert received == ([(0.5, 9)] if library.abi is ABI_13 else [])


def test_run_numbers_are_unique_and_not_zero(library: FakeLibrary, runtime: Runtime) -> None:
    # In 1.3, NULL means the userdata of init.
    for _ in range(5):
        run_of(runtime)
    runtime.init(CONFIG)
    run_of(runtime)
    assert library.numbers == [1, 2, 3, 4, 5, 6]


# ---- callbacks ----


def test_tokens_and_statistics(library: FakeLibrary, runtime: Runtime) -> None:
    taken: list[tuple[bytes, int, object]] = []

    def on_piece(piece: bytes, token: int, logprob: object) -> bool:
        taken.append((piece, token, logprob))
        return False

    def script(number: int | None) -> int:
        library.call_back(number, text=b"a", token_id=7)
        library.call_back(number, text=None, token_id=8)
        library.call_back(number, WAITING, text=b"\xc3", token_id=9)
        library.call_back(number, text="ü".encode(), token_id=10)
        perf = {"prefill_time_ms": 2.5, "prefill_tokens": 3, "generate_tokens": 4}
        result = RKLLMResult(text=b"not a token")
        for name, value in perf.items():
            setattr(result.perf, name, value)
        library.call_back(number, FINISH, text=b"not a token", perf=result.perf)
        return 0

    library.script = script
    run = run_of(runtime, on_piece=on_piece)
    assert taken == [
        (b"a", 7, None),
        (b"", 8, None),
        (b"", -1, None),
        ("ü".encode(), 10, None),
    ]
    assert (run.tokens, run.finished, run.failed, run.stopped) == (4, True, False, False)
    assert (run.prefill_tokens, run.generate_tokens, run.prefill_ms) == (3, 4, 2.5)


def test_callbacks_continue_with_any_content(library: FakeLibrary, runtime: Runtime) -> None:
    # 1 would pause the run instead of aborting it: the next run would continue it.
    answers: list[int] = []

    def script(number: int | None) -> int:
        states = (NORMAL, WAITING, NORMAL, ERROR, FINISH)
        answers.extend(library.call_back(number, state, text=b"x") for state in states)
        answers.append(library.call_back(99, text=b"x"))
        library.aborted.wait(TIMEOUT_S)
        return 0

    library.script = script
    run_of(runtime, RecordedPieces(stop_after=2))
    assert answers == [0] * 6


@pytest.mark.parametrize("state", [WAITING, FINISH, ERROR])
def test_result_pointer_may_be_null(library: FakeLibrary, runtime: Runtime, state: int) -> None:
    def script(number: int | None) -> int:
        library.call_back_with_null(number, state)
        return 0

    library.script = script
    run = run_of(runtime)
    assert (run.tokens, run.finished, run.failed) == (
        int(state == WAITING),
        state == FINISH,
        state == ERROR,
    )


def test_error_and_status_are_kept(library: FakeLibrary, runtime: Runtime) -> None:
    def script(number: int | None) -> int:
        library.call_back(number, ERROR)
        return -3

    library.script = script
    run = run_of(runtime)
    assert (run.failed, run.code, run.finished) == (True, -3, False)


def test_late_callbacks_are_ignored(library: FakeLibrary, runtime: Runtime) -> None:
    # R31
    first, second = RecordedPieces(), RecordedPieces()
    run_of(runtime, first)
    for number in (1, None, 2):
        library.call_back(number, text=b"after the return")

    def script(number: int | None) -> int:
        library.call_back(1, text=b"of the first")
        library.call_back(None, text=b"of nobody")
        library.call_back(1, FINISH)
        library.call_back(1, ERROR)
        library.call_back(3, text=b"of one to come")
        library.call_back(number, text=b"mine")
        return 0

    library.script = script
    run = run_of(runtime, second)
    assert (first, second) == ([], [b"mine"])
    assert (run.tokens, run.finished, run.failed) == (1, False, False)


def test_callbacks_after_finish_are_ignored_before_run_returns(
    library: FakeLibrary, runtime: Runtime
) -> None:
    # On a busy machine run may return late; its late callbacks are not part of the answer.
    def script(number: int | None) -> int:
        library.call_back(number, text=b"a", token_id=1)
        library.call_back(number, FINISH)
        library.call_back(number, text=b"late", token_id=2)
        library.call_back(number, ERROR)
        return 0

    library.script = script
    pieces = RecordedPieces()
    run = run_of(runtime, pieces)
    assert (pieces, run.ids, run.finished, run.failed) == ([b"a"], [1], True, False)


def test_callbacks_from_another_thread(library: FakeLibrary, runtime: Runtime) -> None:
    def script(number: int | None) -> int:
        thread = threading.Thread(
            target=library.call_back, args=(number,), kwargs={"text": b"there"}
        )
        thread.start()
        thread.join(TIMEOUT_S)
        return 0

    library.script = script
    pieces = RecordedPieces()
    run_of(runtime, pieces)
    assert pieces == [b"there"]


# ---- stops by the caller ----


def test_stop_aborts_on_a_separate_thread(library: FakeLibrary, runtime: Runtime) -> None:
    # The SDK does not document that a callback may abort.
    def script(number: int | None) -> int:
        for _ in range(3):
            library.call_back(number, text=b"x")
        assert library.aborted.wait(TIMEOUT_S)
        # The abort has no effect yet.
        for _ in range(3):
            library.call_back(number, text=b"late")
        return 0

    library.script = script
    pieces = RecordedPieces(stop_after=2)
    run = run_of(runtime, pieces)
    assert pieces == [b"x", b"x"]
    assert (run.stopped, run.tokens) == (True, 6)
    assert set(library.aborts) == {"rkllm-abort"}


def test_abort_is_repeated_until_it_works(library: FakeLibrary, runtime: Runtime) -> None:
    # The library ignores an abort that arrives before the run has started.
    def script(number: int | None) -> int:
        library.call_back(number, text=b"x")
        for _ in range(3):
            assert library.aborted.wait(TIMEOUT_S)
            library.aborted.clear()
        return 0

    library.script = script
    run_of(runtime, RecordedPieces(stop_after=1))
    aborts = len(library.aborts)
    assert aborts >= 3
    library.script = lambda number: library.call_back(number, text=b"y")
    for _ in range(20):
        assert run_of(runtime).tokens == 1
    # One abort may have been in progress when the run returned; none hits the next run.
    assert len(library.aborts) == aborts
    assert library.calls[-40:] == ["run", "returned"] * 20


def test_limit_of_the_library(library: FakeLibrary, runtime: Runtime) -> None:
    # R8: 1.3 receives the limit and ends the run there with its counts; for 1.2 we count.
    def script(number: int | None) -> int:
        for _ in range(5):
            library.call_back(number, text=b"x")
        if library.abi is ABI_12:
            assert library.aborted.wait(TIMEOUT_S)
        library.call_back(number, FINISH)
        return 0

    library.script = script
    run = run_of(runtime, RecordedPieces(stop_after=5), limit=5)
    assert (run.tokens, run.stopped, run.finished) == (5, library.abi is ABI_12, True)
    assert bool(library.aborts) == (library.abi is ABI_12)


def test_library_that_exceeds_its_limit_is_aborted(library: FakeLibrary, runtime: Runtime) -> None:
    def script(number: int | None) -> int:
        for _ in range(8):
            library.call_back(number, text=b"x")
        assert library.aborted.wait(TIMEOUT_S)
        return 0

    library.script = script
    pieces = RecordedPieces()
    run = run_of(runtime, pieces, limit=5)
    assert pieces == [b"x"] * 5
    assert (run.stopped, run.limit, run.tokens) == (True, 5, 8)


# ---- aborts from outside ----


def test_abort_of_a_silent_run(library: FakeLibrary, runtime: Runtime) -> None:
    began = threading.Event()

    def script(number: int | None) -> int:
        began.set()
        assert library.aborted.wait(TIMEOUT_S)
        return 0

    library.script = script
    ended: list[Run] = []
    thread = threading.Thread(target=lambda: ended.append(run_of(runtime)))
    thread.start()
    assert began.wait(TIMEOUT_S)
    runtime.abort()
    thread.join(TIMEOUT_S)
    assert ended[0].stopped


def test_run_that_is_aborted_while_it_waits_for_an_encoder_is_not_started(
    library: FakeLibrary,
) -> None:
    files = open_encoder_files()
    runtime = Runtime(cast("Functions", library), library.abi, None, EncoderLock(files))
    runtime.init(CONFIG)
    waits = threading.Event()

    def abort() -> None:
        assert waits.wait(TIMEOUT_S)
        runtime.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    with EncoderLock(files).hold_for_encoder(lambda: False):
        waits.set()
        run = run_of(runtime)
    thread.join()
    assert (run.stopped, run.tokens, library.aborts) == (True, 0, [])
    assert not run_of(runtime).stopped
    runtime.close()
    assert library.calls == ["init", "run", "returned", "destroy"]


def test_aborted_run_is_not_started(library: FakeLibrary, runtime: Runtime) -> None:
    aborted = threading.Event()
    aborted.set()
    run = run_of(runtime, aborted=aborted)
    assert (run.stopped, run.tokens, library.calls) == (True, 0, ["init"])
    assert run_of(runtime).stopped is False


def test_abort_without_a_run_does_nothing(library: FakeLibrary, runtime: Runtime) -> None:
    runtime.abort()
    run_of(runtime)
    runtime.abort()
    assert run_of(runtime).stopped is False
    assert library.aborts == []


class CrossedEvent(threading.Event):
    """An event that calls a function at the moment it is cleared."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def clear(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        super().clear()


def test_concurrent_aborts_are_not_lost(library: FakeLibrary) -> None:
    # The abort thread is busy with an earlier abort and about to wait again.
    runtime = Runtime(cast("Functions", library), library.abi)
    runtime.init(CONFIG)
    older, runtime._abort_requested = runtime._abort_requested, CrossedEvent(runtime.abort)

    def script(number: int | None) -> int:
        older.set()
        assert library.aborted.wait(TIMEOUT_S)
        return 0

    library.script = script
    assert run_of(runtime).stopped
    runtime.close()


def test_cache_size_is_read(library: FakeLibrary, runtime: Runtime) -> None:
    assert runtime.cache_size() == 12
    library.code = -1
    assert runtime.cache_size() is None
    library.code = 0
    runtime.close()
    assert runtime.cache_size() is None


def test_clear_cache_checks_the_size(library: FakeLibrary, runtime: Runtime) -> None:
    assert runtime.clear_cache()
    assert library.calls[-1] == "clear 0 None None"
    library.cached_after_clear = 1
    assert not runtime.clear_cache()
    library.code = -1
    assert not runtime.clear_cache()
    runtime.close()
    assert not runtime.clear_cache()
