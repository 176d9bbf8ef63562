#!/usr/bin/env bash
# tools/demo with a tessera that is made up; and, with TESSERA_TEST_LONG=1, with the real model, whose
# answers must be right. .ci/run checks them in its step "demo".
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

# $tmp/bin/tessera, with a model named $1: says $2 about the oven. It is five times faster from the
# second question on, and has a full read of ten seconds.
make_tessera() {
    command -v python3 >/dev/null || skip 'no python3 to read JSON with' || return
    mkdir -p "$tmp/bin" "$tmp/lib"
    : >"$tmp/lib/libtessera-model.so"
    : >"$tmp/$1"
    cat >"$tmp/bin/tessera" <<END
#!/usr/bin/env bash
case \$1 in
version) echo '{"model":"$tmp/$1"}'; exit ;;
help) exit 0 ;;
esac
echo "\$*" >>"$tmp/asked"
full='' s=2.0 known=300 first=false
case \${!#} in
*master*) answer='Ines Calloway, since\n eleven years' ;;
*) answer='$2' full=',"full_s":10.0,"full_answer":"Beech, as ever","full_answer_s":1' ;;
esac
[ -e "$tmp/seen" ] || s=10.0 known=20 first=true
: >"$tmp/seen"
[ -n "\$answer" ] || { echo 'tessera: no memory' >&2; exit 1; }
printf '{"answer":"%s","open_s":0,"answer_s":0,"ttft_s":%s,"tokens":{"prompt":340,"exact":0,"reused":%s,"recomputed":9,"filled":0},"first":%s%s}\n' \
    "\$answer" "\$s" "\$known" "\$first" "\$full"
END
    chmod +x "$tmp/bin/tessera"
}

# demo STATUS [FLAG]: the demo must end with this status.
demo() {
    local status=0
    out=$(tools/demo ${2:+"$2"} "$tmp/bin/tessera" 2>&1) || status=$?
    [ "$status" -eq "$1" ] || fail "status $status: $out"
}

answers_and_times_are_shown() {
    make_tessera big.gguf 'It burns beech wood.' || return
    demo 0 --check || return
    [[ $out == *'Ines Calloway, since eleven years'*'0 from the store'*'after 10.0 s'*'stored: '* ]] || fail "$out" || return
    [[ $out == *'It burns beech wood.'*'300 from the store, 9 recomputed. First word after 2.0 s.'* ]] || fail "$out" || return
    [[ $out == *'from the store, first word after 2.0 s'*'full read, first word after 10.0 s'*'Beech, as ever'* ]] ||
        fail "$out" || return
    [[ $out == *'5.0x faster than the full read.'*'5.0x faster than the first time.'* ]] || fail "$out" || return
    [[ $out == *'A page to talk to: '*' serve --docs='* ]] || fail "$out" || return
    [[ $out != *wrong* ]] || fail "$out" || return
    # Only the second question goes without the gate, and that is said.
    [ "$(grep -n -e --no-gate "$tmp/asked" | cut -d: -f1)" = 2 ] || fail "$(cat "$tmp/asked")" || return
    [[ $out == *'This was --no-gate.'* ]] || fail "$out"
}

what_is_no_faster_is_not_said_to_be() {
    make_tessera big.gguf 'It burns beech wood.' || return
    sed -i 's/s=2.0/s=10.2/' "$tmp/bin/tessera"
    demo 0 --check || return
    [[ $out == *'No faster than the full read.'* ]] || fail "$out"
}

a_wrong_answer_is_said_and_fails_a_check() {
    make_tessera big.gguf 'Oak.' || return
    demo 0 || return
    [[ $out == *'This is wrong: the document says beech.'* ]] || fail "$out" || return
    rm "$tmp/seen"
    demo 1 --check || return
    [[ $out == *'demo: an answer is wrong' ]] || fail "$out"
}

the_fallback_is_said_and_not_checked() {
    make_tessera SmolLM2.gguf 'Oak.' || return
    demo 0 --check || return
    [[ $out == *'tools/setup --model gets a better one'*'not checked' ]] || fail "$out"
}

an_error_of_ask_is_shown() {
    make_tessera big.gguf '' || return
    demo 1 || return
    [[ $out == *'tessera: no memory' ]] || fail "$out"
}

answers_of_the_real_model_are_right() {
    [ -n "${TESSERA_TEST_LONG:-}" ] || skip 'takes most of a minute: TESSERA_TEST_LONG=1' || return
    [ -z "$san" ] || skip 'too slow with a sanitizer' || return
    local deps=${TESSERA_DEPS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera} out
    [ -e "$B/lib/libtessera-model.so" ] && [ -e "$deps/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" ] ||
        skip 'Qwen2.5-Coder-0.5B is not installed: tools/setup --model' || return
    out=$(TESSERA_MODEL=0.5b tools/demo --check "$B/bin/tessera" 2>&1) || fail "$out"
}

run answers_and_times_are_shown
run what_is_no_faster_is_not_said_to_be
run a_wrong_answer_is_said_and_fails_a_check
run the_fallback_is_said_and_not_checked
run an_error_of_ask_is_shown
run answers_of_the_real_model_are_right
test_end
