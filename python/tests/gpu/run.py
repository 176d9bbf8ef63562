"""Runs the cases of cases.py, each in a process of its own, some of them at a time.

run.py [--jobs=4] [NAME...]     all cases, or those whose names contain one of these
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 900 if os.environ.get("TESSERA_TEST_DEVICE") == "cpu" else 200
SKIPPED = 77


def names() -> list[str]:
    """Read, not imported: the cases import vLLM, and most runs are of one process per case."""
    return re.findall(r"^@case\ndef (\w+)", (HERE / "cases.py").read_text(), re.M)


def why_not() -> str | None:
    """What this machine lacks for any case."""
    if os.environ.get("TESSERA_TEST_DEVICE") == "cpu":
        return None
    try:
        import torch
    except ImportError:
        return "no torch"
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def run(name: str) -> tuple[str, int, float, str]:
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "cases.py"), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, code = process.communicate()[0], 124
    return name, code, time.monotonic() - start, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    chosen = [n for n in names() if not args.names or any(part in n for part in args.names)]
    lacking = why_not()
    if lacking:
        for name in chosen:
            print(f"skip  {name}: {lacking}")
        return 0
    failed = skipped = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, code, seconds, text in pool.map(run, chosen):
            lines = text.strip().splitlines()
            if code == 0:
                print(f"ok    {name} ({seconds:.0f} s)", flush=True)
                for line in lines:
                    if re.match(r"\d+ tokens: |\d+ preempt|kill \d", line):
                        print(f"          {line}")
            elif code == SKIPPED:
                skipped += 1
                print(f"skip  {name}: {lines[-1] if lines else ''}", flush=True)
            else:
                failed += 1
                print(f"FAIL  {name} ({seconds:.0f} s, status {code})", flush=True)
                print("\n".join("    " + line for line in lines[-40:]), flush=True)
    print(f"{len(chosen)} cases, {failed} failed, {skipped} skipped")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
