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


def primer_tokens(profile: str | None, model_config: Any) -> tuple[int, ...]:
    """With the begin token, if the model has one; empty: the profile wants no primer."""
    try:
        text = primer_text(profile)
    except TesseraError as error:
        raise BadBlend(str(error)) from error
    if text is None:
        return ()
    if model_config.skip_tokenizer_init:
        raise BadBlend("the profile's primer needs the tokenizer, but skip_tokenizer_init is set")
    return tuple(cached_tokenizer_from_config(model_config).encode(text))
