"""What the connector's halves send each other through vLLM: plain data that pickles, apart from the
connector itself so that whoever only carries or makes it need not know how it is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from .._connector import Planes
from ..blend_job import BlendJob, BlendOutcome


@dataclass
class TesseraMetadata(KVConnectorMetadata):
    """Scheduler to workers, each step: the half's bytes, names of requests that a worker will have
    to speak of, and contexts to blend before the step runs."""

    data: bytes = b""
    names: dict[int, str] = field(default_factory=dict)
    blocks: dict[int, frozenset[tuple[int, int]]] = field(default_factory=dict)
    wait: bool = False
    # Blocks that a load of this step fills, by request; None: it goes on between steps.
    loads: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    off: bool = False  # the scheduler side is off
    blends: list[BlendJob] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)  # blends that nobody waits for any more
    budget: int = 0  # tokens that blends between steps may compute beside this step
    alone: bool = True  # the step computes nothing else
    n_tokens: int = 0  # of prompts that it computes, see worth.prompt_tokens()


@dataclass
class TesseraWorkerMetadata(KVConnectorWorkerMetadata):
    """Workers to scheduler: the bytes of each, and what became of the blends."""

    parts: list[bytes]
    outcomes: list[BlendOutcome] = field(default_factory=list)
    trouble: str | None = None  # a worker has given up
    row_s: float = 0.0  # what vLLM takes for a token of a prompt, if that has changed

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, TesseraWorkerMetadata)
        return TesseraWorkerMetadata(
            self.parts + other.parts,
            self.outcomes + other.outcomes,
            self.trouble or other.trouble,
            max(self.row_s, other.row_s),
        )


@dataclass
class TesseraHandshake(KVConnectorHandshakeMetadata):
    """Whether a worker is able to work, and to blend; if not, why. And its model as blend.h sees
    it, a struct tsr_model_info without pointers, so that the scheduler finds the same space."""

    trouble: str | None = None
    blend_trouble: str | None = "the worker did not report that it is able to"
    blend_model: bytes = b""
    planes: Planes | None = None  # how it keeps plain requests; None: as opaque pages
