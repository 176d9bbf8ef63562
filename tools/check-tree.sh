#!/usr/bin/env bash
# check-tree.sh - the rules of the tree that no compiler knows: short files, one place for each
# name, layers that look only to their left, a test beside every source file, clean symbols. Prints
# one line "where: what is wrong" for each breach and fails if there is any. docs/style.md says why.
#
#   tools/check-tree.sh [folder]     the tree to check, this one if not given
#   B=build                          where it was built; calls and symbols are checked if it was
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
B=${B:-build}
LINES_MAX=800
# From left to right. Folders joined by commas are on one level and do not see each other; those
# joined by + are rooms of one layer, which do.
LAYERS='base config stats chunk policy device wire tier disk,redis,s3 cache+find+served tessera.c deliver blend,connector,daemon,search answer serve cli lab'
# Of the cache, the layers right of deliver see these headers; the others are its inside.
CACHE_SHOWS='cache/cache.h cache/events.h cache/source.h served/link.h'
# For awk: may_see(a, b), whether a file of folder a may use folder b.
# shellcheck disable=SC2016  # awk expands
MAY_SEE='
    BEGIN {
        n_levels = split(order, levels, " ")
        for (i = 1; i <= n_levels; i++) {
            n_names = split(levels[i], names, "[,+]")
            for (j = 1; j <= n_names; j++) {
                rank[names[j]] = i
                layer[names[j]] = levels[i] ~ /[+]/ ? levels[i] : names[j]
            }
        }
    }
    function may_see(a, b) { return layer[a] == layer[b] || rank[b] < rank[a] }
'

wrong() { echo "$1: $2"; }

# Files below the given folders, those that exist, whose name ends in one of the suffixes.
files() {
    local suffixes=$1 folder
    shift
    for folder in "$@"; do
        [ -e "$folder" ] || continue
        find "$folder" -type f -regextype posix-extended -regex ".*\.($suffixes)"
    done | sort
}

# Lines of files that match a pattern, as "file:line: what".
forbid() {
    local what=$1 pattern=$2 line
    shift 2
    [ $# -gt 0 ] || return 0
    while IFS= read -r line; do
        wrong "$(cut -d: -f1,2 <<<"$line")" \
            "$what: $(cut -d: -f3- <<<"$line" | sed 's/^ *//' | cut -c1-80)"
    done < <(LC_ALL=C grep -nHE "$pattern" "$@")
}

check_lengths() {
    local file n
    while IFS= read -r file; do
        n=$(wc -l <"$file")
        [ "$n" -le $LINES_MAX ] || wrong "$file" "$n lines, the limit is $LINES_MAX"
    done < <(files 'c|cpp|h|cu|sh|py' src include tests bench examples tools python)
}

# A base name belongs to one folder: log lines, archives and grep name files without their folder.
check_names() {
    files 'c|cpp|h|cu' src | awk -F/ '{
        folder = $0; sub("/[^/]*$", "", folder)
        name = $NF; sub("[.][^.]*$", "", name)
        if (!(name in first)) { first[name] = $0; home[name] = folder }
        if (home[name] != folder) print $0 ": base name already taken by " first[name]
    }'
}

