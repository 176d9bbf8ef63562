#!/usr/bin/env bash
# Tests on a GPU: the connector's property test over CUDA, and real vLLM with random weights, every
# loaded byte compared. Needs a build (`make WITH_CUDA=1 all cuda`) and a Python with torch and vLLM.
# Without a GPU every case is skipped by name.
#
#   python/tests/gpu.sh [NAME...]    cases whose names contain one of these; `property` is the first
#   PYTHON=python3 B=build JOBS=4    the interpreter, the build, cases at a time
#   TESSERA_TEST_DEVICE=cpu          the same on a CPU (python/tests/engine.sh has its environment)
set -eu
tree=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
export TESSERA_LIBRARY=${TESSERA_LIBRARY:-$tree/${B:-build}/lib/libtessera.so}
export PYTHONPATH=$tree/python:$tree/python/tests/gpu${PYTHONPATH:+:$PYTHONPATH}
status=0
if [ $# -eq 0 ] || [[ " $* " == *" property "* ]]; then
    "$python" -W ignore "$tree/python/tests/test_cuda_engine.py" || status=1
fi
names=()
for name in "$@"; do [ "$name" = property ] || names+=("$name"); done
if [ $# -eq 0 ] || [ ${#names[@]} -gt 0 ]; then
    "$python" "$tree/python/tests/gpu/run.py" --jobs="${JOBS:-4}" "${names[@]}" || status=1
fi
exit $status
