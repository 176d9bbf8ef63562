"""The tensor-parallel ranks of one SGLang engine, as its radix cache needs them.

Each rank has a scheduler, a tree and an allocator of its own. They take the same decisions in the
same order, and must: if one tree had more than another, the ranks would run different batches. So
whatever depends on the cache (tokens found, tokens loaded, writes that have ended) is reduced to
the least of all ranks before the tree sees it, over the group that SGLang's own caches use. Calls
of least() are in step, too: each rank makes the same calls, whatever has failed there.
"""

from __future__ import annotations

import os
from typing import Any

import torch

__all__ = ["Ranks"]


class Ranks:
    def __init__(self, context: Any) -> None:
        params = context.params
        # With data-parallel attention this group is smaller than the tensor-parallel one.
        group = params.attn_tp_cache_group
        if group is None:
            group = params.tp_cache_group
        self.rank, self.world = 0, 1
        if group is not None:
            self.rank = torch.distributed.get_rank(group)
            self.world = torch.distributed.get_world_size(group)
        elif context.tp_size > 1:
            raise ValueError("tensor parallelism without a process group")
        self._group = group if self.world > 1 else None
        self.processes: int = context.tp_size  # of the engine, on all machines
        per_machine = max(1, context.tp_size // max(1, _machines(context)))
        self.first: bool = context.tp_rank % per_machine == 0  # of this machine: owns the cache

    def least(self, *numbers: int) -> list[int]:
        """The least of every rank's numbers, one by one."""
        if self._group is None:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MIN, group=self._group)
        return [int(number) for number in tensor]


def replica() -> int | None:
    """Of an engine that SGLang runs several times (data parallelism without that of attention);
    None: it runs once."""
    from sglang.srt.runtime_context import get_parallel

    try:
        number: int | None = get_parallel().dp_rank
    except (AttributeError, RuntimeError, ValueError):
        return None
    return number


def engine_name(context: Any) -> str:
    """All ranks of one engine are children of one process, as are those of its replicas."""
    return f"sglang radix {os.getppid()} {context.model_config.model_path} {replica()}"


def _machines(context: Any) -> int:
    return int(getattr(context.server_args, "nnodes", 1) or 1)
