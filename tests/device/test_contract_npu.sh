#!/usr/bin/env bash
# The contract suite over the fake AscendCL, apart from the other devices: both together would take too
# long for one test. Three variants of the device, all eight with TESSERA_TEST_LONG=1.
set -u
B=${B:-build}
if grep -qs '^SAN=.*thread' "$B/flags"; then # one thread and many copies: minutes for nothing
    echo "    skipped: not with the thread sanitizer"
    echo "# 0 passed 0 failed 1 skipped"
    exit 77
fi
if [ -n "${TESSERA_TEST_LONG-}" ]; then
    exec "$B/tests/device/test_contract" npu
fi
exec "$B/tests/device/test_contract" npu some
