"""The primer of a profile in the tokens of an engine's model. Documents are computed after it
(blend.h)."""

from __future__ import annotations

from typing import Any

from ._lib import TesseraError
from .blend import primer_text
from .blend_job import BadBlend

__all__ = ["primer_of"]

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


def primer_of(tokenizer: Any, profile: str | None, any_system: bool = False) -> tuple[int, ...]:
    """With the begin token, if the model has one; empty: the profile wants no primer, or there is
    no tokenizer and each document is computed alone."""
    try:
        text = primer_text(profile, any_system)
    except TesseraError as error:
        raise BadBlend(str(error)) from error
    if text is None or (tokenizer is None and any_system):
        return ()
    if tokenizer is None:
        raise BadBlend("the profile's primer needs the tokenizer, but skip_tokenizer_init is set")
    first = opening(tokenizer)
    return (*first, *tokenizer.encode(text, add_special_tokens=not first))
