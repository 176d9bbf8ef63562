#!/usr/bin/env bash
# tessera kv: the calls of a blend server, in a store and on a server.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"
tesserad=${tessera}d
shape=(--model=m --dtype=f32 --layers=2 --heads=2 --dim=4)

# A document of 40 tokens and its KV, and a prompt that has it behind 5 other tokens.
files() {
    local numbers
    numbers=$(seq -s, 100 139)
    echo "{\"prompt\":[$numbers]}" >"$tmp/doc.json"
    echo "{\"prompt\":[1,2,3,4,5,$numbers,9]}" >"$tmp/prompt.json"
    head -c $((2 * 2 * 40 * 8 * 4)) /dev/zero | tr '\0' '@' >"$tmp/doc.kv" # 3.00.. in every place
    cache=(--host_size=8M --disk_path="$tmp/store" --disk_size=64M --disk_segment_size=4M)
}

kv() {
    local call=$1
    shift
    t kv "$call" "${shape[@]}" "${cache[@]}" "$@"
}

all_calls_work() {
    kv store --theta=10000 "$tmp/doc.json" "$tmp/doc.kv"
    exits 0 && says '40 tokens stored' || return
    kv store --theta=10000 "$tmp/doc.json" "$tmp/doc.kv"
    says '0 tokens stored' || return
    kv retrieve --theta=10000 "$tmp/doc.json" "$tmp/back.kv"
    exits 0 && cmp "$tmp/doc.kv" "$tmp/back.kv" || return
    [ "$(stat -c %a "$tmp/back.kv")" = 600 ] || fail "mode of the file" || return
    chmod 644 "$tmp/back.kv"
    kv retrieve --theta=10000 "$tmp/doc.json" "$tmp/back.kv"
    [ "$(stat -c %a "$tmp/back.kv")" = 600 ] || fail "mode of a file that was there" || return
    kv lookup --theta=10000 "$tmp/prompt.json"
    exits 0 && says '5..44' || return
    kv retrieve --theta=10000 --position-offset=3 "$tmp/prompt.json" "$tmp/moved.kv"
    exits 0 || return
    [ "$(stat -c %s "$tmp/moved.kv")" = $((2 * 2 * 46 * 8 * 4)) ] || fail "size" || return
    # V is not rotated: it has the bytes of the document, behind five empty rows.
    cmp -n $((40 * 32)) -i $(((46 + 5) * 32)):0 "$tmp/moved.kv" "$tmp/doc.kv" || return
    cmp -s -n 32 -i $((5 * 32)):0 "$tmp/moved.kv" "$tmp/doc.kv" && fail "K was not rotated" && return 1
    kv store-final --theta=10000 --recipe='hkvd 0.15' "$tmp/prompt.json" "$tmp/moved.kv"
    exits 0 && says '46 tokens stored' || return
    kv lookup --theta=10000 --recipe='hkvd 0.15' "$tmp/prompt.json"
    exits 0 && says blended || return
    kv lookup --theta=10000 --recipe=other "$tmp/prompt.json"
    exits 0 || return
    [[ $out != *blended* ]] || fail "$out"
}

a_store_keeps_what_was_computed_ahead() {
    files && all_calls_work
}

a_server_has_the_same_calls() {
    files || return
    cache=(--connect="$tmp/run/sock")
    mkdir -m 700 "$tmp/run"
    "$tesserad" --host_size=8M --http_listen=off --server_socket="$tmp/run/sock" 2>"$tmp/log" &
    local pid=$! i
    # Asked, not only seen: the socket has a name before the server listens.
    for ((i = 0; i < 200; i++)); do
        "$tessera" stat "${cache[@]}" >/dev/null 2>&1 && break
        sleep 0.05
    done
    all_calls_work
    local status=$?
    kill "$pid" && wait "$pid"
    return "$status"
}

json_has_every_match() {
    needs_python && files || return
    kv store --json --theta=10000 "$tmp/doc.json" "$tmp/doc.kv"
    is "$(json 'x["stored"]')" 40 || return
    kv retrieve --json --theta=10000 "$tmp/prompt.json" "$tmp/out.kv"
    is "$(json 'x["tokens"]')" 40 && is "$(json 'x["matches"][0]["offset"]')" 5 || return
    is "$(json 'x["matches"][0]["loaded"]')" True || return
    kv store --json "$tmp/doc.json" "$tmp/doc.kv" # a space without a rope
    kv retrieve --json "$tmp/prompt.json" "$tmp/out.kv"
    is "$(json 'x["matches"][0]["loaded"]')" False
}

