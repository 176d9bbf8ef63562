"""The primer of a profile in the tokens of this engine's model.

Documents are computed after it (blend.h). Both halves need it: the worker to compute, the scheduler
to find what was computed after it.
"""

from __future__ import annotations

from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config

from .._lib import TesseraError
from ..blend import primer_text
from ..blend_job import BadBlend

__all__ = ["primer_tokens"]


# As primer.c has it: documents of a prompt follow the opening of a chat.
SYSTEM = "You are a helpful assistant."
MARK = "\x01"


def opening(tokenizer: Any) -> list[int]:
    """The tokens of a chat up to what the user says; empty: the model has no template."""
    if getattr(tokenizer, "chat_template", None) is None:
        return []
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": MARK}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:  # a template may refuse a system prompt in any way it likes
        return []
    before, mark, _ = text.partition(MARK)
    return list(tokenizer.encode(before, add_special_tokens=False)) if mark else []


def primer_tokens(
    profile: str | None, model_config: Any, any_system: bool = False
) -> tuple[int, ...]:
    """With the begin token, if the model has one; empty: the profile wants no primer."""
    try:
        text = primer_text(profile, any_system)
    except TesseraError as error:
        raise BadBlend(str(error)) from error
    if text is None:
        return ()
    if model_config.skip_tokenizer_init and any_system:
        return ()  # each document is computed alone
    if model_config.skip_tokenizer_init:
        raise BadBlend("the profile's primer needs the tokenizer, but skip_tokenizer_init is set")
    tokenizer = cached_tokenizer_from_config(model_config)
    first = opening(tokenizer)
    return (*first, *tokenizer.encode(text, add_special_tokens=not first))
