#!/usr/bin/env bash
# tools/demo with a tessera that is made up; and, with TESSERA_TEST_LONG=1, with the real model, whose
# answers must be right. .ci/run checks them in its step "demo".
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

# $tmp/bin/tessera, with a model named $1: says $2 about the train, and is five times faster from
# the second question on.
make_tessera() {
    command -v python3 >/dev/null || skip 'no python3 to read JSON with' || return
    mkdir -p "$tmp/bin" "$tmp/lib"
    : >"$tmp/lib/libtessera-model.so"
    : >"$tmp/$1"
    cat >"$tmp/bin/tessera" <<END
#!/usr/bin/env bash
[ "\$1" != version ] || { echo '{"model":"$tmp/$1"}'; exit; }
case \${!#} in
*train*) answer='$2' s=10.0 ;;
*master*) answer='Ines Calloway, since\n eleven years' s=2.0 ;;
*) answer='Beech wood' s=2.0 ;;
esac
[ -n "\$answer" ] || { echo 'tessera: no memory' >&2; exit 1; }
printf '{"answer":"%s","open_s":0,"answer_s":0,"ttft_s":%s,"tokens":{"prompt":600}}\n' "\$answer" "\$s"
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
    make_tessera big.gguf 'It leaves at 21:40.' || return
    demo 0 --check || return
    [[ $out == *'It leaves at 21:40.'*'first word after 10.0 s'* ]] || fail "$out" || return
    [[ $out == *'Ines Calloway, since eleven years'*'after 2.0 s, 5.0x faster'* ]] || fail "$out" || return
    [[ $out == *'10.0 s when the documents are new, 2.0 s when they are known: 5.0x faster.'* ]] || fail "$out" || return
    [[ $out != *wrong* ]] || fail "$out"
}

a_wrong_answer_is_said_and_fails_a_check() {
    make_tessera big.gguf 'At 7:05.' || return
    demo 0 || return
    [[ $out == *'This is wrong: the document says 21:40.'* ]] || fail "$out" || return
    demo 1 --check || return
    [[ $out == *'demo: an answer is wrong' ]] || fail "$out"
}

the_fallback_is_said_and_not_checked() {
    make_tessera SmolLM2.gguf 'At 7:05.' || return
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
run a_wrong_answer_is_said_and_fails_a_check
run the_fallback_is_said_and_not_checked
run an_error_of_ask_is_shown
run answers_of_the_real_model_are_right
test_end
