/* meta.c - the bytes that travel between the halves: what a worker shall do in a step, and what a
 * worker has done. Little-endian, without gaps; a version, and the identity of the terms under
 * which they were made. They come through the engine's own channels (pickled, over sockets), so
 * everything is checked before it is believed: version, identity, counts against the bytes that are
 * left, ranges against each other, nothing unknown, nothing left over.
 *
 *   step    head, ids of preempted requests, ids of requests that have ended, loads, saves
 *   report  head, save reports, load reports, ids of requests whose blocks were freed
 *
 * A reader copies each order into a block of its own: the engine's bytes go away when its call
 * returns, and the jobs stay. */
#include "connector/connector.h"

#define MAGIC 0x4d525354u /* "TSRM" */
enum { KIND_STEP = 1, KIND_REPORT = 2 };
#define MATCH_BYTES 46u
#define SAVE_REPORT_BYTES 20u
#define LOAD_REPORT_BYTES 24u
#define MATCH_TIERS 64u

/* ---- writing ---- */

void tsri_bytes_put(struct tsri_bytes *b, const void *data, size_t n)
{
    if (b->failed || n == 0) return;
    if (n > b->max - b->n) {
        size_t max = b->max ? b->max : 256;
        while (max - b->n < n && max <= SIZE_MAX / 4)
            max *= 2;
        uint8_t *grown = max - b->n < n ? NULL : tsri_alloc(max, 1);
        if (!grown) {
            b->failed = true;
            return;
        }
        if (b->n) memcpy(grown, b->data, b->n);
        tsri_free(b->data);
        b->data = grown;
        b->max = max;
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

void tsri_bytes_fini(struct tsri_bytes *b)
{
    tsri_free(b->data);
    *b = (struct tsri_bytes){0};
}

static void put_u8(struct tsri_bytes *b, uint8_t v)
{
    tsri_bytes_put(b, &v, sizeof v);
}
static void put_u32(struct tsri_bytes *b, uint32_t v)
{
    tsri_bytes_put(b, &v, sizeof v);
}
static void put_u64(struct tsri_bytes *b, uint64_t v)
{
    tsri_bytes_put(b, &v, sizeof v);
}

static void put_head(struct tsri_bytes *b, const struct tsri_terms *t, uint32_t kind)
{
    put_u32(b, MAGIC);
    put_u32(b, TSRI_META_VERSION);
    put_u32(b, kind);
    tsri_bytes_put(b, t->identity, sizeof t->identity);
}

static void put_extras(struct tsri_bytes *b, const struct tsri_extras *x)
{
    put_u32(b, x->n);
    for (uint32_t i = 0; i < x->n; i++) {
        const struct tsr_extra *e = &x->items[i];
        put_u32(b, e->kind);
        put_u32(b, e->offset);
        put_u32(b, e->n_tokens);
        put_u32(b, e->bytes);
        tsri_bytes_put(b, e->data, e->bytes);
    }
}

static void put_tables(struct tsri_bytes *b, const struct tsri_terms *t,
                       const struct tsri_tables *x, uint32_t first, uint32_t end)
{
    for (uint32_t g = 0; g < t->n_groups; g++)
        tsri_bytes_put(b, x->blocks[g], tsri_tables_n(&t->groups[g], first, end) * sizeof(int32_t));
}

static void put_match(struct tsri_bytes *b, const struct tsr_match *m)
{
    put_u64(b, m->entry);
    put_u64(b, m->epoch);
    put_u32(b, m->prompt_offset);
    put_u32(b, m->entry_offset);
    put_u32(b, m->n_tokens);
    put_u32(b, m->base);
    put_u32(b, m->freq_set);
    put_u32(b, m->entry_tokens);
    put_u32(b, m->tier);
    put_u8(b, m->kind);
    put_u8(b, m->verified);
}

void tsri_meta_put_load(struct tsri_bytes *b, const struct tsri_terms *t,
                        const struct tsri_load_order *o)
{
    put_u64(b, o->request);
    put_u64(b, o->load);
    put_u32(b, o->flags);
    put_u32(b, o->first);
    put_u32(b, o->end);
    put_u32(b, o->n_tokens);
    put_u32(b, o->n_rows);
    tsri_bytes_put(b, o->tokens, (size_t)o->n_tokens * sizeof *o->tokens);
    put_extras(b, &o->extras);
    for (size_t i = 0; i < (size_t)o->n_rows * t->n_spaces; i++)
        put_match(b, &o->rows[i]);
    put_tables(b, t, &o->tables, o->first, o->end);
}

void tsri_meta_put_save(struct tsri_bytes *b, const struct tsri_terms *t,
                        const struct tsri_save_order *o)
{
    put_u64(b, o->job);
    put_u64(b, o->request);
    put_u64(b, o->spaces);
    put_u32(b, o->flags);
    put_u32(b, o->from);
    put_u32(b, o->to);
    tsri_bytes_put(b, o->tokens, (size_t)o->to * sizeof *o->tokens);
    put_extras(b, &o->extras);
    put_tables(b, t, &o->tables, o->from, o->to);
}

void tsri_meta_put_step(struct tsri_bytes *b, const struct tsri_terms *t,
                        const struct tsri_step_head *head)
{
    put_head(b, t, KIND_STEP);
    put_u64(b, head->step);
    put_u32(b, head->n_loads);
    put_u32(b, head->n_saves);
    put_u32(b, head->n_preempted);
    put_u32(b, head->n_ended);
}

void tsri_meta_put_report(struct tsri_bytes *b, const struct tsri_terms *t,
                          const struct tsri_report_head *head, const struct tsri_save_report *saves,
                          const struct tsri_load_report *loads, const uint64_t *sent)
{
    put_head(b, t, KIND_REPORT);
    put_u32(b, head->rank);
    put_u32(b, head->n_saves);
    put_u32(b, head->n_loads);
    put_u32(b, head->n_sent);
    for (uint32_t i = 0; i < head->n_saves; i++) {
        put_u64(b, saves[i].job);
        put_u32(b, (uint32_t)saves[i].result);
        put_u32(b, saves[i].n_tokens);
        put_u32(b, saves[i].busy_us);
    }
    for (uint32_t i = 0; i < head->n_loads; i++) {
        put_u64(b, loads[i].request);
        put_u64(b, loads[i].load);
        put_u32(b, (uint32_t)loads[i].result);
        put_u32(b, loads[i].loaded);
    }
    tsri_bytes_put(b, sent, head->n_sent * sizeof *sent);
}

/* ---- reading ---- */

static size_t left(const struct tsri_order_reader *r)
{
    return (size_t)(r->end - r->at);
}

static bool take(struct tsri_order_reader *r, void *out, size_t n)
{
    if (n > left(r)) return false;
    if (n) memcpy(out, r->at, n);
    r->at += n;
    return true;
}

/* Fields of 32 bits, one after the other. */
static bool take_u32s(struct tsri_order_reader *r, uint32_t *out, uint32_t n)
{
    return take(r, out, n * sizeof *out);
}

static int refuse(const char *what)
{
    return tsri_fail(TSR_EINVAL, "connector bytes: %s", what);
}

static int read_head(struct tsri_order_reader *r, const struct tsri_terms *t, const void *bytes,
                     size_t n, uint32_t kind)
{
    uint32_t head[3];
    uint8_t identity[16];
    if (!bytes) return refuse("none");
    *r = (struct tsri_order_reader){.at = bytes, .end = (const uint8_t *)bytes + n, .terms = t};
    if (!take_u32s(r, head, 3) || head[0] != MAGIC) return refuse("not from this library");
    if (head[1] != TSRI_META_VERSION)
        return tsri_fail(TSR_EVERSION, "connector bytes: version %u, expected %u", head[1],
                         TSRI_META_VERSION);
    if (head[2] != kind) return refuse("wrong type");
    if (!take(r, identity, sizeof identity)) return refuse("truncated");
    if (memcmp(identity, t->identity, sizeof identity) != 0)
        return tsri_fail(TSR_ESPACE,
                         "connector bytes: made for another model, ranks or block size");
    return 0;
}

int tsri_meta_read_step(struct tsri_order_reader *r, const struct tsri_terms *t, const void *bytes,
                        size_t n, struct tsri_step_head *head)
{
    uint32_t counts[4];
    int e = read_head(r, t, bytes, n, KIND_STEP);
    if (e) return e;
    if (!take(r, &head->step, sizeof head->step) || !take_u32s(r, counts, 4))
        return refuse("truncated");
    head->n_loads = counts[0];
    head->n_saves = counts[1];
    head->n_preempted = counts[2];
    head->n_ended = counts[3];
    if (((uint64_t)head->n_preempted + head->n_ended) * sizeof(uint64_t) > left(r))
        return refuse("truncated");
    return 0;
}

/* One block of memory for an order, cut from front to back. */
struct room {
    uint8_t *at;
    size_t left;
};

static void *cut(struct room *room, size_t bytes)
{
    bytes = tsri_align_up(bytes, 16);
    TSR_ASSERT(bytes <= room->left);
    void *p = room->at;
    room->at += bytes;
    room->left -= bytes;
    return p;
}

static bool read_extras(struct tsri_order_reader *r, struct room *room, struct tsri_extras *x)
{
    uint32_t n, total = 0;
    if (!take_u32s(r, &n, 1) || n > TSRI_EXTRA_ITEMS_MAX) return false;
    x->items = cut(room, n * sizeof *x->items);
    x->n = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t f[4];
        if (!take_u32s(r, f, 4) || f[3] > TSRI_EXTRA_BYTES_MAX - total) return false;
        total += f[3];
        uint8_t *data = cut(room, f[3]);
        if (!take(r, data, f[3])) return false;
        x->items[i] = (struct tsr_extra){
            .kind = f[0], .offset = f[1], .n_tokens = f[2], .bytes = f[3], .data = data};
    }
    return true;
}

static bool read_tables(struct tsri_order_reader *r, struct room *room, struct tsri_tables *x,
                        uint32_t first, uint32_t end)
{
    for (uint32_t g = 0; g < r->terms->n_groups; g++) {
        size_t n = tsri_tables_n(&r->terms->groups[g], first, end);
        if (n > left(r) / sizeof(int32_t)) return false;
        int32_t *blocks = cut(room, n * sizeof *blocks);
        if (!take(r, blocks, n * sizeof *blocks)) return false;
        x->blocks[g] = blocks;
    }
    return true;
}

/* Does the row say of every space what a lookup would: whole chunks, each where the row is? */
static bool row_is_sound(const struct tsri_order_reader *r, const struct tsri_load_order *o,
                         const struct tsr_match *m, uint32_t row, bool states)
{
    uint32_t chunk = r->terms->chunk_tokens;
    uint64_t offset = (uint64_t)(o->first / chunk + row) * chunk;
    if (states) { /* the last row alone has one: what its last block ends with */
        uint32_t n = r->terms->state_tokens;
        if (row + 1 < o->n_rows) return m->verified == 1 && m->n_tokens == 0;
        return m->kind == TSR_KIND_SEGMENT && m->verified <= 1 && m->tier < MATCH_TIERS &&
               offset + chunk == o->end && m->prompt_offset == o->end - n && m->entry_offset == 0 &&
               m->n_tokens == n && m->entry_tokens == n && (m->verified || o->n_tokens);
    }
    return m->kind == TSR_KIND_PREFIX && m->verified <= 1 && m->tier < MATCH_TIERS &&
           m->prompt_offset == offset && m->entry_offset == 0 && m->n_tokens == chunk &&
           m->entry_tokens == chunk && (m->verified || o->n_tokens);
}

static bool read_rows(struct tsri_order_reader *r, struct room *room, struct tsri_load_order *o)
{
    size_t n = (size_t)o->n_rows * r->terms->n_spaces;
    if (n > left(r) / MATCH_BYTES) return false;
    struct tsr_match *rows = cut(room, n * sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        uint32_t f[7];
        uint8_t kind, verified;
        uint64_t entry, epoch;
        if (!take(r, &entry, 8) || !take(r, &epoch, 8) || !take_u32s(r, f, 7) ||
            !take(r, &kind, 1) || !take(r, &verified, 1))
            return false;
        rows[i] = (struct tsr_match){.entry = entry,
                                     .epoch = epoch,
                                     .prompt_offset = f[0],
                                     .entry_offset = f[1],
                                     .n_tokens = f[2],
                                     .base = f[3],
                                     .freq_set = f[4],
                                     .entry_tokens = f[5],
                                     .tier = f[6] < MATCH_TIERS ? (uint8_t)f[6] : MATCH_TIERS,
                                     .kind = kind,
                                     .context = TSR_CONTEXT_SAME,
                                     .coverage = TSR_COVERAGE_FULL,
                                     .verified = verified};
        bool states = tsri_is_state(r->terms, (uint32_t)(i % r->terms->n_spaces));
        if (states && !rows[i].prompt_offset) rows[i].context = TSR_CONTEXT_PURE;
        if (!row_is_sound(r, o, &rows[i], (uint32_t)(i / r->terms->n_spaces), states)) return false;
    }
    o->rows = rows;
    return true;
}

/* What an order of this size needs at most; its counts have been compared with what is left. */
static void *room_for(struct room *room, const struct tsri_order_reader *r, uint32_t n_tokens,
                      uint32_t n_rows, struct tsr_range blocks_of)
{
    size_t bytes = (size_t)n_tokens * sizeof(uint32_t) + 16;
    bytes += (size_t)n_rows * r->terms->n_spaces * sizeof(struct tsr_match) + 16;
    bytes += TSRI_EXTRA_ITEMS_MAX * (sizeof(struct tsr_extra) + 16) + TSRI_EXTRA_BYTES_MAX + 16;
    for (uint32_t g = 0; g < r->terms->n_groups; g++)
        bytes += tsri_tables_n(&r->terms->groups[g], blocks_of.offset,
                               blocks_of.offset + blocks_of.n_tokens) *
                     sizeof(int32_t) +
                 16;
    room->left = bytes;
    room->at = tsri_alloc(1, bytes);
    return room->at;
}

static int read_load(struct tsri_order_reader *r, struct tsri_load_order *o, void **memory)
{
    uint32_t f[5];
    if (!take(r, &o->request, 8) || !take(r, &o->load, 8) || !take_u32s(r, f, 5))
        return refuse("truncated");
    o->flags = f[0];
    o->first = f[1];
    o->end = f[2];
    o->n_tokens = f[3];
    o->n_rows = f[4];
    uint32_t chunk = r->terms->chunk_tokens;
    if (o->flags > TSRI_LOAD_SURE || o->first >= o->end || o->end > TSRI_META_TOKENS_MAX ||
        o->n_tokens > TSRI_META_TOKENS_MAX ||
        (o->n_tokens && (o->n_tokens < o->end || o->n_tokens % chunk)) ||
        o->n_rows != (o->end + chunk - 1) / chunk - o->first / chunk)
        return refuse("invalid load");
    if ((size_t)o->n_rows * r->terms->n_spaces > left(r) / MATCH_BYTES || o->n_tokens > left(r) / 4)
        return refuse("truncated");
    struct room room;
    *memory =
        room_for(&room, r, o->n_tokens, o->n_rows, (struct tsr_range){o->first, o->end - o->first});
    if (!*memory) return TSR_ENOMEM;
    uint32_t *tokens = cut(&room, (size_t)o->n_tokens * 4);
    bool ok = take(r, tokens, (size_t)o->n_tokens * 4) && read_extras(r, &room, &o->extras) &&
              read_rows(r, &room, o) && read_tables(r, &room, &o->tables, o->first, o->end);
    if (!ok) return refuse("truncated or invalid load");
    o->tokens = tokens;
    return o->n_tokens ? tsri_extra_check(o->extras.items, o->extras.n, o->n_tokens) : 0;
}

static int read_save(struct tsri_order_reader *r, struct tsri_save_order *o, void **memory)
{
    uint32_t f[3];
    if (!take(r, &o->job, 8) || !take(r, &o->request, 8) || !take(r, &o->spaces, 8) ||
        !take_u32s(r, f, 3))
        return refuse("truncated");
    o->flags = f[0];
    o->from = f[1];
    o->to = f[2];
    uint32_t chunk = r->terms->chunk_tokens, n_spaces = r->terms->n_spaces;
    bool states = o->flags & TSRI_SAVE_STATE;
    if (o->flags > (TSRI_SAVE_IN_STEP | TSRI_SAVE_STATE) || o->from >= o->to ||
        o->to > TSRI_META_TOKENS_MAX || o->from % chunk || o->to % chunk || !o->spaces ||
        (n_spaces < 64 && o->spaces >> n_spaces))
        return refuse("invalid save");
    if (states && o->to - o->from != chunk) return refuse("invalid save");
    for (uint32_t i = 0; i < n_spaces; i++)
        if (o->spaces >> i & 1 && tsri_is_state(r->terms, i) != states)
            return refuse("invalid save");
    if (o->to > left(r) / 4) return refuse("truncated");
    struct room room;
    *memory = room_for(&room, r, o->to, 0, (struct tsr_range){o->from, o->to - o->from});
    if (!*memory) return TSR_ENOMEM;
    uint32_t *tokens = cut(&room, (size_t)o->to * 4);
    bool ok = take(r, tokens, (size_t)o->to * 4) && read_extras(r, &room, &o->extras) &&
              read_tables(r, &room, &o->tables, o->from, o->to);
    if (!ok) return refuse("truncated save");
    o->tokens = tokens;
    return tsri_extra_check(o->extras.items, o->extras.n, o->to);
}

int tsri_meta_read_load(struct tsri_order_reader *r, struct tsri_load_order *o, void **memory)
{
    *memory = NULL;
    *o = (struct tsri_load_order){0};
    int e = read_load(r, o, memory);
    if (!e) return 0;
    tsri_free(*memory);
    *memory = NULL;
    return e;
}

int tsri_meta_read_save(struct tsri_order_reader *r, struct tsri_save_order *o, void **memory)
{
    *memory = NULL;
    *o = (struct tsri_save_order){0};
    int e = read_save(r, o, memory);
    if (!e) return 0;
    tsri_free(*memory);
    *memory = NULL;
    return e;
}

int tsri_meta_read_id(struct tsri_order_reader *r, uint64_t *id)
{
    return take(r, id, sizeof *id) ? 0 : refuse("truncated");
}

int tsri_meta_check_step(const struct tsri_terms *t, const void *bytes, size_t n)
{
    struct tsri_order_reader r;
    struct tsri_step_head head;
    void *memory;
    int e = tsri_meta_read_step(&r, t, bytes, n, &head);
    if (!e) r.at += ((size_t)head.n_preempted + head.n_ended) * sizeof(uint64_t);
    for (uint32_t i = 0; !e && i < head.n_loads; i++) {
        struct tsri_load_order o;
        e = tsri_meta_read_load(&r, &o, &memory);
        tsri_free(memory);
    }
    for (uint32_t i = 0; !e && i < head.n_saves; i++) {
        struct tsri_save_order o;
        e = tsri_meta_read_save(&r, &o, &memory);
        tsri_free(memory);
    }
    if (e) return e;
    return left(&r) ? refuse("too long") : 0;
}

int tsri_meta_read_report(struct tsri_order_reader *r, const struct tsri_terms *t,
                          const void *bytes, size_t n, struct tsri_report_head *head)
{
    uint32_t f[4];
    int e = read_head(r, t, bytes, n, KIND_REPORT);
    if (e) return e;
    if (!take_u32s(r, f, 4)) return refuse("truncated");
    *head =
        (struct tsri_report_head){.rank = f[0], .n_saves = f[1], .n_loads = f[2], .n_sent = f[3]};
    if (head->rank >= t->n_ranks) return refuse("no such rank");
    if (left(r) != (uint64_t)head->n_saves * SAVE_REPORT_BYTES +
                       (uint64_t)head->n_loads * LOAD_REPORT_BYTES +
                       (uint64_t)head->n_sent * sizeof(uint64_t))
        return refuse("wrong length");
    return 0;
}

void tsri_meta_read_save_report(struct tsri_order_reader *r, struct tsri_save_report *out)
{
    uint32_t f[3];
    bool ok = take(r, &out->job, 8) && take_u32s(r, f, 3);
    TSR_ASSERT(ok); /* the length was checked */
    out->result = (int32_t)f[0];
    out->n_tokens = f[1];
    out->busy_us = f[2];
}

void tsri_meta_read_load_report(struct tsri_order_reader *r, struct tsri_load_report *out)
{
    uint32_t f[2];
    bool ok = take(r, &out->request, 8) && take(r, &out->load, 8) && take_u32s(r, f, 2);
    TSR_ASSERT(ok);
    out->result = (int32_t)f[0];
    out->loaded = f[1];
}
