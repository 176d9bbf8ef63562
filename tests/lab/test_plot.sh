#!/usr/bin/env bash
# The picture of tessera-lab replay: well-formed, complete, and never half-written without a word.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

# A Python expression over the picture: root is its svg element, texts are its texts.
picture() {
    python3 -c '
import sys, xml.etree.ElementTree as E
root = E.parse(sys.argv[1]).getroot()
n = "{http://www.w3.org/2000/svg}"
texts = [t.text for t in root.iter(n + "text")]
dots = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(n + "circle")]
print(eval(sys.argv[2]))' "$tmp/plot.svg" "$1"
}

every_policy_has_a_line_and_every_size_a_dot() {
    needs_python || return
    lab replay --limit=200 --host-size=1M,4M,2M --policy=lru,adaptive --plot="$tmp/plot.svg"
    exits 0 && is_silent && says 'hit rate' || return
    is "$(picture 'root.tag')" '{http://www.w3.org/2000/svg}svg' || return
    is "$(picture 'len(dots)')" 6 || return
    for name in lru adaptive '1.0 MiB' '2.0 MiB' '4.0 MiB' '0 %'; do
        is "$(picture "texts.count('$name')")" 1 || return
    done
    # Sizes ascend to the right, in equal steps for equal factors.
    is "$(picture 'dots[0][0] < dots[1][0] < dots[2][0]')" True || return
    is "$(picture 'abs(dots[0][0] + dots[2][0] - 2 * dots[1][0]) < 0.2')" True || return
    # More memory finds more here, so dots rise.
    is "$(picture 'dots[0][1] > dots[1][1] > dots[2][1]')" True || return
    is "$(picture 'all(0 < x < 760 and 0 < y < 440 for x, y in dots)')" True
}

one_size_and_no_hit_are_a_picture_too() {
    needs_python || return
    echo '{"chunks":[[1,100]]}' >"$tmp/trace"
    lab replay --host-size=1M --plot="$tmp/plot.svg" "$tmp/trace"
    exits 0 && is "$(picture 'len(dots)')" 1
}

names_of_lines_that_end_together_stand_apart() {
    needs_python || return
    lab replay --limit=20 --host-size=64M --policy=lru,s3fifo,adaptive --plot="$tmp/plot.svg"
    exits 0 || return
    is "$(picture 'len({t.get("y") for t in root.iter(n + "text")
        if t.text in ("lru", "s3fifo", "adaptive")})')" 3
}

a_name_with_markup_is_text() {
    needs_python || return
    echo '{"chunks":[[1,100]]}' >"$tmp/a<b>&c"
    lab replay --host-size=1M --plot="$tmp/plot.svg" "$tmp/a<b>&c"
    exits 0 && is "$(picture 'texts[0]')" 'Tokens reused: a<b>&c'
}

a_file_that_cannot_be_written_is_named() {
    lab replay --limit=2 --host-size=1M --plot="$tmp/none/plot.svg"
    exits 1 && complains "$tmp/none/plot.svg: No such file" || return
    [ -w /dev/full ] || return 0
    lab replay --limit=2 --host-size=1M --plot=/dev/full
    exits 1 && complains '/dev/full'
}

run every_policy_has_a_line_and_every_size_a_dot
run one_size_and_no_hit_are_a_picture_too
run names_of_lines_that_end_together_stand_apart
run a_name_with_markup_is_text
run a_file_that_cannot_be_written_is_named
test_end
