"""What the machine itself can do, for bench/gpu/vllm: the bus and the disk.

    vllm_raw.py bus BYTES...         seconds of one page-locked copy to the device, median of 10
    vllm_raw.py disk FOLDER BYTES    seconds to read that much of the folder's largest files
    vllm_raw.py info                 name of the device, versions

Prints one JSON value. In a process of its own, so that the device's memory is free afterwards.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

READ_BYTES = 4 << 20
READERS = 16


def bus(sizes: list[int]) -> list[float]:
    import torch

    if not torch.cuda.is_available():
        source = torch.zeros(max(sizes), dtype=torch.uint8)
        target = torch.empty_like(source)
        return [_copy_seconds(source[:n], target[:n], lambda: None) for n in sizes]
    source = torch.zeros(max(sizes), dtype=torch.uint8, pin_memory=True)
    target = torch.empty(max(sizes), dtype=torch.uint8, device="cuda")
    return [_copy_seconds(source[:n], target[:n], torch.cuda.synchronize) for n in sizes]


def _copy_seconds(source: Any, target: Any, wait: Any) -> float:
    seconds = []
    for _ in range(11):
        wait()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def disk(folder: str, n_bytes: int) -> dict[str, Any]:
    """Reads past the page cache with several threads, as fast as the disk goes."""
    files = sorted(Path(folder).rglob("*"), key=lambda f: -f.stat().st_size)
    pieces = [
        (file, at)
        for file in files
        if file.is_file()
        for at in range(0, file.stat().st_size - READ_BYTES + 1, READ_BYTES)
    ][: -(-n_bytes // READ_BYTES)]
    if not pieces:
        return {"bytes": 0, "seconds": 0.0}
    opened = {file: os.open(file, os.O_RDONLY | os.O_DIRECT) for file, _ in pieces}
    buffers = [mmap.mmap(-1, READ_BYTES) for _ in range(READERS)]

    def read(reader: int) -> int:
        got = 0
        for file, at in pieces[reader::READERS]:
            got += os.preadv(opened[file], [buffers[reader]], at)
        return got

    start = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        got = sum(pool.map(read, range(READERS)))
    seconds = time.perf_counter() - start
    for handle in opened.values():
        os.close(handle)
    return {"bytes": got, "seconds": seconds}


def info() -> dict[str, str]:
    import torch
    import vllm

    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name(0) if cuda else os.uname().machine,
        "torch": torch.__version__,
        "vllm": vllm.__version__,
    }


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    value: Any = {
        "bus": lambda: bus([int(n) for n in rest]),
        "disk": lambda: disk(rest[0], int(rest[1])),
        "info": info,
    }[what]()
    print(json.dumps(value), file=answers)