# A folder includes itself and those to its left; model and the public headers see only include/.
check_layers() {
    # shellcheck disable=SC2046  # file names of the tree have no spaces
    awk -v order="$LAYERS" -v shows="$CACHE_SHOWS" "$MAY_SEE"'
        FNR == 1 {
            split(FILENAME, parts, "/")
            mine = parts[1] == "include" ? "include" : parts[2]
            if (mine != "include" && mine != "model" && !(mine in rank))
                print FILENAME ": " mine " is not one of the layers: " order
        }
        /^[ \t]*#[ \t]*include[ \t]*["<]/ {
            quoted = $0 ~ /include[ \t]*"/
            target = $0
            sub(/^[^"<]*["<]/, "", target)
            sub(/[">].*/, "", target)
            folder = target
            if (!sub(/\/.*/, "", folder)) folder = ""
            where = FILENAME ":" FNR ": "
            if (target ~ /(^|\/)\.\.?\//) print where "include by relative path: " target
            else if (mine == "include") {
                if (quoted || folder in rank) print where "a public header may not include " target
            } else if (folder == "tessera") next
            else if (mine == "model") {
                if (folder in rank) print where "model may use only include/, not " target
            } else if (folder in rank) {
                if (!may_see(mine, folder))
                    print where mine " may not include " target ", " folder " is not to its left"
                else if (layer[folder] == layer["cache"] && rank[mine] > rank["deliver"] &&
                         index(" " shows " ", " " target " ") == 0)
                    print where mine " may not include " target ", which is the inside of the cache"
            } else if (quoted) print where "not of the form \"folder/file.h\": " target
        }
    ' $(files 'c|cpp|h|cu' src include) /dev/null
}

# The same of calls, as the objects have them: a declaration can be had without its header.
check_calls() {
    local object source objects=()
    while IFS= read -r object; do
        source=${object#"$B/obj/"}
        [ ! -f "${source%.o}.c" ] || objects+=("$object")
    done < <(files o "$B/obj/src")
    [ ${#objects[@]} -gt 0 ] || {
        echo "check-tree: there are no objects in $B/obj: calls are not checked" >&2
        return
    }
    nm -A -g "${objects[@]}" 2>/dev/null | awk -v order="$LAYERS" -v top="$B/obj/src/" "$MAY_SEE"'
        {
            file = substr($1, length(top) + 1)
            sub(/[.]o:.*/, ".c", file)
            folder = file
            sub(/\/.*/, "", folder)
            if ($(NF - 1) !~ /^[Uw]$/) home[$NF] = folder
            else { n++; from[n] = file; mine[n] = folder; name[n] = $NF }
        }
        END {
            for (i = 1; i <= n; i++) {
                to = home[name[i]]
                if (mine[i] in rank && to in rank && !may_see(mine[i], to))
                    print "src/" from[i] ": " mine[i] " may not call " name[i] ", " to " is not to its left"
            }
        }
    '
}

# A tag means one thing, also where two files keep it to themselves. A public handle that include/
# only declares has a definition for each kind that there is (struct tsr_device).
check_tags() {
    # shellcheck disable=SC2046  # file names of the tree have no spaces
    awk '
        /^[ \t]*(struct|union|enum)[ \t]+[A-Za-z0-9_]+[ \t]*[{]/ {
            tag = $2
            sub(/[{].*/, "", tag)
            public = FILENAME ~ /^include/
            if (!(tag in first)) { first[tag] = FILENAME ":" FNR; in_public[tag] = public }
            else if (tag !~ /^tsr_/ || public || in_public[tag])
                print FILENAME ":" FNR ": " $1 " " tag " already means something at " first[tag]
        }
    ' $(files 'c|cpp|h|cu' src include) /dev/null
}

# src/<folder>/<file>.c has tests/<folder>/test_<file>.c (or .sh, for what is driven from outside), and
# a script can be run.
check_tests() {
    local file folder name
    while IFS= read -r file; do
        folder=$(basename "$(dirname "$file")") name=$(basename "${file%.*}")
        [ "$folder" = src ] && folder='*'
        compgen -G "tests/$folder/test_$name.c" >/dev/null ||
            compgen -G "tests/$folder/test_$name.sh" >/dev/null ||
            wrong "$file" "has no test: tests/$folder/test_$name.c"
    done < <(files 'c|cpp' src)
    while IFS= read -r file; do
        [ -x "$file" ] || wrong "$file" 'is a test that cannot be run: chmod +x'
    done < <(compgen -G 'tests/*/test_*.sh')
}

check_words() {
    local sources all
    mapfile -t sources < <(files 'c|cpp|h|cu|map' src include)
    mapfile -t all < <(
        files 'c|cpp|h|cu|map|sh|py' src include tests bench examples python
        files '[1-8]|md|in' man docs README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md tessera.pc.in
        find Makefile tools packaging .ci -type f ! -name check-tree.sh 2>/dev/null
    )
    forbid 'unfinished work' \
        '(^|[^A-Za-z0-9_])(TODO|FIXME|XXX|HACK|[Ss]tub|STUB)($|[^A-Za-z0-9_])' "${sources[@]}"
    forbid 'not ASCII' '[^ -~	]' "${sources[@]}"
    forbid 'typedef in _t, a POSIX name' 'typedef .*[a-z0-9]_t;' "${sources[@]}"
    forbid 'path of one machine' '(^|[^A-Za-z0-9_.}])/(home|root|Users|work|workspace)/' "${all[@]}"
    # What a number is compared with has a date, a machine or a link.
    mapfile -t sources < <(files 'md' docs README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md)
    forbid 'only the writer knows what this means' '[Ii]n another window' "${sources[@]}"
    mapfile -t sources < <(files h include)
    forbid 'code in a public header' '(^|[ \t])inline[ \t]' "${sources[@]}"
}

# Exported: tsr_ alone. Inside the archive: also tsri_, so that a static link takes no other names.
check_symbols() {
    local so=$B/lib/libtessera.so archive=$B/lib/libtessera.a
    [ -f "$so" ] && nm -D --defined-only "$so" | awk -v f="$so" '
        $2 != "A" && $3 !~ /^tsr_/ {print f ": exports " $3 ", which does not begin with tsr_"}'
    [ -f "$archive" ] && nm -A -g --defined-only "$archive" 2>/dev/null | awk -v f="$archive" '
        $NF !~ /^(tsri?_|__(odr_)?[a-z]*san)/ {
            split($1, at, ":")
            print f ": " at[2] " defines " $NF ", neither static nor tsr_ nor tsri_"
        }'
}

breaches=$(
    check_lengths
    check_names
    check_layers
    check_calls
    check_tags
    check_tests
    check_words
    check_symbols
)
[ -n "$breaches" ] || exit 0
echo "$breaches"
echo "check-tree: $(wc -l <<<"$breaches") breaches" >&2
exit 1
