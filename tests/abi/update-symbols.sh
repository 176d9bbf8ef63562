#!/usr/bin/env bash
# Writes tests/abi/symbols.txt from the libtessera.so just built (B=build). Look at the difference
# before committing it: a line that goes away is an ABI break and needs a new SOMAJOR.
set -eu
cd "$(dirname "$0")/../.."
so=${B:-build}/lib/libtessera.so
{
    echo "# Symbols exported by libtessera.so; made by tests/abi/update-symbols.sh."
    nm -D --defined-only "$so" | awk '$2 != "A" {print $3}' | LC_ALL=C sort
} >tests/abi/symbols.txt
echo "tests/abi/symbols.txt: $(grep -vc '^#' tests/abi/symbols.txt) symbols"
