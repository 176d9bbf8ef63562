"""Which versions of vLLM the connector was checked with. No vLLM is imported here."""

from __future__ import annotations

import re

FIRST, LAST = 23, 32  # 0.23.* to 0.32.*
KNOWN = f"0.{FIRST} to 0.{LAST}"


def minor(version: str) -> int | None:
    """26 of 0.26.1; None: of another major version, or no version at all."""
    found = re.match(r"0\.(\d+)\.", version + ".")
    return int(found[1]) if found else None


def unknown(version: str) -> str | None:
    """Why the connector does not work with this version; None: it does."""
    number = minor(version)
    if number is None or not FIRST <= number <= LAST:
        return f"vLLM {version} is not one of the versions it was checked with ({KNOWN})"
    return None