# The first row of K of token 5, computed as transformers does: pairs of neighbours, half of the head,
# and frequencies stretched as Llama 3.1 stretches them.
a_rope_is_the_one_that_is_described() {
    needs_python && files || return
    local rope='rope=llama3 pairing=gptj dims=2 theta=10000 factor=8 trained=16 low=1 high=4'
    kv store --rope="$rope" "$tmp/doc.json" "$tmp/doc.kv"
    exits 0 || return
    kv retrieve --rope="$rope" "$tmp/prompt.json" "$tmp/moved.kv"
    exits 0 || return
    python3 - "$tmp/moved.kv" <<'END' || fail 'K is not rotated as described' || return
import math, struct, sys
row = struct.unpack_from("4f", open(sys.argv[1], "rb").read(), 5 * 32)
keep = (16 / (2 * math.pi) - 1) / (4 - 1)
angle = 5 * ((1 - keep) / 8 + keep)
one = struct.unpack("f", b"@@@@")[0]
c, s = math.cos(angle) * one, math.sin(angle) * one
sys.exit(any(abs(a - b) > 1e-5 for a, b in zip(row, (c - s, s + c, one, one))))
END
    # Another RoPE is another model; the short form is the plain one.
    kv lookup --json --theta=10000 "$tmp/prompt.json"
    is "$(json 'x["tokens"]')" 0 || return
    kv store --theta=10000 "$tmp/doc.json" "$tmp/doc.kv"
    kv lookup --json --rope='pairing=neox theta=1e4 dims=4' "$tmp/prompt.json"
    is "$(json 'x["tokens"]')" 40
}

# A document that was computed with the frequencies of short prompts, in a long one.
other_frequencies_are_not_rotated() {
    needs_python && files || return
    local rope='rope=dynamic theta=10000 factor=2 trained=43'
    kv store --rope="$rope" "$tmp/doc.json" "$tmp/doc.kv"
    exits 0 || return
    kv retrieve --json --rope="$rope" "$tmp/prompt.json" "$tmp/out.kv"
    is "$(json 'x["matches"][0]["loaded"]')" False || return
    kv retrieve --json --rope="$rope" "$tmp/doc.json" "$tmp/out.kv"
    is "$(json 'x["matches"][0]["loaded"]')" True || return
    kv retrieve --json --rope="$rope" --position-offset=4 "$tmp/doc.json" "$tmp/out.kv"
    is "$(json 'x["matches"][0]["loaded"]')" False
}

mistakes_are_told() {
    files || return
    kv store --theta=1e4 --rope=theta=1e4 "$tmp/doc.json" "$tmp/doc.kv"
    exits 2 && complains 'not both' || return
    kv store --rope='theta=1e4 base=2' "$tmp/doc.json" "$tmp/doc.kv"
    exits 2 && complains 'unknown word: base=2' || return
    kv store --rope='theta=1e4 dims=8' "$tmp/doc.json" "$tmp/doc.kv"
    exits 2 && complains 'dims=8' || return
    kv store "$tmp/prompt.json" "$tmp/doc.kv"
    exits 1 && complains 'the KV of 46 tokens has' || return
    kv store "$tmp/doc.json" "$tmp/none.kv"
    exits 1 && complains none.kv || return
    kv store-final "$tmp/doc.json" "$tmp/doc.kv"
    exits 2 && complains --recipe || return
    t kv store --model=m --dtype=f8 --layers=1 --heads=1 --dim=4 "$tmp/doc.json" "$tmp/doc.kv"
    exits 2 && complains --dtype || return
    t kv lookup --dtype=f16 --layers=1 --heads=1 --dim=4 "$tmp/doc.json"
    exits 2 && complains --model || return
    t kv lookup --model=m --dtype=f16 --layers=1 --dim=4 "$tmp/doc.json"
    exits 2 && complains --heads
}

run a_store_keeps_what_was_computed_ahead
run a_server_has_the_same_calls
run json_has_every_match
run a_rope_is_the_one_that_is_described
run other_frequencies_are_not_rotated
run mistakes_are_told
test_end
