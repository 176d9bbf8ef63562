#!/usr/bin/env bash
# The devices in tessera doctor.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

the_cpu_is_named_with_its_code_path_and_memory() {
    t doctor --host_size=1M
    exits 0 || return
    grep -qE '^ok +device cpu +[a-z0-9_]+, 0 threads; [0-9.]+ [KMGT]iB, ' <<<"$out" || fail "$out"
}

a_missing_device_is_one_line_and_no_warning() {
    mkdir "$tmp/lib"
    printf 'no library' >"$tmp/lib/libtessera-cuda.so"
    LD_LIBRARY_PATH=$tmp/lib t doctor --host_size=1M
    exits 0 || return
    grep -qE '^ok +device cuda +not available: .*libtessera-cuda.so' <<<"$out" || fail "$out"
}

a_device_that_is_wanted_and_missing_fails() {
    local device
    for device in cuda none_such; do
        LD_LIBRARY_PATH=$tmp/lib t doctor --host_size=1M --device="$device"
        exits 1 || return
        grep -qE "^fail +device $device +not available: .*libtessera-$device.so" <<<"$out" || fail "$out" || return
        grep -q 'option device asks for it' <<<"$out" || fail "$out" || return
    done
}

# Over the fake AscendCL of the tests.
an_npu_is_named_with_what_it_uses_and_what_is_missing() {
    local fake=${tessera%/bin/tessera}/tests/fakeacl
    export LD_LIBRARY_PATH=${tessera%/bin/tessera}/lib TESSERA_ASCENDCL_LIB=$tmp/none.so
    t doctor --host_size=1M --device=npu
    exits 1 || return
    grep -qE '^fail +device npu +not available: npu: no AscendCL: .*set_env.sh' <<<"$out" || fail "$out" || return
    export TESSERA_ASCENDCL_LIB=$fake/libascendcl.so TESSERA_OPAPI_LIB=$fake/libopapi.so
    t doctor --host_size=1M --device=npu
    grep -qE '^ok +device npu +Ascend910B3, CANN 9.0.0, batched copies; never run on an NPU; driver 25.2.0, AscendCL 1.14.2; 1.0 GiB' \
        <<<"$out" || fail "$out" || return
    t doctor --host_size=1M --device=npu --json
    grep -qE '"device npu","status":"ok","found":"Ascend910B3, .*; driver 25.2.0, AscendCL 1.14.2; 1.0 GiB' \
        <<<"$out" || fail "$out" || return
    t doctor --host_size=1M --device=npu --device_operators=true
    grep -qE '^ok +device npu .*, all operators; never run on an NPU' <<<"$out" || fail "$out" || return
    TESSERA_OPAPI_LIB=$tmp/none.so t doctor --host_size=1M --device=npu --device_operators=true
    grep -qE '^ok +device npu .*, no operators: no libopapi.so; ' <<<"$out" || fail "$out" || return
    unset LD_LIBRARY_PATH TESSERA_ASCENDCL_LIB TESSERA_OPAPI_LIB
}

what_page_locking_costs_is_said() {
    (
        ulimit -S -l 8192 2>/dev/null || exit 77
        t doctor --host_size=1M
        exits 0 || return 1
        grep -qE '^ok +locked memory .*page-locked in about [0-9.]+ ms' <<<"$out" ||
            fail "$out"
        t doctor --host_size=64M
        grep -qE '^warn +locked memory .*page-locked in about [0-9.]+ ms' <<<"$out" ||
            fail "$out"
    )
    local result=$?
    [ "$result" -ne 77 ] || skip 'no limit can be set'
    return "$result"
}

run the_cpu_is_named_with_its_code_path_and_memory
run a_missing_device_is_one_line_and_no_warning
run a_device_that_is_wanted_and_missing_fails
run an_npu_is_named_with_what_it_uses_and_what_is_missing
run what_page_locking_costs_is_said
test_end
