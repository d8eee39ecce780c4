"""Load a model: check the options, find and inspect the library, and build what runs on it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from engine.backends.lora_adapters import check_adapters
from engine.backends.options import RkllmOptions
from engine.backends.rkllm import library
from engine.backends.rkllm.abi import detect
from engine.backends.rkllm.abi.abi import Abi, MissingSymbols, bind
from engine.backends.rkllm.board import clocks, driver, nodes
from engine.backends.rkllm.board.device_lock import open_device, require_device
from engine.backends.rkllm.board.encoder_lock import EncoderLock, open_encoder_files
from engine.backends.rkllm.board.profile import read_profile
from engine.backends.rkllm.checks import check_batch, check_context, check_model, check_vision
from engine.backends.rkllm.kv_cache.kv_reuse import KvReuse
from engine.backends.rkllm.kv_cache.prefix_trial import find_prefix_reuse
from engine.backends.rkllm.loaded_model import LoadedModel, Vision
from engine.backends.rkllm.logits.reranker import find_reranker
from engine.backends.rkllm.logits.setup import build_token_loop, check_logits
from engine.backends.rkllm.model_capabilities import DEFAULT_SAMPLING, build_capabilities
from engine.backends.rkllm.recording.open_recorder import open_recorder
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.reloadable_model import ReloadableModel
from engine.backends.rkllm.runs.run import ImageMarks, InitConfig
from engine.backends.rkllm.runtime import Runtime
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.backends.rkllm.tokenizer_files import find_tokenizer_folder
from engine.backends.rkllm.vision.encoder import VisionEncoder
from engine.backends.rkllm.vision.image_marks import parse_image_marks
from engine.capabilities import Capabilities
from engine.errors import ModelLoadFailed

logger = logging.getLogger(__name__)

# The runtime's own default, in tokens.
_DEFAULT_CONTEXT_TOKENS = 4_096


class _Library(NamedTuple):
    """The runtime's library, the version of its interface, and a sentence on both."""

    path: Path
    abi: Abi
    version: str | None
    description: str
    runtime: Runtime
    recorder: Recorder | None
    encoder_lock: EncoderLock | None


def load_model(options: RkllmOptions) -> tuple[LoadedModel, Capabilities]:
    """Load the model that the options name. Raises ModelLoadFailed."""
    path = Path(options.model_path)
    context_length = options.context_length or _DEFAULT_CONTEXT_TOKENS
    check_model(path)
    check_context(context_length)
    check_adapters(options.adapters, options.model_name, "RKLLM_LORA")
    folder = find_tokenizer_folder(path, options.tokenizer)
    tokenizer = None if folder is None else ChatTokenizer(folder)
    check_batch(options.n_batch, options.mode, tokenizer is not None)
    marks = parse_image_marks(options.vision_tokens)
    config = _build_config(options, context_length, tokenizer, marks)
    opened = _open_library(options)
    profile = read_profile(_path(options.profile), opened.path, path)
    # The SDK does not document what a batch leaves in the key-value cache of each sequence.
    is_reuse_on = options.kv_reuse and options.n_batch == 1 and options.mode == "generate"
    kv_reuse = KvReuse(
        enabled=is_reuse_on,
        prefix_reuse=profile.prefix_reuse,
        history_reuse=profile.history_reuse is not False,
    )
    if is_reuse_on and profile.history_reuse is False:
        logger.warning(
            "the cache of a chat is not continued (RKLLM_KV_REUSE): on this board the doctor got "
            "other answers with it (RKLLM_PROFILE)"
        )
    reranking = find_reranker(options, tokenizer, context_length)
    token_loop = None
    # A reranking model generates as in the other mode: its scores need no logits of tokens that
    # follow others, which some libraries cannot compute.
    if options.mode == "logits" and reranking.reranker is None:
        token_loop = build_token_loop(opened.runtime, tokenizer, folder, context_length)
        check_logits(opened.abi, profile)
    handle = ReloadableModel(
        opened.runtime,
        opened.abi,
        config,
        options.adapters,
        can_reload=options.sampling == "reload",
        on_load=kv_reuse.reset,
        record_printed=None if opened.recorder is None else opened.recorder.record_printed,
    )
    handle.load()
    if kv_reuse.enabled and kv_reuse.prefix_reuse is None and opened.abi.sampling_per_run:
        # With ABI 1.2 the answers of two runs cannot be compared: the sampling is that of the load.
        kv_reuse.prefix_reuse = find_prefix_reuse(opened.runtime)
        kv_reuse.clear(opened.runtime)
    model = LoadedModel(
        handle=handle,
        context_length=context_length,
        kv_reuse=kv_reuse,
        adapters=options.adapters,
        tokenizer=tokenizer,
        token_loop=token_loop,
        reranker=reranking.reranker,
        vision=_load_vision(options, marks, handle, opened.encoder_lock),
        recorder=opened.recorder,
    )
    return model, _find_capabilities(options, model, opened, reranking.gap)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _build_config(
    options: RkllmOptions,
    context_length: int,
    tokenizer: ChatTokenizer | None,
    marks: ImageMarks,
) -> InitConfig:
    config = InitConfig(
        model=Path(options.model_path),
        context_length=context_length,
        sampling=DEFAULT_SAMPLING,
        cpu_mask=options.cpu_mask,
        base_domain_id=options.base_domain_id,
        n_batch=options.n_batch,
    )
    if options.vision is None:
        return config
    check_vision(options.n_batch, options.mode)
    # The runtime takes prompts with images only as text: without a template of its own, it takes a
    # rendered chat as it is.
    has_template = tokenizer is not None and tokenizer.has_template
    return replace(config, image_marks=marks, has_raw_prompts=has_template)


