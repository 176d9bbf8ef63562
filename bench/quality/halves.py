"""halves.py - the two halves of every question set. Settings are chosen on the tune half; results
are reported on the test half, which is not looked at before. `tessera-lab answers --half` has the
same rule."""

import hashlib

HALVES = ("tune", "test", "all")


def half_of(name: str, number: str) -> str:
    """SHA-256 of "set/id" as a number: even is tune, odd is test."""
    return "test" if hashlib.sha256(f"{name}/{number}".encode()).digest()[-1] & 1 else "tune"


def wanted(half: str, name: str, number: str) -> bool:
    return half in ("all", half_of(name, number))
