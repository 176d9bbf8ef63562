#!/usr/bin/env bash
# Mistakes planted in the device "npu": each is built into a library of its own, and tests over the fake
# AscendCL must notice it: those of the first list the contract suite alone, those of the second one
# test_ascend and its kin. A line of a list is
#   file | text that is there once | what stands there instead | what the mistake is
# Every 24th of them, all with TESSERA_TEST_LONG=1 (make check-long). By hand:
#   tests/device/test_ascend_mutants.sh 'words'        those whose lines have these words (a regex)
#   tests/device/test_ascend_mutants.sh 'words' suite  asks the contract suite about them
set -u
B=${B:-build}
words=${1-} only=${2-}
cc=$(sed -n 's/^CC=//p' "$B/flags" 2>/dev/null)
san=$(sed -n 's/^SAN=//p' "$B/flags" 2>/dev/null)
[ -z "$san" ] || { echo "    skipped: libraries are built without a sanitizer"; echo "# 0 passed 0 failed 1 skipped"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export TESSERA_TEST_FIRST=1 # one failed test is enough
passed=0 failed=0

for_suite() {
    cat <<'END'
move.c|uint32_t token = r->offset + i, in_cell|uint32_t token = i, in_cell|the offset of a run is forgotten
move.c|if (left < most) most = left;|(void)left;|a stretch goes on behind the end of its block
move.c|if (in_cell < most) most = in_cell;|(void)in_cell;|a stretch goes on behind the end of its cell
move.c|m->slots[i] = r->slots[p->first + i] < 0 ? -1 : (int64_t)i;|m->slots[i] = (int64_t)i;|skipped tokens are quantised into their cells
move.c|if (!err) err = tsri_ascend_await(m->d, &m->buffer->used);|(void)err;|a gather computes before its rows are there
move.c|    if (computed) compute(m, p);|    (void)computed;|rows are sent that were never rotated
move.c|.offset = staged ? 0 : r->offset + p->first};|.offset = staged ? 0 : r->offset};|every part reads the first rows of its run
move.c|if (!err && computed) err = tsri_ascend_await(m->d, &m->buffer->used);|(void)err;|cells in device memory are rotated before they arrive
move.c|return bits % DEVICE_ALIGN == 0;|return true;|copies within the device at odd addresses
move.c|layer_first + n_layers; l++|layer_first + 1; l++|only the first layer is moved
move.c|uint8_t *staged = p->cells + (i - p->first) * row;|uint8_t *staged = p->cells;|all cells of a part share one row
move.c|return err ? err : tsri_ascend_list_flush(&m->direct);|return err;|the last copies are never sent
copy.c|return tsri_ascend_await(d, &(*out)->used);|return 0;|a buffer is filled while copies read it
copy.c|struct tsri_acl_batch attr = {.dst = up ? device : host, .src = up ? host : device};|struct tsri_acl_batch attr = {.dst = device, .src = host};|the direction of a batch is wrong
copy.c|    if (!err && !to_device) err = tsri_ascend_await(d, &b->used);|    (void)err;|plain memory is written before its bytes are there
copy.c|        if (b->data) d->acl.aclrtFreeHost(b->data);|        (void)b->data;|buffers are left behind
copy.c|        if (n > in_src) n = in_src;|        (void)in_src;|a copy goes from one registration into the next
.c|if (tsri_ascend_enter(d) == 0) tsri_ascend_event_fini(d, e);|(void)d;|events are left behind
.c|TSRI_ACL_TRY(d, empty_stream(d, s), "the stream failed");|(void)d;|waiting for a stream does not wait
.c|if (status == TSRI_ACL_EVENT_COMPLETE) return 0;|return 0;|waiting for an event does not wait
ops.c|if (j->run->slots[i] >= 0) j->tokens[j->n++] = i;|j->tokens[j->n++] = i;|operators get slots of -1
ops.c|if (in_cell + n == c->cell_tokens) break;|(void)in_cell;|a stretch for operators goes on behind the end of its cell
ops.c|int recorded = tsri_ascend_record(j->call.d, &j->call.area->used, j->call.s);|int recorded = 0;|nobody knows when an area is idle
ops.c|return tsri_ascend_await(j->call.d, &j->call.area->used);|return 0;|tables change while a copy reads them
ops.c|if (!cells_aligned(j, plane)) return false;|(void)plane;|copies of cells within the device at odd addresses
END
}

