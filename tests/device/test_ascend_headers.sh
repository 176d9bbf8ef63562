#!/usr/bin/env bash
# The declarations of AscendCL in src/device/ascend.h are those of CANN: compared, when compiled, with
# the headers in the wheel of torch_npu (tools/setup-ascend). Skipped where they are not.
set -u
B=${B:-build}
cc=$(sed -n 's/^CC=//p' "$B/flags" 2>/dev/null)
headers=$(echo "$(tools/setup-ascend --print-dir)"/torch_npu-*/include)
if [ ! -e "$headers/acl/acl.h" ]; then
    echo "    skipped: no headers of torch_npu: tools/setup --ascend"
    echo "# 0 passed 0 failed 1 skipped"
    exit 77
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cat >"$work/check.c" <<'END'
#include "device/ascend.h"

#include <acl/acl.h>

#define SAME_TYPE(name, result, parameters) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), result(*) parameters), #name);
/* Structs that pointers point to: theirs stand in the lists, and ours have the same form. */
#define tsri_acl_version aclCANNPackageVersion
#define tsri_acl_attributes aclrtPtrAttributes
#undef TSRI_ACL_BATCH
#define TSRI_ACL_BATCH aclrtMemcpyBatchAttr
TSRI_ACL_NEEDED(SAME_TYPE)
TSRI_ACL_OPTIONAL(SAME_TYPE)
#undef tsri_acl_version
#undef tsri_acl_attributes

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
#define SAME_MEMBER(ours, a, theirs, b) \
    SAME(offsetof(struct ours, a), offsetof(theirs, b)); \
    SAME(sizeof(((struct ours *)0)->a), sizeof(((theirs *)0)->b))
SAME(sizeof(struct tsri_acl_version), sizeof(aclCANNPackageVersion));
SAME_MEMBER(tsri_acl_version, version, aclCANNPackageVersion, version);
SAME(sizeof(struct tsri_acl_attributes), sizeof(aclrtPtrAttributes));
SAME_MEMBER(tsri_acl_attributes, location, aclrtPtrAttributes, location);
SAME(sizeof(struct tsri_acl_batch), sizeof(aclrtMemcpyBatchAttr));
SAME_MEMBER(tsri_acl_batch, dst, aclrtMemcpyBatchAttr, dstLoc);
SAME_MEMBER(tsri_acl_batch, src, aclrtMemcpyBatchAttr, srcLoc);
SAME_MEMBER(tsri_acl_location, id, aclrtMemLocation, id);
SAME_MEMBER(tsri_acl_location, type, aclrtMemLocation, type);

_Static_assert(ACL_ERROR_RT_FEATURE_NOT_SUPPORT == TSRI_ACL_NOT_SUPPORTED, "");
SAME(TSRI_ACL_NO_MEMORY, ACL_ERROR_RT_MEMORY_ALLOCATION);
SAME(TSRI_ACL_HBM, ACL_HBM_MEM);
SAME(TSRI_ACL_HUGE_FIRST, ACL_MEM_MALLOC_HUGE_FIRST);
SAME(TSRI_ACL_REGISTER_MAPPED, ACL_HOST_REGISTER_MAPPED);
SAME(TSRI_ACL_REG_MAPPED, ACL_HOST_REG_MAPPED);
SAME(TSRI_ACL_REG_PINNED, ACL_HOST_REG_PINNED);
SAME(TSRI_ACL_EVENT_SYNC, ACL_EVENT_SYNC);
SAME(TSRI_ACL_EVENT_COMPLETE, ACL_EVENT_RECORDED_STATUS_COMPLETE);
SAME(TSRI_ACL_STREAM_FAST_LAUNCH, ACL_STREAM_FAST_LAUNCH);
SAME(TSRI_ACL_STREAM_FAST_SYNC, ACL_STREAM_FAST_SYNC);
SAME(TSRI_ACL_HOST_TO_DEVICE, ACL_MEMCPY_HOST_TO_DEVICE);
SAME(TSRI_ACL_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_HOST);
SAME(TSRI_ACL_DEVICE_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_DEVICE);
SAME(TSRI_ACL_AT_HOST, ACL_MEM_LOCATION_TYPE_HOST);
SAME(TSRI_ACL_AT_DEVICE, ACL_MEM_LOCATION_TYPE_DEVICE);
SAME(TSRI_ACL_PACKAGE_CANN, ACL_PKG_NAME_CANN);

int main(void)
{
    return ACL_ERROR_REPEAT_INITIALIZE == TSRI_ACL_REPEAT_INITIALIZE ? 0 : 1;
}
END
# They are compiled as they are, and a wrong declaration is refused.
compiles() {
    ${cc:-cc} -std=gnu11 -D_GNU_SOURCE -Wno-deprecated-declarations -I"$1" -Isrc -Iinclude \
        -isystem "$headers" "$work/check.c" -o "$work/check" 2>"$work/log"
}
mkdir -p "$work/wrong/device"
sed 's/X(aclrtFree, int, (void \*p))/X(aclrtFree, int, (void *p, size_t bytes))/' \
    src/device/ascend.h >"$work/wrong/device/ascend.h"
if compiles src && "$work/check"; then
    echo "  ok      declarations are those of ${headers%/include}"
    if compiles "$work/wrong"; then
        echo "  FAILED  a wrong declaration is refused"
        echo "# 1 passed 1 failed 0 skipped"
        exit 1
    fi
    echo "  ok      a wrong declaration is refused"
    echo "# 2 passed 0 failed 0 skipped"
else
    head -20 "$work/log"
    echo "  FAILED  declarations are those of $headers"
    echo "# 0 passed 1 failed 0 skipped"
    exit 1
fi
