#!/usr/bin/env bash
# tools/check-tree.sh: a small tree that keeps every rule passes; each rule, broken, is named with
# its place.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

check=$PWD/tools/check-tree.sh

# A tree of some layers, a public header and tests, below $tmp; as it would be without a build.
make_tree() {
    cd "$tmp" || return
    mkdir -p src/base src/cache src/model include/tessera tests/base tests/cache tests/model \
        tests/system docs tools
    export B=none
    echo '#include <stddef.h>' >include/tessera/tessera.h
    echo '#include <tessera/tessera.h>' >src/base/base.h
    printf '#include "base/base.h"\n#include <stdio.h>\n' >src/base/error.c
    printf '#include "cache/cache.h"\n#include "base/base.h"\n' >src/cache/index.c
    echo '#include "base/base.h"' >src/cache/cache.h
    printf '#include <tessera/tessera.h>\n#include <ggml.h>\n' >src/model/llama.c
    printf '#include "cache/cache.h"\n' >src/tessera.c
    touch tests/base/test_error.c tests/cache/test_index.c tests/model/test_llama.sh \
        tests/system/test_tessera.c
    chmod +x tests/model/test_llama.sh
}

# The check fails and its output holds every text given.
refused() {
    local out text
    out=$("$check" "$tmp" 2>&1) && { fail "not refused: $1" || return; }
    out=$(grep -v 'calls are not checked' <<<"$out")
    for text in "$@"; do
        [[ $out == *"$text"* ]] || fail "'$text' is not in: $out" || return
    done
    [ "$(wc -l <<<"$out")" -eq $(($# + 1)) ] || fail "more is reported than was broken: $out"
}

a_tree_that_keeps_the_rules_passes_in_silence() {
    local out
    make_tree || return
    out=$("$check" "$tmp" 2>&1) || fail "refused: $out" || return
    [ "$out" = 'check-tree: there are no objects in none/obj: calls are not checked' ] ||
        fail "said: $out"
}

this_tree_keeps_the_rules() {
    local out
    out=$("$check" 2>&1) || fail "refused: $out" || return
    [ -z "$out" ] || fail "said: $out"
}

a_file_of_801_lines_is_too_long() {
    make_tree || return
    seq 800 | sed 's/^/\/\/ /' >src/base/base.h
    "$check" "$tmp" &>/dev/null || fail "800 lines are refused" || return
    seq 801 | sed 's/^/\/\/ /' >tests/base/test_error.c
    refused 'tests/base/test_error.c: 801 lines, the limit is 800'
}

a_base_name_belongs_to_one_folder() {
    make_tree || return
    touch src/cache/error.c tests/cache/test_error.c
    refused 'src/cache/error.c: base name already taken by src/base/error.c'
}

a_layer_may_not_look_to_its_right() {
    make_tree || return
    printf '\n#  include "cache/cache.h"\n' >>src/base/error.c
    echo '#include <cache/cache.h>' >>src/base/base.h
    refused 'src/base/error.c:4: base may not include cache/cache.h, cache is not to its left' \
        'src/base/base.h:2: base may not include cache/cache.h'
}

layers_of_one_level_do_not_see_each_other() {
    make_tree || return
    mkdir -p src/blend src/daemon
    echo '#include "cache/cache.h"' >src/blend/blend.h
    printf '#include "cache/cache.h"\n#include "blend/blend.h"\n' >src/daemon/daemon.h
    refused 'src/daemon/daemon.h:2: daemon may not include blend/blend.h, blend is not to its left'
}

the_inside_of_the_cache_is_its_own() {
    make_tree || return
    mkdir -p src/daemon
    touch src/cache/core.h
    echo '#include "cache/core.h"' >>src/tessera.c
    echo '#include "cache/core.h"' >>src/cache/index.c
    printf '#include "cache/cache.h"\n#include "cache/core.h"\n' >src/daemon/daemon.h
    refused 'src/daemon/daemon.h:2: daemon may not include cache/core.h, which is the inside of the cache'
}

rooms_of_one_layer_see_each_other() {
    make_tree || return
    mkdir -p src/find src/daemon
    echo '#include "cache/cache.h"' >src/find/find.h
    echo '#include "find/find.h"' >>src/cache/index.c
    "$check" "$tmp" &>/dev/null || fail "two rooms of a layer are refused" || return
    echo '#include "find/find.h"' >src/daemon/daemon.h
    refused 'src/daemon/daemon.h:1: daemon may not include find/find.h, which is the inside of the cache'
}

a_call_to_the_right_is_found_without_an_include() {
    make_tree || return
    local folder
    echo 'void tsri_up(void); void tsri_down(void); void tsri_down(void) {tsri_up();}' >src/base/error.c
    echo 'void tsri_up(void); void tsri_down(void); void tsri_up(void) {tsri_down();}' >src/cache/index.c
    for folder in base/error cache/index; do
        mkdir -p "none/obj/src/${folder%/*}"
        "$CC" -c "src/$folder.c" -o "none/obj/src/$folder.o" || return
    done
    cp none/obj/src/cache/index.o none/obj/src/cache/gone.o # of a file that is no longer there
    refused 'src/base/error.c: base may not call tsri_up, cache is not to its left'
}

a_tag_means_one_thing() {
    make_tree || return
    printf 'struct tsr_device {\n    int x;\n};\n' >>src/base/base.h
    printf 'struct tsr_device {\n    int y;\n};\nstruct place {\n' >>src/cache/cache.h
    "$check" "$tmp" 2>/dev/null || fail "two kinds of a public handle are refused" || return
    printf '    struct place {\n    enum tsr_key { A };\n' >>src/base/base.h
    printf 'struct tsr_key {\n' >>include/tessera/tessera.h
    refused 'src/cache/cache.h:5: struct place already means something at src/base/base.h:5' \
        'src/base/base.h:6: enum tsr_key already means something at include/tessera/tessera.h:2'
}

an_include_names_its_folder_and_no_way_to_it() {
    make_tree || return
    printf '#include "cache.h"\n#include "../base/base.h"\n' >>src/cache/index.c
    refused 'src/cache/index.c:3: not of the form "folder/file.h": cache.h' \
        'src/cache/index.c:4: include by relative path: ../base/base.h'
}

an_unknown_folder_is_no_layer() {
    make_tree || return
    mkdir src/misc
    echo >src/misc/things.h
    refused 'src/misc/things.h: misc is not one of the layers'
}

model_sees_only_the_public_headers() {
    make_tree || return
    echo '#include "base/base.h"' >>src/model/llama.c
    refused 'src/model/llama.c:3: model may use only include/, not base/base.h'
}

a_public_header_includes_no_internal_one_and_holds_no_code() {
    make_tree || return
    echo '#include "base/base.h"' >>include/tessera/tessera.h
    echo 'static inline int one(void) { return 1; }' >>include/tessera/tessera.h
    refused 'include/tessera/tessera.h:2: a public header may not include base/base.h' \
        'include/tessera/tessera.h:3: code in a public header'
}

a_source_file_without_a_test_is_named_with_the_test_it_wants() {
    make_tree || return
    rm tests/cache/test_index.c tests/system/test_tessera.c
    refused 'src/cache/index.c: has no test: tests/cache/test_index.c' \
        'src/tessera.c: has no test: tests/*/test_tessera.c'
}

a_test_that_cannot_be_run_is_named() {
    make_tree || return
    chmod -x tests/model/test_llama.sh
    refused 'tests/model/test_llama.sh: is a test that cannot be run'
}

unfinished_work_is_found_and_words_that_hold_it_are_not() {
    make_tree || return
    echo '/* TSR_EXXX, mkstemp("a-XXXXXX"), stubborn */' >>src/base/base.h
    "$check" "$tmp" &>/dev/null || fail "a longer word is refused" || return
    echo '/* TODO: later */' >>src/base/base.h
    echo '/* a stub */' >>src/cache/cache.h
    refused 'src/base/base.h:3: unfinished work: /* TODO: later */' \
        'src/cache/cache.h:2: unfinished work: /* a stub */'
}

what_only_its_writer_saw_is_found_in_docs() {
    make_tree || return
    printf 'Prefill takes 5.8 s.\nIt took 5.8 s in another window.\n' >docs/notes.md
    refused 'docs/notes.md:2: only the writer knows what this means: It took 5.8 s in another window.'
}

a_path_of_one_machine_is_found_in_docs_and_tools() {
    make_tree || return
    local slash=/ # this script is checked too
    echo "see ${slash}home/me/notes and https://example.org/home/x" >docs/notes.md
    echo "cd ${slash}root/src" >tools/build
    refused 'docs/notes.md:1: path of one machine' 'tools/build:1: path of one machine'
}

letters_beyond_ascii_and_posix_typedefs_are_found() {
    make_tree || return
    printf '/* caf\303\251 */\ntypedef struct x tsr_x_t;\n' >>src/base/base.h
    refused 'src/base/base.h:2: not ASCII' 'src/base/base.h:3: typedef in _t'
}

a_symbol_with_a_foreign_name_is_found_in_both_libraries() {
    make_tree || return
    mkdir -p build/lib
    echo 'int tsr_a(void); int tsr_a(void) {return 1;} int loose; int tsri_b;' >a.c
    "$CC" -c -fPIC a.c -o a.o && ar rcs build/lib/libtessera.a a.o || return
    "$CC" -shared a.o -o build/lib/libtessera.so || return
    export B=build
    refused 'build/lib/libtessera.so: exports loose, which does not begin with tsr_' \
        'build/lib/libtessera.so: exports tsri_b' \
        'build/lib/libtessera.a: a.o defines loose, neither static nor tsr_ nor tsri_'
}

run a_tree_that_keeps_the_rules_passes_in_silence
run this_tree_keeps_the_rules
run a_file_of_801_lines_is_too_long
run a_base_name_belongs_to_one_folder
run a_layer_may_not_look_to_its_right
run layers_of_one_level_do_not_see_each_other
run the_inside_of_the_cache_is_its_own
run rooms_of_one_layer_see_each_other
run a_call_to_the_right_is_found_without_an_include
run a_tag_means_one_thing
run an_include_names_its_folder_and_no_way_to_it
run an_unknown_folder_is_no_layer
run model_sees_only_the_public_headers
run a_public_header_includes_no_internal_one_and_holds_no_code
run a_source_file_without_a_test_is_named_with_the_test_it_wants
run a_test_that_cannot_be_run_is_named
run unfinished_work_is_found_and_words_that_hold_it_are_not
run a_path_of_one_machine_is_found_in_docs_and_tools
run what_only_its_writer_saw_is_found_in_docs
run letters_beyond_ascii_and_posix_typedefs_are_found
run a_symbol_with_a_foreign_name_is_found_in_both_libraries
test_end