def _open_library(options: RkllmOptions) -> _Library:
    """Take the NPU for this server, and open the library. Raises ModelLoadFailed."""
    path = library.find_library(options.lib_path)
    driver.check_driver()
    if options.device_lock:
        files = options.device_files
        require_device(open_device(options.device_path) if files is None else files)
    _warn_about_board(options)
    evidence = detect.inspect_library(path)
    abi = detect.choose_abi(evidence, options.abi)
    if (warning := detect.find_version_warning(evidence, abi)) is not None:
        logger.warning("%s", warning)
    try:
        functions = bind(library.load_library(path), abi)
    except MissingSymbols as error:
        raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path}: {error}") from error
    recorder = None
    if options.record is not None:
        recorder = open_recorder(
            Path(options.record),
            texts=options.record_text,
            process=options.record_process,
            abi=abi,
            library=path,
            version=evidence.version,
            model=Path(options.model_path),
        )
    description = f"{path}, ABI {abi.name} ({abi.versions_text}): {evidence.describe()}"
    logger.info("%s", description)
    lock = None
    if options.encoder_lock:
        lock = EncoderLock(options.encoder_files or open_encoder_files())
    runtime = Runtime(functions, abi, recorder, lock)
    return _Library(path, abi, evidence.version, description, runtime, recorder, lock)


def _warn_about_board(options: RkllmOptions) -> None:
    """Log what may keep the load from its nodes, and in one line all that costs speed."""
    for sentence in nodes.find_closed_nodes():
        logger.warning("%s", sentence)
    if (warning := clocks.find_speed_warning(options.cpu_mask)) is not None:
        logger.warning("%s", warning)


def _load_vision(
    options: RkllmOptions, marks: ImageMarks, handle: ReloadableModel, lock: EncoderLock | None
) -> Vision | None:
    if options.vision is None:
        return None
    try:
        encoder = VisionEncoder(
            Path(options.vision), options.vision_size, lock, options.vision_cores
        )
        return Vision(encoder, marks)
    except ModelLoadFailed:
        # On threads of the server the process lives on, and the model would keep its memory.
        handle.close()
        raise


def _find_capabilities(
    options: RkllmOptions, model: LoadedModel, opened: _Library, rerank_gap: str
) -> Capabilities:
    tokenizer = model.tokenizer
    return build_capabilities(
        options.model_name,
        model.context_length,
        opened.abi,
        opened.description,
        can_reload=options.sampling == "reload",
        has_tokenizer=tokenizer is not None,
        has_template=tokenizer is not None and tokenizer.has_template,
        template_markers=(
            tokenizer.markers if tokenizer is not None and tokenizer.rendered_question else None
        ),
        late_system=tokenizer is None or tokenizer.takes_late_system,
        starts_in_reasoning=tokenizer is not None and tokenizer.starts_in_reasoning,
        adapters=[adapter.name for adapter in options.adapters],
        logits=model.token_loop is not None,
        rerank=model.reranker is not None,
        rerank_gap=rerank_gap,
        kv_reuse=model.kv_reuse.enabled,
        slots=options.n_batch,
        images=model.vision is not None,
        control_tokens=model.control_tokens,
        answer_marks=() if tokenizer is None else tokenizer.answer_marks,
        call_form=None if tokenizer is None else tokenizer.call_form,
        library_facts=model.handle.facts,
    )