for_tests() {
    cat <<'END'
move.c|        err = tsri_ascend_settle(m->d, m->s);|        err = 0;|cells are read while a gather fills them
copy.c|aligned = ((uintptr_t)c.dst \| (uintptr_t)c.src) % DEVICE_ALIGN == 0;|aligned = true;|copies within the device at odd addresses
copy.c|    int err = tsri_ascend_sync(d, s);|    int err = 0;|the processor copies before what is queued
.c|if (e->writes_host) tsri_ascend_writes_host(d, to);|(void)to;|an event does not say that host memory is written
memory.c|if (tsri_ascend_enter(d) == 0) unregister_pieces(d, r, r->bytes);|if (tsri_ascend_enter(d) == 0) unregister_pieces(d, r, 1);|only the first piece is unregistered
ops.c|sin[a] = sin[b] = j->table[n_pairs + i];|sin[a] = sin[b] = j->table[i];|operators rotate with cos for sin
ops.c|.offset = p->rope_first};|.offset = 0};|operators rotate the first elements of a head
ops.c|if (!err && (!turns(j, p) \|\| p->rope_dims < p->dim))|if (!err && !turns(j, p))|elements that do not turn are not widened
ops.c|(!l->block_tokens \|\| p->block_stride == l->block_tokens * row);|row;|an operator gets an engine's memory with gaps
ops.c|if (err) tsri_ascend_ops_stop(o, "one failed in use");|(void)o;|operators are tried again after a failure
ops.c|*done = !err;|*done = true;|a failed operator counts as done
nn.c|if (ts->at[i]) nn->aclDestroyTensor(ts->at[i]);|(void)nn;|tensors are left behind
nn.c|    int err = tsri_ascend_sync(d, c->s);|    int err = 0;|a workspace is freed while an operator uses it
nn.c|drop_executor(&c->d->ops->nn, plan->executor);|(void)plan;|an executor is left behind
nn.c|if (!has_scatter(d)) nn->aclnnScatterPaKvCache = NULL;|(void)d;|a version whose parameters are not known is used
probe.c|return memcmp(p->want, p->image, PLANES * p->plane_bytes) == 0 &&|return|the self-test does not look at the engine's memory
.c|if (!s->owned) atomic_store(&d->engine_writes_host, true);|(void)d;|the mark of an engine's streams is dropped
.c|if (err) (void)empty_stream(d, s);|(void)d;|a failed call does not wait for what it queued
.c|if (s->owned) close_stream(d, s);|if (s->owned) d->acl.aclrtDestroyStream(s->native);|a stream is closed while it works
.c|!= 0) atomic_store(&d->lost, true);|!= 0) (void)d;|a device goes on after a wait that failed twice
.c|if (!atomic_load(&d->lost)) d->acl.aclrtDestroyStream(s->native);|d->acl.aclrtDestroyStream(s->native);|a stream is destroyed that nobody could wait for
.c|return !atomic_load(&d->lost) && tsri_ascend_await(d, e) == 0;|return true;|memory is freed although its event could not be asked
.c|if (d->acl.aclrtGetDevice(&now) == 0 && now == d->ordinal) return 0;|if (d->acl.aclrtGetDevice(&now) == 0) return 0;|the current device of a thread is taken for its own
.h|#define TSRI_ASCEND_PIECE_BYTES ((size_t)64 << 30)|#define TSRI_ASCEND_PIECE_BYTES ((size_t)256 << 30)|pieces of 256 GiB are registered
load.c|d->major >= BATCHES_FROM &&|d->major >= CANN_FIRST &&|batches of copies are used before CANN 9
load.c|!strstr(d->soc, "310P"));|d->acl.aclrtMemcpyBatchAsync);|batches of copies are used on a 310P
load.c|if (d->major >= CANN_FIRST && d->major <= CANN_LAST) return 0;|return 0;|versions of CANN that nobody knows are used
load.c|if (e && e != TSRI_ACL_REPEAT_INITIALIZE) return|if (e) return|a runtime that somebody else has initialised is refused
memory.c|return d->acl.aclrtHostRegister(p, bytes, TSRI_ACL_REGISTER_MAPPED, &mapped);|return d->acl.aclrtHostRegisterV2 ? TSRI_ACL_NOT_SUPPORTED : 0;|there is no second way to register memory
memory.c|unregister_pieces(d, r, at);|(void)at;|pieces stay registered when a later one is refused
memory.c|*memory = what == TSRI_MAPPED_HOST ? TSR_MEMORY_HOST : TSR_MEMORY_DEVICE;|*memory = TSR_MEMORY_HOST;|an engine's memory counts as host memory where the runtime does not tell
memory.c|return a.location.type == TSRI_ACL_AT_DEVICE \|\| a.location.type == TSRI_ACL_AT_HOST \|\||return true \|\||an answer of the runtime that is not known counts as host memory
copy.c|if (l->kind == TSRI_ACL_DEVICE_TO_HOST && !l->to_buffer) tsri_ascend_writes_host(d, l->s);|(void)d;|nobody knows that copies write host memory
copy.c|struct tsri_acl_location device = {(uint32_t)d->ordinal, TSRI_ACL_AT_DEVICE};|struct tsri_acl_location device = {0, TSRI_ACL_AT_DEVICE};|batches name the first device
move.c|    int err = tsri_ascend_sync(m->d, m->s);|    int err = 0;|KV in host memory is moved before what is queued
move.c|if (!atomic_load(&d->lost)) d->acl.aclrtFreeHost(host);|d->acl.aclrtFreeHost(host);|scores are freed that nobody could wait for
ops.c|heads = p->n_heads; /* of which tokens x heads are limited */|(void)heads;|interleaved rotation gets more pairs of tokens and heads than it takes
nn.h|#define TSRI_ASCEND_TOKENS_MAX 999u|#define TSRI_ASCEND_TOKENS_MAX 1020u|rotation gets more tokens than it takes
nn.c|if (bytes > TSRI_ASCEND_WORKSPACE_MAX)|if (bytes > SIZE_MAX - 1)|a workspace may have any size
END
}

