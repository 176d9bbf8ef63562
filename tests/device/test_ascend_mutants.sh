#!/usr/bin/env bash
# Mistakes planted in the device "npu": each is built into a library of its own, and test_ascend,
# _copy, _memory, _move, _ops, _nn, _probe or the contract suite must notice it over the fake AscendCL. A line of the table is
#   file | text that is there once | what stands there instead | what the mistake is
# Every twelfth of them, all with TESSERA_TEST_LONG=1 (make check-long).
set -u
B=${B:-build}
cc=$(sed -n 's/^CC=//p' "$B/flags" 2>/dev/null)
san=$(sed -n 's/^SAN=//p' "$B/flags" 2>/dev/null)
[ -z "$san" ] || { echo "    skipped: libraries are built without a sanitizer"; echo "# 0 passed 0 failed 1 skipped"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

table() {
    grep -v '^#' <<'END'
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
move.c|        err = tsri_ascend_settle(m->d, m->s);|        err = 0;|cells are read while a gather fills them
copy.c|return tsri_ascend_await(d, &(*out)->used);|return 0;|a buffer is filled while copies read it
copy.c|struct tsri_acl_batch attr = {.dst = up ? device : host, .src = up ? host : device};|struct tsri_acl_batch attr = {.dst = device, .src = host};|the direction of a batch is wrong
copy.c|aligned = ((uintptr_t)c.dst \| (uintptr_t)c.src) % DEVICE_ALIGN == 0;|aligned = true;|copies within the device at odd addresses
copy.c|    if (!err && !to_device) err = tsri_ascend_await(d, &b->used);|    (void)err;|plain memory is written before its bytes are there
copy.c|        if (b->data) d->acl.aclrtFreeHost(b->data);|        (void)b->data;|buffers are left behind
copy.c|    int err = tsri_ascend_sync(d, s);|    int err = 0;|the processor copies before what is queued
copy.c|        if (n > in_src) n = in_src;|        (void)in_src;|a copy goes from one registration into the next
.c|if (e->writes_host) tsri_ascend_writes_host(d, to);|(void)to;|an event does not say that host memory is written
memory.c|if (tsri_ascend_enter(d) == 0) unregister_pieces(d, r, r->bytes);|if (tsri_ascend_enter(d) == 0) unregister_pieces(d, r, 1);|only the first piece is unregistered
.c|if (tsri_ascend_enter(d) == 0) tsri_ascend_event_fini(d, e);|(void)d;|events are left behind
.c|TSRI_ACL_TRY(d, empty_stream(d, s), "the stream failed");|(void)d;|waiting for a stream does not wait
.c|if (status == TSRI_ACL_EVENT_COMPLETE) return 0;|return 0;|waiting for an event does not wait
ops.c|if (j->run->slots[i] >= 0) j->tokens[j->n++] = i;|j->tokens[j->n++] = i;|operators get slots of -1
ops.c|if (in_cell + n == c->cell_tokens) break;|(void)in_cell;|a stretch for operators goes on behind the end of its cell
ops.c|int recorded = tsri_ascend_record(j->call.d, &j->call.area->used, j->call.s);|int recorded = 0;|nobody knows when an area is idle
ops.c|return tsri_ascend_await(j->call.d, &j->call.area->used);|return 0;|tables change while a copy reads them
ops.c|sin[a] = sin[b] = j->table[n_pairs + i];|sin[a] = sin[b] = j->table[i];|operators rotate with cos for sin
ops.c|.offset = p->rope_first};|.offset = 0};|operators rotate the first elements of a head
ops.c|if (!err && (!turns(j, p) \|\| p->rope_dims < p->dim))|if (!err && !turns(j, p))|elements that do not turn are not widened
ops.c|(!l->block_tokens \|\| p->block_stride == l->block_tokens * row);|row;|an operator gets an engine's memory with gaps
ops.c|if (!cells_aligned(j, plane)) return false;|(void)plane;|copies of cells within the device at odd addresses
ops.c|if (err) tsri_ascend_ops_stop(o, "one failed in use");|(void)o;|operators are tried again after a failure
ops.c|*done = !err;|*done = true;|a failed operator counts as done
nn.c|if (ts->at[i]) nn->aclDestroyTensor(ts->at[i]);|(void)nn;|tensors are left behind
nn.c|    int err = tsri_ascend_sync(d, c->s);|    int err = 0;|a workspace is freed while an operator uses it
nn.c|drop_executor(&c->d->ops->nn, plan->executor);|(void)plan;|an executor is left behind
nn.c|if (!has_scatter(d)) nn->aclnnScatterPaKvCache = NULL;|(void)d;|a version whose parameters are not known is used
probe.c|return memcmp(p->want, p->image, PLANES * p->plane_bytes) == 0 &&|return|the self-test does not look at the engine's memory
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

build() {
    ${cc:-cc} -std=gnu11 -O1 -fPIC -fvisibility=hidden -shared -D_GNU_SOURCE -I"$work/src" -Isrc -Iinclude \
        -Wl,-soname,libtessera-ascend.so -Wl,--exclude-libs,ALL "$work"/src/device/*.c "$B/lib/libtessera.a" \
        -o "$work/libtessera-ascend.so" -lm -ldl -lpthread
}

fresh() {
    rm -rf "$work/src" && mkdir -p "$work/src/device" && cp src/device/ascend* "$work/src/device/"
}

# A test that fails, or is stopped by the fake; one that takes too long has noticed nothing.
notices() {
    local rc=0
    TESSERA_TEST_ASCEND_LIB=$work/libtessera-ascend.so timeout 300 "$@" >"$work/log" 2>&1 || rc=$?
    [ "$rc" -ne 0 ] && [ "$rc" -ne 124 ]
} 2>/dev/null

# The tests of a file's own first.
notices_any() { # file
    local test tests=(_copy _memory _move '' _ops _nn _probe)
    case $1 in
    ops.c | nn.c | probe.c) tests=(_ops _nn _probe) ;;
    none) tests=(_copy _nn) ;; # make check runs the others
    esac
    for test in "${tests[@]}"; do
        notices "$B/tests/device/test_ascend$test" && return
    done
    return 1
}

fresh
if build && ! notices_any none; then
    echo "  ok      without a mistake everything passes"
    passed=1
else
    echo "  FAILED  without a mistake everything passes"
    tail -5 "$work/log"
    failed=1
fi
step=12
[ -n "${TESSERA_TEST_LONG-}" ] && step=1
n=0

while IFS='|' read -r file old new what; do
    old=${old//$'\001'/|} new=${new//$'\001'/|}
    [ $((n++ % step)) -eq 0 ] || continue
    fresh
    name=ascend_$file
    [ "$file" = .c ] && name=ascend.c
    if plant "$work/src/device/$name" "$old" "$new" && build &&
        { notices_any "$file" || notices "$B/tests/device/test_contract" npu; }; then
        echo "  ok      noticed: $what"
        passed=$((passed + 1))
    else
        echo "  FAILED  not noticed: $what ($name: $old)"
        failed=$((failed + 1))
    fi
done < <(table | sed 's/\\|/\x01/g')
echo "# $passed passed $failed failed 0 skipped"
[ "$failed" = 0 ]
