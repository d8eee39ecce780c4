"""Convert chats with images to the runtime's multimodal input."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.backends.rkllm.runs.inputs import join_turns
from engine.backends.rkllm.runs.run import IMAGE_TAG, ImageMarks, MultimodalPrompt
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.backends.rkllm.vision.encoder import VisionEncoder
from engine.errors import PromptTooLong, RequestRejected
from engine.prompts.image_prompt import render_images
from engine.request import Chat


def build_multimodal_prompt(
    chat: Chat,
    tokenizer: ChatTokenizer | None,
    context_length: int,
    encoder: VisionEncoder,
    marks: ImageMarks,
    aborted: threading.Event,
) -> MultimodalPrompt:
    """Return the runtime's input for a chat with images.

    Without a template, the chat becomes one user turn, to which the runtime applies its template.

    Raises:
        PromptTooLong: the tokens do not fit the context.
        RequestRejected: a text contains a mark of images, or an image cannot be decoded.
        BackendFailed: the encoder failed.
    """
    render: Callable[[str], str]
    if tokenizer is not None and tokenizer.has_template:
        render = lambda marker: tokenizer.render(chat, marker)  # noqa: E731
    else:
        render = lambda marker: join_turns(chat, marker)  # noqa: E731
    prompt = render_images(chat, render)
    text = prompt.join(IMAGE_TAG)
    for mark in (*marks, "\0"):
        # The runtime would take it for a token of an image, or for the end of the prompt.
        if mark and any(mark in text for text in prompt.texts):
            raise RequestRejected(f"messages must not contain {mark!r}", param="messages")
    count = len(prompt.images)
    tokens = count * encoder.image_tokens
    if tokenizer is not None:
        # The runtime's template may add tokens.
        tokens += len(tokenizer.encode(prompt.join(marks.start + marks.end), special=False))
    if tokens >= context_length:
        raise PromptTooLong(
            f"messages: {tokens} tokens, {count * encoder.image_tokens} of them for images, do not "
            f"fit the context of {context_length} tokens",
            prompt_tokens=tokens,
            context_length=context_length,
            param="messages",
        )
    return MultimodalPrompt(
        text=text,
        embeddings=encoder.encode(prompt.images, aborted),
        images=count,
        image_tokens=encoder.image_tokens,
        image_size=encoder.size,
        marks=marks,
        tokens=tokens,
        enable_thinking=chat.template_kwargs.get("enable_thinking") is True,
    )