# Puts the text in place of the one there; refuses unless that is there exactly once.
plant() { # file from to
    python3 - "$@" <<'END'
import sys
path, old, new = sys.argv[1:]
text = open(path, encoding="utf-8").read()
if text.count(old) != 1:
    sys.exit(f"{path}: {text.count(old)} times: {old}")
open(path, "w", encoding="utf-8").write(text.replace(old, new))
END
}

compile() { # sources
    local source
    for source in "$@"; do
        ${cc:-cc} -std=gnu11 -O1 -fPIC -fvisibility=hidden -D_GNU_SOURCE -I"$work/src" -Isrc -Iinclude \
            -c "$source" -o "$work/$(basename "$source" .c).o" || return
    done
}

link() {
    ${cc:-cc} -shared -Wl,-soname,libtessera-ascend.so -Wl,--exclude-libs,ALL "$work"/*.o "$B/lib/libtessera.a" \
        -o "$work/libtessera-ascend.so" -lm -ldl -lpthread
}

fresh() {
    rm -rf "$work/src" && mkdir -p "$work/src/device" && cp src/device/ascend* "$work/src/device/"
}

# With the mistake in one file; the next one begins with objects that have none.
build() { # file from to
    local all=("$work"/src/device/*.c) changed=("$work/src/device/$1")
    [ "${1##*.}" = h ] && changed=("${all[@]}")
    plant "$work/src/device/$1" "$2" "$3" && compile "${changed[@]}" && link
    local result=$?
    fresh && compile "${changed[@]}" || result=1
    return "$result"
}

# A test that fails, or is stopped by the fake; one that takes too long has noticed nothing.
notices() {
    local rc=0
    TESSERA_TEST_ASCEND_LIB=$work/libtessera-ascend.so timeout 300 "$@" >"$work/log" 2>&1 || rc=$?
    [ "$rc" -ne 0 ] && [ "$rc" -ne 124 ]
} 2>/dev/null

suite_notices() {
    notices "$B/tests/device/test_contract" npu some
}

# The tests of a file's own first.
tests_notice() { # file
    local test tests=("_${1%.*}" '' _copy _memory _lost _move _load _ops _nn _probe)
    case $1 in
    load.c) tests=(_load) ;;
    ops.c | nn.c | nn.h | probe.c) tests=(_ops _nn _probe _lost) ;;
    .c | .h) tests=('' _lost _memory _copy _move _ops) ;;
    esac
    for test in "${tests[@]}"; do
        [ -x "$B/tests/device/test_ascend$test" ] && notices "$B/tests/device/test_ascend$test" && return
    done
    return 1
}

say() { # status, what
    if [ "$1" = 0 ]; then
        echo "  ok      $2"
        passed=$((passed + 1))
    else
        echo "  FAILED  $2"
        failed=$((failed + 1))
    fi
}

ask() { # who notices: lines of a list
    local who=$1 file old new what name
    while IFS='|' read -r file old new what; do
        old=${old//$'\001'/|} new=${new//$'\001'/|}
        if [ -n "$words" ]; then
            grep -qE -- "$words" <<<"$file $old $what" || continue
        else
            [ $((n++ % step)) -eq 0 ] || continue
        fi
        name=ascend_$file
        case $file in .c | .h) name=ascend$file ;; esac
        if ! build "$name" "$old" "$new"; then
            say 1 "not built: $what ($name: $old)"
        elif [ "$who" = suite ]; then
            suite_notices
            say $? "noticed by the contract suite: $what"
        else
            tests_notice "$file"
            say $? "noticed: $what"
        fi
    done < <(sed 's/\\|/\x01/g')
}

fresh
compile "$work"/src/device/*.c && link && ! notices "$B/tests/device/test_ascend_copy" &&
    ! notices "$B/tests/device/test_ascend_nn" # make check runs the others
say $? "without a mistake everything passes"
step=24
[ -n "${TESSERA_TEST_LONG-}" ] && step=1
n=0
ask suite < <(for_suite)
ask "${only:-tests}" < <(for_tests)
echo "# $passed passed $failed failed 0 skipped"
[ "$failed" = 0 ]
