#!/usr/bin/env bash
# tessera ask.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

the_first_answer_is_that_of_a_full_read() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" --compare 'why'
    exits 0 || return
    is "$(json '[x["first"], x["exact"], x["sure"], x["kl"], x["same_answer"]]')" \
        '[True, True, 1, 0, True]' || return
    is "$(count reused)" 0
}

documents_are_known_the_second_time_and_the_answer_is_the_same() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    local first
    first=$(json 'x["answer"]')
    is "$(json 'x["first"]')" True || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    is "$(count filled)" 0 || return
    is "$(json 'x["first"]')" False || return
    # Exactly, from the prefix that the first question left.
    [ "$(json 'sum(x["tiers"]) > 700')" = True ] || fail "$out" || return
    is "$(json 'x["answer"]')" "$first"
}

documents_are_known_in_another_order_and_company() {
    ask_init llama || return
    needs_python || return
    letters 400 c >"$tmp/c.txt"
    ask --json --docs="$tmp/docs" 'why'
    ask --json --doc="$tmp/docs/b.txt" --doc="$tmp/c.txt" --doc="$tmp/docs/a.md" 'how'
    exits 0 || return
    [ "$(count filled)" -lt 500 ] || fail "more than c was read: $out"
}

recomputing_everything_is_a_full_prefill_to_the_last_bit() {
    ask_init llama || return
    needs_python || return
    local arch
    for arch in llama qwen2 qwen3; do
        "$B/tests/model/make_gguf" "$model" "$arch"
        ask --json --docs="$tmp/docs" 'why'
        ask --json --docs="$tmp/docs" --selector=full --compare 'why'
        exits 0 || return
        [ "$(json 'x["kl"] == 0 and x["same_first_token"]')" = True ] || fail "$arch: $out" || return
    done
}

