#!/usr/bin/env bash
# The page and the server together, as a person meets them: `tessera serve` over a folder, and its page
# in a browser. What each does alone is in test_page.sh and the other tests of this folder.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs
command -v chromium chromium-browser google-chrome >/dev/null || serve_none 'no chromium here'

the_page_asks_the_real_server() {
    mkdir -p "$tmp/docs"
    local name page
    for name in ferry train; do
        { echo "The $name leaves at dawn." && letters 350 "${name:0:1}"; } >"$tmp/docs/$name.md"
    done
    # Read at the first question, whose time is then that of a full read.
    serve_start "$tmp/server" --docs="$tmp/docs" --no-read-ahead --max=24 || return
    page=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["page_file"])' "$home/out")
    timeout 250 python3 tests/serve/page_check.py real "$page" "$home/deps/store" 2>"$tmp/log" ||
        fail "$(tail -3 "$tmp/log")" || return
    serve_end
}

run the_page_asks_the_real_server
test_end
