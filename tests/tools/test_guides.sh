#!/usr/bin/env bash
# The guides: every block of commands is run, or says before it why not, and what the guides say of sizes and
# log lines is what the programs do.
# Snippets of Python are run by test_snippets.sh.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"
needs_shared_memory
needs_python >/dev/null || { echo '# 0 passed 0 failed 1 skipped'; exit 77; }
guides=(docs/guides/*.md)
tree=$PWD
unset XDG_RUNTIME_DIR NOTIFY_SOCKET LISTEN_PID LISTEN_FDS

blocks() { python3 tests/tools/doc_blocks.py "$@"; }
free_port() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }

every_block_is_run_or_says_why_not() {
    local guide missing
    for guide in "${guides[@]}"; do
        missing=$(blocks others "$guide")
        [ -z "$missing" ] || fail "$guide: neither run nor explained: $missing" || return
    done
}

# run_page GUIDE: its blocks of sh, in order, in an empty folder. Servers that a block has started are waited for.
run_page() {
    mkdir -p "$tmp/page" "$tmp/home" "$tmp/bin"
    ln -s "$tree/examples" "$tmp/page/examples"
    [ -e "$(command -v redis-server)" ] || ln -s "$(command -v redis-check-rdb)" "$tmp/bin/redis-server"
    redis_port=$(free_port)
    {
        echo 'set -euo pipefail'
        # shellcheck disable=SC2016  # of the script
        echo 'trap "kill \$(jobs -p) 2>/dev/null || true; wait || true" EXIT'
        # shellcheck disable=SC2016  # of the script
        echo 'settle() { for s in "$@"; do for i in {1..1200}; do tessera stat --connect="$s" >/dev/null 2>&1 && break; sleep 0.05; done; done; }'
        echo "redis_settle() { for i in {1..1200}; do redis-cli -p $redis_port -a secret --no-auth-warning ping >/dev/null 2>&1 && break; sleep 0.05; done; }"
        blocks run sh "$1" | sed "s/6380/$redis_port/g; s/7474/$(free_port)/g" | awk '
            /^#---/ {if (socks) print "settle" socks; if (redis) print "redis_settle"; socks = redis = ""; next}
            /^redis-server / {redis = 1}
            match($0, /--server_socket=[^ ]*/) {socks = socks " " substr($0, RSTART + 16, RLENGTH - 16)}
            {print}
            END {if (socks) print "settle" socks}'
    } >"$tmp/script"
    (cd "$tmp/page" && HOME=$tmp/home PATH=$tmp/bin:${tessera%/*}:$PATH timeout 200 bash "$tmp/script") >"$tmp/out" 2>&1
    status=$?
    out=$(cat "$tmp/out") err=''
    [ -e "$tmp/page/run" ] && [[ $1 == *fleet* ]] &&
        redis-cli -p "$redis_port" -a secret --no-auth-warning shutdown nosave 2>/dev/null
    exits 0
}

engines_and_machines_share() {
    command -v redis-check-rdb >/dev/null || command -v redis-server >/dev/null || { skip 'no redis here'; return; }
    run_page docs/guides/fleet.md || return
    says '128 of 128 since the start' && says 'bucket.yaml: ok'
}
a_prompt_is_inspected_and_the_machine_checked() {
    run_page docs/guides/troubleshooting.md || return
    says "$(grep -o 'prompt: .* found (.*)' docs/guides/troubleshooting.md)" || return
    [ "$(grep -c 'prompt: .* found' docs/guides/troubleshooting.md)" -eq 1 ]
}
sizes_are_measured() {
    command -v curl >/dev/null || { skip 'no curl here'; return; }
    run_page docs/guides/sizing.md || return
    says '"token_bytes":131072' && says 'adaptive'
}

# The table of sizes against a server's own numbers.
the_table_of_sizes_is_right() {
    mkdir -m 700 "$tmp/run"
    local socket=$tmp/run/sock name layers heads dim bytes small middle large i
    "${tessera}d" --host_size=16M --server_socket="$socket" --http_listen=off 2>"$tmp/log" &
    server=$!
    trap 'kill $server 2>/dev/null' EXIT
    for ((i = 0; i < 1200; i++)); do
        "$tessera" stat --connect="$socket" >/dev/null 2>&1 && break
        sleep 0.05
    done
    echo '{"prompt":[1]}' >"$tmp/prompt"
    sed -n 's/^| \(.* | [0-9].*\) |$/\1/p' docs/guides/sizing.md | sed 's/ | /|/g' >"$tmp/rows"
    [ "$(wc -l <"$tmp/rows")" -ge 6 ] || fail 'no rows' || return
    while IFS='|' read -r name layers heads dim bytes small middle large; do
        is "$bytes" $((2 * layers * heads * dim * 2)) || return
        is "$small $middle $large" "$(((8 << 30) / bytes)) $(((64 << 30) / bytes)) $(((1 << 40) / bytes))" || return
        head -c "$bytes" /dev/zero >"$tmp/kv"
        t kv store --model="$name" --dtype=bf16 --layers="$layers" --heads="$heads" --dim="$dim" --connect="$socket" \
            "$tmp/prompt" "$tmp/kv"
        exits 0 || return
        out=$(python3 - "$socket" "$name" "$tessera" <<'END'
import json, subprocess, sys
# The status of the server, as tessera top asks for it, has no spaces: ls has the bytes of the entry.
socket, name, tessera = sys.argv[1:]
rows = json.loads(subprocess.run([tessera, "ls", "--json", "--connect=" + socket], capture_output=True, check=True).stdout)
print(sorted(e["bytes"] // e["tokens"] for e in rows["entries"]))
END
        )
        [[ $out == *"$bytes"* ]] || fail "$name: $out, not $bytes" || return
        "$tessera" clear --connect="$socket" >/dev/null
    done <"$tmp/rows"
}

# Every line of the log that the table names is one that the connector writes.
log_lines_are_those_of_the_connector() {
    sed 's/\bf"/"/g' python/tessera/why.py python/tessera/vllm/*.py | tr -d '"\n' | tr -s ' ' |
        sed 's/{[^}]*}/@/g; s/%[sd]/@/g' >"$tmp/written"
    local line part
    # shellcheck disable=SC2016  # code of Markdown
    sed -n 's/^| `\([^`]*\)` |.*/\1/p' docs/guides/troubleshooting.md >"$tmp/lines"
    [ "$(wc -l <"$tmp/lines")" -gt 9 ] || fail 'no lines' || return
    while read -r line; do
        case $line in stores\ refused | lower\ tiers* | wrong\ checksums*) continue ;; esac # of tessera top
        part=${line#why no hit: } part=${part%% ...*} part=${part%...}
        part=$(sed 's/\bN\b/@/g; s/first [0-9]*/first @/g; s/ $//' <<<"$part")
        grep -qF -- "$part" "$tmp/written" || fail "nobody writes: $part" || return
    done <"$tmp/lines"
}

run every_block_is_run_or_says_why_not
run engines_and_machines_share
run a_prompt_is_inspected_and_the_machine_checked
run sizes_are_measured
run the_table_of_sizes_is_right
run log_lines_are_those_of_the_connector
test_end
