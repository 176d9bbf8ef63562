#!/usr/bin/env bash
# The reader of trace files: what it takes, and where it says a mistake is.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

# Replays the lines given on stdin.
replay() {
    cat >"$tmp/trace"
    lab replay --host-size=1M "$@" "$tmp/trace"
}

# The line is refused for this reason, at this column where it is not JSON.
refused() {
    replay <<<"$1"
    exits 1 && complains "$tmp/trace:1:$2" && [ -z "$out" ]
}

# Requests and tokens asked of the table.
asked() { tail -n 1 <<<"$out" | awk '{print $4, $5}'; }

both_forms_are_read() {
    replay <<<'{"chunks":[[0,50],[1,54]]}
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}'
    exits 0 && is "$(asked)" '2 1204'
}

other_members_order_and_space_do_not_matter() {
    replay <<<' { "hash_ids" : [ 7 ] , "x":{"a":[1,-2.5e+3,{}],"b":"\u00e4\"\\"}, "input_length":9 , "y":null} 

	{"z":[true,false,[]],"chunks":[[9223372036854775807,1]]}'
    exits 0 && is "$(asked)" '2 10'
}

the_last_line_needs_no_end() {
    printf '{"chunks":[[0,3]]}' >"$tmp/trace"
    lab replay --host-size=1M "$tmp/trace"
    exits 0 && is "$(asked)" '1 3'
}

only_the_first_requests_are_taken_with_a_limit() {
    replay --limit=1 <<<'{"chunks":[[0,5]]}
this is never read'
    exits 0 && is "$(asked)" '1 5'
}

mistakes_are_named_with_their_line() {
    local wanted='expected [id,tokens]'
    refused '{"chunks":[[0,5]' "16: ']' expected near end of file" || return
    refused '{"chunks":[[0,5]]} x' '20: end of file expected' || return
    refused '{"chunks":[[0,5]],}' "19: " || return
    refused '{"a":tru}' '8: invalid token' || return
    refused '{"a":"\x"}' '8: invalid escape' || return
    refused '{"chunks":[[99999999999999999999,1]]}' '32: too big integer' || return
    refused '{"chunks":[[0,05]]}' '15: ' || return
    refused '{"chunks":[[0,5],[0,-5]]}' " chunks[1]: $wanted" || return
    refused '{"chunks":[[0,5.5]]}' " chunks[0]: $wanted" || return
    refused '{"chunks":[[0]]}' " chunks[0]: $wanted" || return
    refused '{"chunks":[]}' ' chunks: expected a list of chunks' || return
    refused '{"hash_ids":{},"input_length":0}' ' hash_ids: expected a list of ids' || return
    refused '{"hash_ids":[-1],"input_length":1}' ' hash_ids[0]: expected an id' || return
    refused '{"hash_ids":[1],"input_length":"1"}' ' input_length: expected a whole number' || return
    refused '{"chunks":[[0,0]]}' ' chunks[0]: a chunk without tokens' || return
    refused '[1]' ' expected a JSON object' || return
    replay <<<'{"chunks":[[0,5]]}

{"chunks":[[0,5]],"chunks":[[0,5]]}'
    exits 1 && complains "$tmp/trace:3:" && complains 'duplicate object key near '"'"'"chunks"'
}

members_must_agree() {
    refused '{}' ' neither chunks nor hash_ids' || return
    refused '{"input_length":5}' ' neither chunks nor hash_ids' || return
    refused '{"hash_ids":[1]}' ' hash_ids without input_length' || return
    refused '{"hash_ids":[1],"input_length":513}' ' 1 hash_ids for an input_length of 513: expected 2' || return
    refused '{"hash_ids":[1],"input_length":0}' ' 1 hash_ids for an input_length of 0: expected 0' || return
    refused '{"hash_ids":[1],"input_length":5,"input_length":5}' '47: duplicate object key' || return
    refused '{"hash_ids":[1],"input_length":5,"chunks":[[1,5]]}' ' both chunks and hash_ids'
}

limits_hold() {
    refused '{"chunks":[[0,4194305]]}' ' chunks[0]: more than 4194304 tokens' || return
    refused '{"chunks":[[0,4194304],[1,1]]}' ' chunks[1]: more than 4194304 tokens' || return
    refused "{\"a\":$(printf '[%.0s' {1..3000})" '2053: maximum parsing depth reached' || return
    { printf '{"a":"' && head -c 17M /dev/zero | tr '\0' x && printf '"}'; } >"$tmp/trace"
    lab replay --host-size=1M "$tmp/trace"
    exits 1 && complains "$tmp/trace:1: more than 16777216 bytes"
}

files_that_are_no_text_or_no_files_are_refused() {
    printf '{"chunks":[[0,5]]}\n{"a\0":1}' >"$tmp/trace"
    lab replay --host-size=1M "$tmp/trace"
    exits 1 && complains "$tmp/trace:2:3: " || return
    lab replay "$tmp/none"
    exits 1 && complains "$tmp/none: No such file" || return
    lab replay "$tmp"
    exits 1 && complains 'directory' || return
    replay <<<''
    exits 1 && complains 'no requests'
}

run both_forms_are_read
run other_members_order_and_space_do_not_matter
run the_last_line_needs_no_end
run only_the_first_requests_are_taken_with_a_limit
run mistakes_are_named_with_their_line
run members_must_agree
run limits_hold
run files_that_are_no_text_or_no_files_are_refused
test_end
