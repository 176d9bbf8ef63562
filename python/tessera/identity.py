"""Identity of model weights: cheap at start, and different for different models."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

__all__ = ["files_digest"]

_SAMPLE = 1 << 16
_SAMPLES = 16


def files_digest(path: str) -> bytes:
    """Identity of a folder of weights: names, sizes, and samples of each file, because reading
    140 GB at start takes too long. Empty if it is not a local folder."""
    folder = Path(path)
    if not path or not folder.is_dir():
        return b""
    files = sorted(
        file
        for file in folder.iterdir()
        if file.suffix in (".safetensors", ".bin", ".pt", ".gguf") and file.is_file()
    )
    return _sampled(tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files))


@functools.lru_cache(maxsize=64)
def _sampled(files: tuple[tuple[str, int, int], ...]) -> bytes:
    digest = hashlib.sha256()
    for name, size, _mtime in files:
        digest.update(f"{Path(name).name}\0{size}\0".encode())
        with open(name, "rb") as file:
            for i in range(_SAMPLES):
                file.seek(max(0, (size - _SAMPLE) * i // (_SAMPLES - 1)))
                digest.update(file.read(_SAMPLE))
    return digest.digest()
