#!/usr/bin/env bash
# Tests on a GPU: the connector's property test over CUDA, SGLang's pools, and real vLLM with random
# weights, every loaded byte compared. Needs a build (`make WITH_CUDA=1 all cuda`) and a Python with
# torch and vLLM. Without a GPU every case is skipped by name.
#
#   python/tests/gpu.sh [NAME...]    `property`, `sglang`, or vLLM cases whose names contain NAME
#   PYTHON=python3 B=build JOBS=4    the interpreter, the build, vLLM cases at a time
#   TESSERA_TEST_DEVICE=cpu          the same on a CPU (python/tests/engine.sh has its environment)
set -eu
tree=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
export TESSERA_LIBRARY=${TESSERA_LIBRARY:-$tree/${B:-build}/lib/libtessera.so}
export PYTHONPATH=$tree/python:$tree/python/tests/gpu${PYTHONPATH:+:$PYTHONPATH}
status=0
cases=()
property=0 sglang=0
for name in "$@"; do
    case $name in
        property) property=1 ;;
        sglang) sglang=1 ;;
        *) cases+=("$name") ;;
    esac
done
if [ $# -eq 0 ] || [ $property = 1 ]; then
    "$python" -W ignore "$tree/python/tests/test_cuda_engine.py" || status=1
fi
if [ $# -eq 0 ] || [ $sglang = 1 ]; then
    "$python" -W ignore "$tree/python/tests/gpu/test_sglang.py" || status=1
fi
if [ $# -eq 0 ] || [ ${#cases[@]} -gt 0 ]; then
    "$python" "$tree/python/tests/gpu/run.py" --jobs="${JOBS:-4}" "${cases[@]}" || status=1
fi
exit $status
