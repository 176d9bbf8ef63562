#!/usr/bin/env bash
# tools/check-arm where something is missing: it says what to run, and is skipped. What it checks is
# too slow for here.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

emulate() { ARM_EMULATE=1 ARM_LLAMA=$tmp/none B=$tmp/b tools/check-arm "$@" 2>&1; }

without_an_emulator_it_says_what_to_run() {
    local out status
    out=$(ARM_CC=sh ARM_CXX=sh ARM_QEMU=$tmp/none emulate)
    status=$?
    [ "$status" -eq 77 ] || fail "status $status: $out" || return
    [[ $out == *"no $tmp/none: run tools/setup --arm"* ]] || fail "said: $out"
}

# A compiler that makes nothing and an emulator that runs nothing are enough to get there.
without_a_llama_for_arm_it_says_what_to_run() {
    local out status
    out=$(ARM_CC=true ARM_CXX=true ARM_QEMU=true emulate test_ggml_session)
    status=$?
    [ "$status" -eq 77 ] || fail "status $status: $out" || return
    [[ $out == *"no llama.cpp for Arm in $tmp/none: run tools/setup --arm"* ]] || fail "said: $out"
}

run without_an_emulator_it_says_what_to_run
run without_a_llama_for_arm_it_says_what_to_run
test_end
