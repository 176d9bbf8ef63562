#!/usr/bin/env bash
# The public headers, one by one and all together, in every language and with every compiler that
# users may have: C11 and C++17, gcc and clang, strict warnings.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

headers=(include/tessera/*.h)
warnings='-Wall -Wextra -Wpedantic -Wundef -Werror'

# $1 compiler, $2 language, $3 standard, the rest: flags. Each header alone, then all of them twice.
compile() {
    local compiler=$1 language=$2 standard=$3 header
    shift 3
    command -v "$compiler" >/dev/null || { skip "no $compiler here" || return; }
    for header in "${headers[@]}"; do
        echo "#include <${header#include/}>" >"$tmp/one.c"
        # shellcheck disable=SC2086
        "$compiler" -x "$language" -std="$standard" $warnings "$@" -Iinclude -fsyntax-only \
            "$tmp/one.c" || fail "$header alone, $compiler -std=$standard" || return
        cat "$tmp/one.c" >>"$tmp/all.c"
    done
    cat "$tmp/all.c" "$tmp/all.c" >"$tmp/twice.c"
    # shellcheck disable=SC2086
    "$compiler" -x "$language" -std="$standard" $warnings "$@" -Iinclude -fsyntax-only \
        "$tmp/twice.c" || fail "all headers, $compiler -std=$standard"
}

there_are_headers() { [ -f "${headers[0]}" ] || fail "no include/tessera/*.h"; }
every_header_is_c11_for_gcc() { compile gcc c c11 -Wshadow -Wstrict-prototypes -Wc++-compat; }
every_header_is_cpp17_for_gcc() { compile g++ c++ c++17; }
every_header_is_c11_for_clang() { compile clang c c11 -Wstrict-prototypes; }
every_header_is_cpp17_for_clang() { compile clang++ c++ c++17; }

# A formatter that reflows comments makes one paragraph of lists, tables and call orders.
contracts_keep_the_shape_they_were_written_in() {
    local spoilt
    grep -qx 'ReflowComments: false' .clang-format || fail "clang-format reflows comments" || return
    spoilt=$(grep -nE '[^ *].*\b(Threads|Memory|Errors|Fork): ' "${headers[@]}") &&
        { fail "the words of a contract begin a line: $spoilt" || return; }
    # A line of a table that is too long is continued below its own column, never at the margin.
    spoilt=$(awk 'FNR == 1 { row = 0 }
        row && /^ \* [a-z]/ { print FILENAME ":" FNR ": " $0 }
        { row = /^ \*   [^ ].*[^ ]   +[^ ]/ || /^ \*          +[^ ]/ }' "${headers[@]}")
    [ -z "$spoilt" ] || fail "a table was run together: $spoilt"
}

# What a header declares must be linkable from C++: that is what extern "C" is for.
a_cpp_program_links() {
    command -v c++ >/dev/null || { skip "no c++ here" || return; }
    cat >"$tmp/main.cpp" <<'END'
#include <tessera/tessera.h>
#include <cstring>
int main()
{
    return std::strcmp(tsr_strerror(TSR_ENOENT), "not found") != 0;
}
END
    # The C++ driver of the same family: a sanitizer's runtimes do not mix.
    local cpp=g++
    [[ $CC == *clang* ]] && cpp=clang++
    # shellcheck disable=SC2086
    "$cpp" -std=c++17 $san -Iinclude "$tmp/main.cpp" -o "$tmp/main" -L"$B/lib" -ltessera ||
        return
    LD_LIBRARY_PATH=$B/lib "$tmp/main" || fail "the program failed"
}

the_version_of_the_header_is_that_of_the_file() {
    local header
    header=$(awk '/^#define TSR_VERSION_(MAJOR|MINOR|PATCH) / { v = v "." $3 } END { print substr(v, 2) }' \
        include/tessera/tessera.h)
    [ "$header" = "$(cat VERSION)" ] || fail "tessera.h says $header, VERSION says $(cat VERSION)"
}

# The program at the top of tessera.h, without the stars in front of it.
hello() { sed -n '/^ \* Hello, world/,/^ \*     }$/p' include/tessera/tessera.h | sed '1,2d; s/^ \* \{0,5\}//'; }

hello_world_has_twenty_lines_and_runs() {
    local out
    hello >"$tmp/hello.c"
    [ "$(wc -l <"$tmp/hello.c")" -le 20 ] || fail "$(wc -l <"$tmp/hello.c") lines" || return
    sed 1d examples/hello.c | cmp - "$tmp/hello.c" || fail "examples/hello.c is another program" || return
    # shellcheck disable=SC2086
    "$CC" -std=c11 -Wall -Wextra -Wpedantic -Werror $san -Iinclude "$tmp/hello.c" -o "$tmp/hello" \
        -L"$B/lib" -ltessera || return
    out=$(LD_LIBRARY_PATH=$B/lib "$tmp/hello" 2>&1) || fail "it failed: $out" || return
    [ "$out" = '4 of 4 tokens from the cache, K[0] = 0.5' ] || fail "it said: $out"
}

run there_are_headers
run every_header_is_c11_for_gcc
run every_header_is_cpp17_for_gcc
run every_header_is_c11_for_clang
run every_header_is_cpp17_for_clang
run contracts_keep_the_shape_they_were_written_in
run a_cpp_program_links
run the_version_of_the_header_is_that_of_the_file
run hello_world_has_twenty_lines_and_runs
test_end