a_comparison_shows_both_answers_and_their_times() {
    ask_init llama || return
    needs_python || return
    ask --docs="$tmp/docs" 'why'
    local flags=(--doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" --ratio=5%)
    ask "${flags[@]}" --compare --stats 'why'
    exits 0 || return
    [[ $out == 'from the store (after '*' s):'*'full read (after '*' s):'* ]] || fail "$out" || return
    [[ $err == *'x faster than a full read; '*@(the same answer as a full read gives|says the same in other words)* ]] || fail "$err" ||
        return
    [[ $err == *'  model '*'  tokens '*'  full read '*'KL of the first token '* ]] || fail "$err" || return
    ask "${flags[@]}" --compare --json 'why'
    is "$(json 'x["same_answer"] == (x["answer"] == x["full_answer"])')" True || return
    is "$(json 'x["says_same"] or not x["same_answer"]')" True || return
    is "$(json 'x["speedup"] == x["full_s"] / x["ttft_s"] or abs(x["speedup"] - x["full_s"] / x["ttft_s"]) < .01')" True
}

several_turns_go_on_where_the_last_one_ended() {
    ask_init llama || return
    needs_python || return
    printf 'why\n\nhow\nwhen\n' >"$tmp/questions"
    t ask --model="$model" --threads=1 --max=8 --json --docs="$tmp/docs" --chat="$tmp/questions"
    exits 0 || return
    [ "$(wc -l <<<"$out")" -eq 3 ] || fail "$out" || return
    out=$(tail -n1 <<<"$out")
    [ "$(count new)" -lt 60 ] || fail "$out" || return
    # The first turn was a full read, and so are those after it.
    [ "$(count exact)" -gt 700 ] || fail "$out" || return
    [ "$(count reused)" -eq 0 ] || fail "$out" || return
    # Over a blended turn they are blended: reused, and not called exact.
    t ask --model="$model" --threads=1 --max=8 --json --doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" \
        --chat="$tmp/questions"
    exits 0 || return
    out=$(tail -n1 <<<"$out")
    [ "$(count exact)" -eq 0 ] || fail "$out" || return
    [ "$(count reused)" -gt 700 ] || fail "$out"
}

a_chat_without_a_file_asks_standard_input() {
    ask_init llama || return
    printf 'why\nhow\n' >"$tmp/questions"
    t ask --model="$model" --threads=1 --chat --max=5 <"$tmp/questions"
    exits 0 && says '> why' && says '> how' || return
    t ask --model="$model" --chat --max=5 </dev/null
    exits 1 && complains 'standard input: no questions found' || return
    # Said before the model is read.
    t ask --model="$tmp/none.gguf" --chat="$tmp/none"
    exits 1 && complains '/none: No such file' || return
    t ask --model="$model" --chat "$tmp/questions"
    exits 2 && complains 'for a file of questions, use --chat=FILE'
}

no_documents_is_a_question_alone() {
    ask_init llama || return
    ask 'why'
    exits 0 || return
    [[ $err == *'exactly the answer of a full read'*' 0 reused'* ]] || fail "$err"
}

a_chunked_prompt_brings_its_system_prompt_and_documents() {
    ask_init && needs_python || return
    local a b
    a=$(letters 400 c) b=$(letters 400 d)
    ask --json --enable-chunk-cache "Be kind.##$a##$b##what is it" || return
    exits 0 || return
    is "$(json 'x["question"]')" 'what is it' || return
    is "$(json 'x["first"]')" True && [ "$(count prompt)" -gt 750 ] || fail "$out" || return
    # Another system prompt, another order, another question.
    ask --json --enable-chunk-cache --no-gate --ratio=0 "Different words.##$b##$a##tell me more"
    exits 0 || return
    [ "$(count reused)" -gt 600 ] || fail "$out" || return
    ask --enable-chunk-cache 'sys####question'
    exits 1 && complains 'nothing before the separator at byte 5' || return
    ask --enable-chunk-cache --chunk-separator=@@ 'sys@@doc@@ '
    exits 1 && complains 'nothing after the separator at byte 8' || return
    ask --enable-chunk-cache --system=x 'sys##doc##q'
    exits 2 && complains 'its own system prompt' || return
    ask --json 'is ## a heading'
    exits 0 && is "$(json 'x["question"]')" 'is ## a heading'
}

what_cannot_be_asked_about_is_refused() {
    ask_init llama || return
    : >"$tmp/empty.txt"
    printf 'a\0b' >"$tmp/image.png"
    printf 'caf\351' >"$tmp/latin1.txt"
    ask --doc="$tmp/empty.txt" 'why' && exits 1 && complains 'empty.txt is empty' || return
    ask --doc="$tmp/image.png" 'why' && exits 1 && complains 'image.png is binary' || return
    ask --doc="$tmp/latin1.txt" 'why' && exits 1 && complains 'is not UTF-8 text (byte 3)' || return
    ask --doc="$tmp/none.txt" 'why' && exits 1 && complains 'none.txt: No such file' || return
    ask --doc="$tmp/docs" 'why' && exits 1 && complains 'is a folder: use --docs=' || return
    ask '  ' && exits 2 && complains 'the question is empty' || return
    ask && exits 2 && complains 'missing argument'
}

what_does_not_fit_is_refused_with_the_numbers() {
    ask_init llama 512 || return
    ask --docs="$tmp/docs" --all 'why'
    exits 1 && complains "the model's context has 512: use fewer documents" || return
    ask "$(letters 600 c)"
    exits 1 && complains 'the question alone has '
}

a_missing_model_says_what_to_run() {
    [ -e "$B/lib/libtessera-model.so" ] ||
        skip 'llama.cpp is not installed: tools/setup --model' || return
    export TESSERA_DEPS_DIR=$tmp/none
    t ask 'why'
    exits 1 && complains 'no model is installed: run ' || return
    printf 'not a model, but long enough to be looked at' >"$tmp/x.gguf"
    t ask --model="$tmp/x.gguf" 'why'
    exits 1 && complains 'is not a GGUF file'
}

a_missing_executor_says_what_to_run() {
    mkdir -p "$tmp/bin"
    cp "$tessera" "$tmp/bin/tessera"
    : >"$tmp/x.gguf"
    tessera=$tmp/bin/tessera t ask --model="$tmp/x.gguf" 'why'
    exits 1 && complains 'tools/setup --model'
}

# libllama asserts that no token is there twice.
a_broken_model_is_refused_in_words() {
    ask_init || return
    LC_ALL=C sed -i 's/<0x42>/<0x41>/' "$model"
    ask --docs="$tmp/docs" 'why'
    exits 1 && complains "the vocabulary of $model cannot be read"
}

bad_flags_are_usage_errors() {
    t ask --ratio=2 'why'
    exits 2 && complains '--ratio=2: not a number from 0 to 1' || return
    t ask --selector=best 'why'
    exits 2 && complains 'must be query, hkvd, link, none or full'
}

a_store_in_use_is_no_reason_not_to_answer() {
    ask_init llama || return
    ask --doc="$tmp/docs/a.md" 'why'
    TESSERA_DISK_PATH=/proc/nowhere ask --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [[ $err == *'continuing without the store'* ]] || fail "$err"
}

control_characters_of_file_names_do_not_reach_the_terminal() {
    ask_init llama || return
    local name=$'a\e]0;b\a\xc2\x9b2J.md' command
    printf 'caf\351' >"$tmp/docs/$name"
    for command in "ask --docs=$tmp/docs" "ask --doc=$tmp/docs/$name" "ask --doc=$tmp/docs/$name.txt"; do
        # shellcheck disable=SC2086  # there are no blanks in these
        t $command --model="$model" --threads=1 --max=8 why
        [[ $err == *'a?]0;b???2J.md'* ]] || fail "$command: $err" || return
        printf '%s%s' "$out" "$err" | LC_ALL=C grep -q $'[\a\e]\|\xc2\x9b' && fail "$command: $err" && return 1
    done
    return 0
}

run the_first_answer_is_that_of_a_full_read
run documents_are_known_the_second_time_and_the_answer_is_the_same
run documents_are_known_in_another_order_and_company
run recomputing_everything_is_a_full_prefill_to_the_last_bit
run a_comparison_shows_both_answers_and_their_times
run several_turns_go_on_where_the_last_one_ended
run a_chat_without_a_file_asks_standard_input
run no_documents_is_a_question_alone
run a_chunked_prompt_brings_its_system_prompt_and_documents
run what_cannot_be_asked_about_is_refused
run what_does_not_fit_is_refused_with_the_numbers
run a_missing_model_says_what_to_run
run a_missing_executor_says_what_to_run
run a_broken_model_is_refused_in_words
run bad_flags_are_usage_errors
run control_characters_of_file_names_do_not_reach_the_terminal
run a_store_in_use_is_no_reason_not_to_answer
test_end
