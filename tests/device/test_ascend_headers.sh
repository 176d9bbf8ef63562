#!/usr/bin/env bash
# The declarations of CANN are those of CANN: of AscendCL in src/device/ascend.h, compared when compiled
# with the headers in the wheel of torch_npu (tools/setup-ascend), and of operators in
# src/device/ascend_nn.h, compared with those of a CANN toolkit (ASCEND_HOME_PATH), since the wheel has
# none. Skipped by name where they are not.
set -u
B=${B:-build}
cc=$(sed -n 's/^CC=//p' "$B/flags" 2>/dev/null)
headers=$(echo "$(tools/setup-ascend --print-dir)"/torch_npu-*/include)
toolkit=${ASCEND_HOME_PATH:-/nowhere}/include
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

ok() { # status, what
    if [ "$1" = 0 ]; then
        echo "  ok      $2"
        passed=$((passed + 1))
    else
        echo "  FAILED  $2"
        failed=$((failed + 1))
        head -20 "$work/log"
    fi
}

skip() {
    echo "    skipped: $1"
    skipped=$((skipped + 1))
}

cat >"$work/check.c" <<'END'
#include "device/ascend_nn.h"

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
SAME(TSRI_ACL_AT_NO_DEVICE, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
SAME(TSRI_ACL_AT_NUMA, ACL_MEM_LOCATION_TYPE_HOST_NUMA);
SAME(TSRI_ACL_PACKAGE_CANN, ACL_PKG_NAME_CANN);
SAME(TSRI_ACL_PACKAGE_DRIVER, ACL_PKG_NAME_DRIVER);
SAME(TSRI_ACL_F32, ACL_FLOAT);
SAME(TSRI_ACL_F16, ACL_FLOAT16);
SAME(TSRI_ACL_INT8, ACL_INT8);
SAME(TSRI_ACL_INT64, ACL_INT64);
SAME(TSRI_ACL_BF16, ACL_BF16);
SAME(TSRI_ACL_ND, ACL_FORMAT_ND);
SAME(sizeof(enum tsri_acl_dtype), sizeof(aclDataType));
SAME(sizeof(int), sizeof(aclFormat));

int main(void)
{
    return ACL_ERROR_REPEAT_INITIALIZE == TSRI_ACL_REPEAT_INITIALIZE ? 0 : 1;
}
END
# ---- AscendCL ----
compiles() {
    ${cc:-cc} -std=gnu11 -D_GNU_SOURCE -Wno-deprecated-declarations -I"$1" -Isrc -Iinclude \
        -isystem "$headers" "$work/check.c" -o "$work/check" 2>"$work/log"
}
if [ -e "$headers/acl/acl.h" ]; then
    mkdir -p "$work/wrong/device"
    sed 's/X(aclrtFree, int, (void \*p))/X(aclrtFree, int, (void *p, size_t bytes))/' \
        src/device/ascend.h >"$work/wrong/device/ascend.h"
    compiles src && "$work/check"
    ok $? "declarations are those of ${headers%/include}"
    ! compiles "$work/wrong"
    ok $? "a wrong declaration is refused"
else
    skip "no headers of torch_npu: tools/setup --ascend"
fi

# ---- operators ----
# Their headers are C++, and their tensors have types of their own: parameters agree when both are
# pointers to what may or may not be written, or numbers of one size.
lists() { # the lists of the header, as they are
    sed -n '/^#define TSRI_ACLNN_BASE/,/clang-format on/p' "$1" | sed '/^\/\*/d'
}
compare() { # with an include line in their.h
    cat >"$work/compare.cc" <<'END'
#include <cstddef>
#include <cstdint>
#include <type_traits>
enum tsri_acl_dtype { none = 0x7fffffff };
#include "lists.h"
#include "their.h"

template <class A, class B> constexpr bool fits_one()
{
    using namespace std;
    if constexpr (is_pointer_v<A> && is_pointer_v<B>)
        return is_const_v<remove_pointer_t<A>> == is_const_v<remove_pointer_t<B>> &&
               is_pointer_v<remove_pointer_t<A>> == is_pointer_v<remove_pointer_t<B>>;
    else
        return is_pointer_v<A> == is_pointer_v<B> && sizeof(A) == sizeof(B) &&
               is_floating_point_v<A> == is_floating_point_v<B>;
}
template <class A, class B> struct fits : std::false_type {};
template <class A, class... As, class B, class... Bs> struct fits<A (*)(As...), B (*)(Bs...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(As) != sizeof...(Bs)) return false;
        else return fits_one<A, B>() && (fits_one<As, Bs>() && ...);
    }();
};
#define SAME(name, result, parameters) \
    static_assert(fits<result(*) parameters, decltype(&name)>::value, #name);
#define SAME_BOTH(name, ...) \
    SAME(name##GetWorkspaceSize, int, (__VA_ARGS__, uint64_t *, void **)) \
    SAME(name, int, (void *, uint64_t, void *, void *))
TSRI_ACLNN_BASE(SAME)
TSRI_ACLNN_OPERATORS(SAME_BOTH)
END
    ${CXX:-g++} -std=c++17 -fsyntax-only -I"$work" -isystem "$toolkit" "$work/compare.cc" 2>"$work/log"
}
if ! command -v "${CXX:-g++}" >/dev/null; then
    skip "no C++ compiler for the headers of operators"
else
    # The comparison itself: with our own declarations, and with one parameter more.
    lists src/device/ascend_nn.h >"$work/lists.h"
    cat >"$work/their.h" <<'END'
#define DECLARE(name, result, parameters) result name parameters;
#define DECLARE_BOTH(name, ...) \
    int name##GetWorkspaceSize(__VA_ARGS__, uint64_t *, void **); \
    int name(void *, uint64_t, void *, void *);
TSRI_ACLNN_BASE(DECLARE)
TSRI_ACLNN_OPERATORS(DECLARE_BOTH)
END
    compare
    ok $? "declarations of operators are their own"
    sed 's/__VA_ARGS__, uint64_t/__VA_ARGS__, const void *, uint64_t/' -i "$work/their.h"
    ! compare
    ok $? "an operator with one parameter more is refused"
    if [ -e "$toolkit/aclnnop/aclnn_cast.h" ]; then
        echo '#include <acl/acl.h>' >"$work/their.h"
        for name in aclnn/acl_meta aclnnop/aclnn_{cast,mul,rotary_position_embedding,index_select,scatter_pa_kv_cache}; do
            echo "#include <$name.h>" >>"$work/their.h"
        done
        compare
        ok $? "declarations of operators are those of $toolkit"
    else
        skip "no headers of operators: ASCEND_HOME_PATH names no CANN toolkit"
    fi
fi
echo "# $passed passed $failed failed $skipped skipped"
[ "$failed" = 0 ] || exit 1
[ "$passed" -gt 0 ] || exit 77
