#!/usr/bin/env bash
# The documents: what a reader copies out of them works. Programs and options exist, configurations
# are accepted, C compiles and is what the examples say. The README's own example is run by
# abi/test_readme.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

documents=(README.md CONTRIBUTING.md SECURITY.md docs/*.md docs/guides/*.md)

# Every block of C becomes a file of its own in $tmp, named by document and number.
extract_c() {
    awk -v to="$tmp" '
        FNR == 1 {name = FILENAME; gsub(/[\/.]/, "_", name); n = on = 0}
        /^```c$/ {on = 1; file = to "/" name "_" ++n ".c"; next}
        /^```/ {on = 0}
        on {print > file}' "${documents[@]}"
}

# A whole file, or one whose members are left to the reader.
check_whole() {
    sed 's/= \.\.\.,/= 0,/' "$1" >"$1.whole.c"
    "$CC" -std=c11 -D_GNU_SOURCE -Wall -Werror -Iinclude -fsyntax-only "$1.whole.c"
}

# Part of an example: each line is in one of them, indented otherwise perhaps, or a call in a check.
check_part() {
    local line example name
    name=$(basename "$1")
    while IFS= read -r line; do
        line=$(sed 's/^ *//; s/;* *$//' <<<"$line")
        [ -n "$line" ] || continue
        for example in examples/*.c; do
            grep -qF -- "$line" "$example" && continue 2
        done
        fail "$name: in no example: $line" || return
    done <"$1"
}

every_figure_of_the_readme_has_its_source() {
    command -v python3 >/dev/null || skip 'no python3' || return
    python3 tests/tools/figures.py README.md docs/performance.md docs/quality.md >"$tmp/out" || fail "in no table: $(cat "$tmp/out")" || return
    # One that is made up is noticed.
    sed 's/ 109 ms/ 107.3 ms/' README.md >"$tmp/README.md"
    ! python3 tests/tools/figures.py "$tmp/README.md" docs/performance.md docs/quality.md >"$tmp/out" || fail 'a wrong figure passes' || return
    sed 's/ 3\.6 % longer/ 3.9 % longer/; s/ 541 tokens/ 540 tokens/' README.md >"$tmp/README.md"
    python3 tests/tools/figures.py "$tmp/README.md" docs/performance.md docs/quality.md >"$tmp/out"
    [ "$(wc -l <"$tmp/out")" -eq 2 ] || fail "of a wrong overhead and a wrong speed: $(cat "$tmp/out")"
}

every_c_block_compiles_or_is_part_of_an_example() {
    local file n=0
    extract_c
    for file in "$tmp"/*_[0-9].c; do
        n=$((n + 1))
        if grep -q '^#include' "$file"; then
            check_whole "$file" || fail "$(basename "$file") does not compile" || return
        else
            check_part "$file" || return
        fi
    done
    [ "$n" -ge 3 ] || fail "only $n blocks of C found"
}

# Lines of configuration: indented, in a block of YAML, or a word of code in the text.
# shellcheck disable=SC2016  # marks of code, not commands
configurations() {
    local keys='host|disk|disk2|redis|s3|attached|tiers|server|blend'
    grep -ohE "^    ($keys): .*|^($keys): [{[].*|\`($keys): \{[^\`]*\`" "${documents[@]}" |
        sed 's/^ *//; s/^`//; s/`$//'
}

every_configuration_is_accepted() {
    local line out n=0
    while IFS= read -r line; do
        n=$((n + 1))
        echo "$line" >"$tmp/tessera.yaml"
        out=$("$B/bin/tessera" config check "$tmp/tessera.yaml" 2>&1) ||
            fail "$line: $out" || return
    done < <(configurations)
    [ "$n" -ge 8 ] || fail "only $n configurations found"
}

# Calls of tessera and tessera-lab in a line to copy or a word of code.
# shellcheck disable=SC2016
commands() {
    grep -ohE '(^    |`)(build/bin/)?tessera(-lab)? [a-z][^`]*' "${documents[@]}" |
        sed -E 's/^[` ]*(build\/bin\/)?//; s/ +#.*//'
}

# `PROGRAM COMMAND --help`, of one word or two.
help_of() {
    "$B/bin/$1" "$2" "$3" --help 2>/dev/null || "$B/bin/$1" "$2" --help 2>/dev/null
}

