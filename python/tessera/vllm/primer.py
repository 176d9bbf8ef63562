"""The primer in the tokens of vLLM's model. Both halves need it: the worker to compute, the
scheduler to find what was computed after it."""

from __future__ import annotations

from typing import Any

from vllm.tokenizers import cached_tokenizer_from_config

from ..primer import primer_of

__all__ = ["primer_tokens"]


def primer_tokens(
    profile: str | None, model_config: Any, any_system: bool = False
) -> tuple[int, ...]:
    """As primer_of() has it, with the tokenizer that vLLM has."""
    skip = model_config.skip_tokenizer_init
    tokenizer = None if skip else cached_tokenizer_from_config(model_config)
    return primer_of(tokenizer, profile, any_system)
