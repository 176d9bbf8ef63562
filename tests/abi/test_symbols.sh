#!/usr/bin/env bash
# What libtessera.so exports is what the public headers declare and what symbols.txt lists. A name
# that vanishes from the list breaks programs; a new one is added by tests/abi/update-symbols.sh, in
# the commit that makes it.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

list=tests/abi/symbols.txt
update=tests/abi/update-symbols.sh

exported() { nm -D --defined-only "$B/lib/libtessera.so" | awk '$2 != "A" {print $3}' | sort; }

# Every declaration in the headers is TSR_API ... name(...).
declared() {
    cat include/tessera/*.h | tr '\n' ' ' | grep -oE 'TSR_API [^(;{]*\(' |
        grep -oE 'tsr_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u
}

the_library_exports_only_what_a_header_declares() {
    local extra
    extra=$(comm -23 <(exported) <(declared))
    [ -z "$extra" ] || fail "exported and in no header:" "$extra"
}

every_declared_function_is_exported() {
    local missing
    missing=$(comm -13 <(exported) <(declared))
    [ -z "$missing" ] || fail "declared and not exported:" "$missing"
}

no_symbol_of_the_list_is_gone() {
    local gone
    gone=$(comm -13 <(exported) <(grep -v '^#' "$list" | sort))
    [ -z "$gone" ] || fail "gone since $list was made, programs that use them break:" "$gone"
}

no_symbol_is_missing_from_the_list() {
    local new
    new=$(comm -23 <(exported) <(grep -v '^#' "$list" | sort))
    [ -z "$new" ] || fail "new; run $update and commit the list:" "$new"
}

every_symbol_is_in_the_list_of_calls() {
    local missing
    # shellcheck disable=SC2016  # backquotes of Markdown
    missing=$(comm -23 <(exported) <(grep -oE '^\| `tsr_[a-z0-9_]+`' docs/api.md | tr -d '|` ' | sort -u))
    [ -z "$missing" ] || fail "not in docs/api.md:" "$missing"
}

the_list_of_headers_has_as_many_calls_as_theirs() {
    local wrong
    # The section of each header has one row for each call; the table at the top has their numbers.
    wrong=$(awk -F'|' '
        /^\| `[a-z0-9]+\.h`/ { gsub(/[` ]/, "", $2); said[$2] = $4 + 0 }
        /^## / { header = substr($0, 4) }
        /^\| `tsr_/ { seen[header]++ }
        END { for (h in said) if (said[h] != seen[h] + 0) print h ": " said[h] ", not " seen[h] + 0 }
    ' docs/api.md)
    [ -z "$wrong" ] || fail "docs/api.md counts calls wrongly:" "$wrong"
}

the_library_has_its_soname() {
    local name
    name=$(objdump -p "$B/lib/libtessera.so" | awk '$1 == "SONAME" {print $2}')
    [[ $name =~ ^libtessera\.so\.[0-9]+$ ]] || fail "SONAME is '$name'" || return
    [ -e "$B/lib/$name" ] || fail "no $B/lib/$name"
}

run the_library_exports_only_what_a_header_declares
run every_declared_function_is_exported
run no_symbol_of_the_list_is_gone
run no_symbol_is_missing_from_the_list
run every_symbol_is_in_the_list_of_calls
run the_list_of_headers_has_as_many_calls_as_theirs
run the_library_has_its_soname
test_end
