"""Compare every struct, enum, callback and function of both ABIs with those of a C compiler.

The headers are read here as text for names and types, and compiled for sizes and offsets. Anything
missing or misplaced on either side is a difference.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.backends.rkllm.abi import abi12, abi13, abi131, structs
from engine.backends.rkllm.abi.abi import ABI_12, ABI_13, ABI_131, ABIS, Abi, MissingSymbols, bind
from tests.fake_rkllm import FLAGS, SOURCES, run, runner

SPECIFIC: dict[str, tuple[ModuleType, ...]] = {
    "1.2": (abi12,),
    "1.3": (abi13,),
    "1.3.1": (abi13, abi131),
}
HEADERS = {
    "1.2": ("rkllm_12.h",),
    "1.3": ("rkllm_13.h", "rkllm_multimodal_130.h"),
    "1.3.1": ("rkllm_13.h", "rkllm_multimodal_131.h"),
}
SCALARS = {
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
    "int8_t": ctypes.c_int8,
    "int32_t": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "LLMHandle": ctypes.c_void_p,
    "char *": ctypes.c_char_p,
    "void *": ctypes.c_void_p,
}


@dataclass
class Header:
    """The declarations of a header, with types as written there."""

    text: str
    structs: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        open_: list[dict[str, str]] = []
        for line in map(str.strip, self.text.splitlines()):
            if line.endswith(("struct {", "union {")):
                open_.append({})
            elif open_ and (end := re.fullmatch(r"} ?(\w*);", line)):
                self._close(end[1], open_.pop(), open_)
            elif open_ and (member := re.fullmatch(r"(.*?)(\w+)((?:\[\d+])?);", line)):
                open_[-1][member[2]] = member[1].strip() + member[3]

    def _close(self, name: str, fields: dict[str, str], open_: list[dict[str, str]]) -> None:
        if not open_:
            self.structs[name] = fields
        elif name:
            open_[-1][name] = "struct"
            open_[-1] |= {f"{name}.{member}": type_ for member, type_ in fields.items()}
        else:
            open_[-1] |= fields

    @property
    def enums(self) -> dict[str, dict[str, int]]:
        matches = re.findall(r"typedef enum \{(.*?)} (\w+);", self.text, re.DOTALL)
        return {
            name: {key: int(value) for key, value in re.findall(r"(\w+) = (\d+),", body)}
            for body, name in matches
        }

    @property
    def callbacks(self) -> dict[str, tuple[str, list[str]]]:
        matches = re.findall(r"typedef (\w+) \(\*(\w+)\)\((.*?)\);", self.text, re.DOTALL)
        return {name: (result, arguments_of(text)) for result, name, text in matches}

    @property
    def functions(self) -> dict[str, tuple[str, list[str]]]:
        matches = re.findall(r"^(\w+) (rkllm_\w+)\((.*?)\);", self.text, re.DOTALL | re.MULTILINE)
        return {name: (result, arguments_of(text)) for result, name, text in matches}


def arguments_of(text: str) -> list[str]:
    words = [] if text == "void" else text.split(",")
    return [re.sub(r"\w+$", "", word.strip()).strip() for word in words]


@pytest.fixture(params=[ABI_12, ABI_13, ABI_131], ids=lambda abi: f"abi{abi.name}")
def abi(request: pytest.FixtureRequest) -> Abi:
    chosen: Abi = request.param
    return chosen


@pytest.fixture
def header(abi: Abi) -> Header:
    names = ("rkllm_common.h", *HEADERS[abi.name])
    text = "\n".join((SOURCES / name).read_text() for name in names)
    return Header(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def named(abi: Abi) -> dict[str, Any]:
    """Return all types of an ABI by their C names."""
    both = dict(vars(structs))
    for module in SPECIFIC[abi.name]:
        both |= vars(module)
    return {name: it for name, it in both.items() if name.startswith(("RKLLM", "LLM"))}


def classes(abi: Abi) -> dict[str, type[ctypes.Structure]]:
    return {
        name: it
        for name, it in named(abi).items()
        if isinstance(it, type) and issubclass(it, ctypes.Structure)
    }


def members(struct: Any, prefix: str = "", base: int = 0) -> Iterator[tuple[str, int, Any]]:
    """Yield every field with its offset and type; fields of nested structs follow a dot."""
    for name, type_ in struct._fields_:
        offset = base + getattr(struct, name).offset
        if name in getattr(struct, "_anonymous_", ()):
            yield from members(type_, prefix, offset)
            continue
        yield prefix + name, offset, type_
        if type_.__name__.startswith("_") and hasattr(type_, "_fields_"):
            yield from members(type_, f"{prefix}{name}.", offset)


def as_ctypes(text: str, abi: Abi) -> Any:
    """Return the ctypes type of a C type."""
    text = text.removeprefix("const ")
    if array := re.fullmatch(r"(.*)\[(\d+)]", text):
        return as_ctypes(array[1], abi) * int(array[2])
    if text in SCALARS:
        return SCALARS[text]
    if text.endswith("*"):
        return ctypes.POINTER(as_ctypes(text[:-1].strip(), abi))
    known = named(abi)[text]
    return ctypes.c_int if issubclass(known, IntEnum) else known


def test_structs_have_the_headers_fields_and_types(abi: Abi, header: Header) -> None:
    ours = {
        name: {member: type_ for member, _, type_ in members(struct)}
        for name, struct in classes(abi).items()
    }
    assert {name: list(fields) for name, fields in ours.items()} == {
        name: list(fields) for name, fields in header.structs.items()
    }
    for name, fields in header.structs.items():
        for member, type_ in fields.items():
            if type_ == "struct":
                assert issubclass(ours[name][member], ctypes.Structure)
            else:
                assert ours[name][member] is as_ctypes(type_, abi), (name, member)


def test_sizes_and_offsets_match_the_compiler(abi: Abi, header: Header, tmp_path: Path) -> None:
    ours = {name: (-1, ctypes.sizeof(struct)) for name, struct in classes(abi).items()} | {
        f"{name}.{member}": (offset, ctypes.sizeof(type_))
        for name, struct in classes(abi).items()
        for member, offset, type_ in members(struct)
    }
    lines = [f'    printf("{name} -1 %zu\\n", sizeof({name}));' for name in header.structs]
    lines += [
        f'    printf("{name}.{member} %zu %zu\\n", offsetof({name}, {member}),'
        f" sizeof((({name} *)0)->{member}));"
        for name, fields in header.structs.items()
        for member in fields
    ]
    program = tmp_path / "layout.c"
    number = abi.name.replace(".", "")
    include = f'#define ABI {number}\n#include <stdio.h>\n#include "{HEADERS[abi.name][0]}"\n'
    program.write_text(f"{include}int main(void)\n{{\n" + "\n".join(lines) + "\n}\n")
    run(*FLAGS, f"-I{SOURCES}", str(program), "-o", str(tmp_path / "layout"))
    printed = subprocess.run(
        [*runner(), tmp_path / "layout"], capture_output=True, text=True, timeout=30, check=True
    )
    theirs = {
        name: (int(offset), int(size))
        for name, offset, size in (line.split() for line in printed.stdout.splitlines())
    }
    assert theirs == ours


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("1.2", "RKLLMParam", 208),
        ("1.2", "RKLLMParam.is_async", 57),
        ("1.2", "RKLLMParam.img_start", 64),
        ("1.2", "RKLLMParam.extend_param", 88),
        ("1.2", "RKLLMMultiModalInput", 48),
        ("1.2", "RKLLMInput", 64),
        ("1.2", "RKLLMInput.prompt_input", 16),
        ("1.2", "RKLLMInferParam", 32),
        ("1.2", "RKLLMInferParam.keep_history", 24),
        ("1.2", "RKLLMResult", 72),
        ("1.2", "RKLLMResult.perf", 48),
        ("1.2", "RKLLMPerfStat", 20),
        ("1.2", "RKLLMExtendParam", 120),
        ("1.2", "RKLLMCrossAttnParam", 40),
        ("1.3", "RKLLMParam", 184),
        ("1.3", "RKLLMParam.ignore_eos_token", 57),
        ("1.3", "RKLLMParam.is_async", 58),
        ("1.3", "RKLLMParam.extend_param", 60),
        ("1.3", "RKLLMMultiModalInput", 144),
        ("1.3", "RKLLMMultiModalInput.video", 72),
        ("1.3", "RKLLMInput", 160),
        ("1.3", "RKLLMInput.token_input", 16),
        ("1.3", "RKLLMSamplingParam", 36),
        ("1.3.1", "RKLLMMultiModalInput", 192),
        ("1.3.1", "RKLLMMultiModalInput.audio", 144),
        ("1.3.1", "RKLLMInput", 208),
        ("1.3.1", "RKLLMInput.token_input", 16),
        ("1.3.1", "RKLLMParam", 184),
        ("1.3", "RKLLMInferParam", 40),
        ("1.3", "RKLLMInferParam.keep_history", 32),
        ("1.3", "RKLLMInferParam.max_new_tokens", 36),
        ("1.3", "RKLLMResult", 72),
        ("1.3", "RKLLMCallback", 48),
        ("1.3", "RKLLMCallback.embed_callback", 32),
    ],
    ids=str,
)
def test_numbers_measured_on_the_real_headers(name: str, place: str, number: int) -> None:
    # Sizes of structs and offsets of fields, from g++ on x86-64 and gcc on aarch64.
    struct, _, member = place.partition(".")
    class_ = classes(ABIS[name])[struct]
    assert number == (getattr(class_, member).offset if member else ctypes.sizeof(class_))


def test_enums_and_cpu_bits_are_the_headers(abi: Abi, header: Header) -> None:
    ours = {
        name: {member.name: member.value for member in it}
        for name, it in named(abi).items()
        if isinstance(it, type) and issubclass(it, IntEnum) and not issubclass(it, IntFlag)
    }
    assert ours == header.enums
    bits = re.findall(r"#define (CPU\d) \(1 << (\d)\)", header.text)
    assert {cpu.name: cpu.value for cpu in structs.CPU} == {cpu: 1 << int(n) for cpu, n in bits}


def test_callbacks_have_the_headers_signatures(abi: Abi, header: Header) -> None:
    ours = {name: it for name, it in named(abi).items() if name.endswith("Callback")}
    ours.pop("RKLLMCallback", None)
    assert ours.keys() == header.callbacks.keys()
    for name, (result, arguments) in header.callbacks.items():
        assert ours[name]._restype_ is as_ctypes(result, abi)
        assert list(ours[name]._argtypes_) == [as_ctypes(it, abi) for it in arguments]


def test_functions_have_the_headers_signatures(abi: Abi, header: Header) -> None:
    theirs = {
        name: (as_ctypes(result, abi), tuple(as_ctypes(it, abi) for it in arguments))
        for name, (result, arguments) in header.functions.items()
        if not name.endswith("_prompt_cache")
    }
    # All but the functions for prompt caches, which the backend does not use.
    assert len(theirs) == 13
    assert dict(abi.functions) == theirs


def test_abis_differ_as_documented() -> None:
    assert dict(ABIS) == {"1.2": ABI_12, "1.3": ABI_13, "1.3.1": ABI_131}
    assert (ABI_12.callbacks, ABI_12.sampling_per_run) == (None, False)
    assert (ABI_13.callbacks, ABI_13.sampling_per_run) == (abi13.RKLLMCallback, True)
    for abi in ABIS.values():
        own = named(abi)
        assert abi.param is own["RKLLMParam"]
        assert abi.input is own["RKLLMInput"]
        assert abi.infer_param is own["RKLLMInferParam"]
        assert abi.multimodal_input is own["RKLLMMultiModalInput"]
        assert abi.sampling is own.get("RKLLMSamplingParam")
        assert abi.callbacks is own.get("RKLLMCallback")


def test_library_without_the_symbols_is_refused_by_their_names(abi: Abi) -> None:
    with pytest.raises(MissingSymbols, match="the library has no rkllm_createDefaultParam, ") as e:
        bind(ctypes.CDLL(None), abi)
    assert set(e.value.symbols) == set(abi.functions)


def test_importing_needs_no_library() -> None:
    # The settings and tests import this on machines without the library.
    program = "import ctypes; ctypes.CDLL.__init__ = None; import engine.backends.rkllm.abi.abi"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30, cwd=SOURCES.parents[1])
