#!/usr/bin/env bash
# Runs a Python program below python/tests in the environment of tools/setup-engines, with the
# library of this build.
#
#   python/tests/engine.sh vllm/test_engine.py [argument...]
#   B=build                  which library
#   TESSERA_TEST_VLLM        a folder with another vLLM, as pip install --no-deps --target leaves it
set -eu
tree=$(cd "$(dirname "$0")/../.." && pwd)
home=$("$tree/tools/setup-engines" --print-dir)
if ! "$tree/tools/setup-engines" --check; then
    echo "the engines are not installed: run tools/setup --engines" >&2
    exit 1
fi
program=$tree/python/tests/$1
shift
export TESSERA_LIBRARY=${TESSERA_LIBRARY:-$tree/${B:-build}/lib/libtessera.so}
export TESSERA_TEST_VLLM_MODEL=${home%/*}/models/SmolLM2-135M-Instruct.f32
export PYTHONPATH=${TESSERA_TEST_VLLM:+$TESSERA_TEST_VLLM:}$tree/python:$tree/python/tests:${program%/*} PATH=$home/bin:$PATH
if [ -f "$home/lib/sbgemm.so" ]; then export LD_PRELOAD=$home/lib/sbgemm.so; fi
# vLLM compiles its draft search with numba, which on some virtual Arm machines takes the processor
# for one with instructions that the machine does not have.
export NUMBA_CPU_NAME=${NUMBA_CPU_NAME:-generic}
exec "$home/bin/python" -W ignore "$program" "$@"