every_command_exists_and_has_its_flags() {
    local line words word help options n=0
    options=$("$B/bin/tessera" config show) || fail "config show failed" || return
    while IFS= read -r line; do
        n=$((n + 1))
        read -ra words <<<"$line"
        [ "${words[1]}" != help ] || continue
        help=$(help_of "${words[0]}" "${words[1]}" "${words[2]:---json}") ||
            fail "${words[0]} ${words[1]}: no such command" || return
        for word in "${words[@]}"; do
            [[ $word =~ ^--([a-z][a-z0-9_-]*) ]] || continue
            word=${BASH_REMATCH[1]}
            grep -qE -- "--$word([^a-z-]|\$)" <<<"$help" || grep -q "^ *${word//-/_} " <<<"$options" ||
                fail "$line: no --$word in its help" || return
        done
    done < <(commands | sort -u)
    [ "$n" -ge 8 ] || fail "only $n commands found"
}

every_script_exists_and_has_its_flags() {
    local script flag
    while read -r script flag; do
        [ -e "$script" ] || [ -e "$script.sh" ] || fail "$script does not exist" || return
        [ -z "$flag" ] || grep -qE -- "^ *$flag\)|\| *$flag\)|\"${flag}[=\"]" "$script" ||
            fail "$script has no $flag" || return
    done < <(grep -ohE 'tools/[a-z0-9-]+( --[a-z0-9-]+)?' "${documents[@]}" | sort -u)
}

every_bench_that_is_named_exists() {
    local name
    while IFS= read -r name; do
        compgen -G "bench/$name.*" >/dev/null || fail "there is no $name" || return
    done < <(grep -ohE '\bbench_[a-z0-9]+\b' "${documents[@]}" | sort -u)
}

every_engine_configuration_is_json() {
    command -v python3 >/dev/null || skip 'no python3 to read JSON with' || return
    python3 - examples/vllm/*.json -- "${documents[@]}" <<'PYTHON'
import json, re, sys

cut = sys.argv.index("--")
for path in sys.argv[1:cut]:
    json.load(open(path))
found = 0
for path in sys.argv[cut + 1:]:
    for text in re.findall(r"-config '(\{.*?\})'\n", open(path).read(), re.S):
        json.loads(text)
        found += 1
assert found, "no engine configuration found"
PYTHON
}

# A page may be light while the system is dark, and the other way round.
every_picture_is_well_formed_and_has_a_background() {
    command -v python3 >/dev/null || skip 'no python3' || return
    python3 - docs/*.svg examples/*/*.svg <<'PYTHON' >"$tmp/out" 2>&1 || fail "$(tail -3 "$tmp/out")"
import re, sys, xml.etree.ElementTree as tree

assert len(sys.argv) > 4, "no pictures"
for path in sys.argv[1:]:
    root = tree.parse(path).getroot()
    svg = root.tag.removesuffix("svg")
    style = "".join(root.findtext(f".//{svg}style") or "")
    page = next((e for e in root.iter(f"{svg}rect")), None)
    whole = page is not None and page.get("width") in ("100%", root.get("width"))
    assert whole and page.get("height") in ("100%", root.get("height")), f"{path}: no background"
    dark = re.search(r"@media ?\(prefers-color-scheme: ?dark\) ?\{(.*)\}", style, re.S)
    if page.get("class"):  # colours of both: then text and background change together
        assert dark, f"{path}: no dark part"
        for part in (style[: dark.start()], dark[1]):
            for rule in (rf"\.{page.get('class')} ?\{{ ?fill: ?#", r"text ?\{[^}]*fill: ?#"):
                assert re.search(rule, part), f"{path}: no {rule}"
for path in ("docs/reuse.svg", "examples/vllm-rag/rag.svg"):
    assert "prefers-color-scheme" in open(path).read(), f"{path}: no dark part"
PYTHON
}

run every_picture_is_well_formed_and_has_a_background
run every_c_block_compiles_or_is_part_of_an_example
run every_figure_of_the_readme_has_its_source
run every_configuration_is_accepted
run every_command_exists_and_has_its_flags
run every_script_exists_and_has_its_flags
run every_bench_that_is_named_exists
run every_engine_configuration_is_json
test_end
