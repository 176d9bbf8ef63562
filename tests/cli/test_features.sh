#!/usr/bin/env bash
# The processor features that version and doctor report.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

features_are_those_the_kernel_knows() {
    local name names word known
    known=" $(sed -nE 's/^(flags|Features)[^:]*: //p' /proc/cpuinfo | head -n 1) "
    [ "$known" != '  ' ] || skip '/proc/cpuinfo lists no features' || return
    t version
    read -ra names < <(sed -n 's/^  cpu  *//p' <<<"$out")
    for name in "${names[@]}"; do
        case $name in
        none) continue ;;
        sse4.2) word=sse4_2 ;;
        sha) word=sha_ni ;;
        *) word=$name ;;
        esac
        [[ $known == *" $word "* ]] || fail "$name is not among:$known" || return
    done
    [[ $known != *' avx2 '* && $known != *' asimd '* ]] || [[ $out == *avx2* || $out == *asimd* ]] ||
        fail "avx2 or asimd is missing: $out"
}

run features_are_those_the_kernel_knows
test_end
