/* terms.c - what the two halves agree on, settled from one description: spaces, groups, the size of
 * a chunk. Both halves compute the same identity from it without talking to each other, so that
 * bytes made under other terms (another model, another number of ranks) are refused. Extras are
 * settled here, too: media are cut at chunk boundaries, because a prompt is looked up and saved up
 * to any of them, and a key must not depend on where it ends. */
#include "connector/connector.h"

#define TIMEOUT_MS 30000u
#define SAVE_WAIT_MS 2000u
#define JOBS_MAX 4096u
#define JOBS_LIMIT (1u << 20)
#define CHUNK_MAX 65536u

/* Entry i of an array whose elements have the size that the caller compiled. */
static void copy_sized(void *out, size_t out_bytes, const void *array, size_t stride, uint32_t i)
{
    memset(out, 0, out_bytes);
    memcpy(out, (const uint8_t *)array + i * stride, stride < out_bytes ? stride : out_bytes);
}

/* What is special about a group. */
static int settle_group(struct tsri_terms *t, const struct tsr_group *group, uint32_t g)
{
    if (group->flags > TSR_GROUP_STATE)
        return tsri_fail(TSR_EINVAL, "connector: group %u: unknown flags %#x", g, group->flags);
    if (group->draft_tokens && group->block_tokens > t->draft_block)
        t->draft_block = group->block_tokens;
    if (group->draft_tokens > t->draft_tokens) t->draft_tokens = group->draft_tokens;
    if (!(group->flags & TSR_GROUP_STATE)) return 0;
    if (group->window_tokens || group->draft_tokens)
        return tsri_fail(TSR_EINVAL, "connector: group %u: states have no window and no drafts", g);
    if (t->state_tokens && t->state_tokens != group->block_tokens)
        return tsri_fail(TSR_EUNSUP, "connector: group %u: block size %u, other states have %u", g,
                         group->block_tokens, t->state_tokens);
    t->state_tokens = group->block_tokens;
    t->n_states++;
    return 0;
}

static int settle_groups(struct tsri_terms *t, const struct tsr_connector_desc *d)
{
    if (!d->groups || d->groups[0].size < sizeof(size_t) || d->groups[0].size > 4096)
        return tsri_fail(TSR_EINVAL, "connector: no groups");
    for (uint32_t g = 0; g < t->n_groups; g++) {
        copy_sized(&t->groups[g], sizeof t->groups[g], d->groups, d->groups[0].size, g);
        const struct tsr_group *group = &t->groups[g];
        uint32_t n = group->block_tokens;
        if (!n || n > CHUNK_MAX)
            return tsri_fail(TSR_EUNSUP, "connector: group %u: block size %u, limit %u", g, n,
                             CHUNK_MAX);
        int e = settle_group(t, group, g);
        if (e) return e;
    }
    if (t->n_states == t->n_groups)
        return tsri_fail(TSR_EUNSUP, "connector: groups of states alone have no chunks");
    return 0;
}

/* The least common multiple; 0: more than a chunk may have. */
static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;
    while (y) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    uint64_t n = (uint64_t)a / x * b;
    return n <= CHUNK_MAX ? (uint32_t)n : 0;
}

static int settle_chunk(struct tsri_terms *t, const struct tsr_connector_desc *d)
{
    uint32_t block = 1;
    for (uint32_t g = 0; block && g < t->n_groups; g++)
        block = common_multiple(block, t->groups[g].block_tokens);
    if (!block)
        return tsri_fail(TSR_EUNSUP, "connector: no chunk is a multiple of every block size");
    uint32_t wanted = tsri_cache_options(t->cache)->chunk_size;
    t->chunk_tokens = d->chunk_tokens;
    if (!t->chunk_tokens) t->chunk_tokens = wanted <= block ? block : wanted / block * block;
    if (t->chunk_tokens % block || t->chunk_tokens > CHUNK_MAX)
        return tsri_fail(TSR_EINVAL, "connector: chunk size %u does not fit block size %u",
                         t->chunk_tokens, block);
    return 0;
}

static int settle_spaces(struct tsri_terms *t, const struct tsr_connector_desc *d, uint32_t rank)
{
    uint32_t words[4 * TSR_RANKS_MAX + 4 * TSR_GROUPS_MAX + 4], n = 0;
    if (!d->spaces || d->spaces[0].size < sizeof(size_t) || d->spaces[0].size > 4096)
        return tsri_fail(TSR_EINVAL, "connector: no spaces");
    for (uint32_t i = 0; i < t->n_spaces; i++) {
        struct tsr_space_desc space;
        copy_sized(&space, sizeof space, d->spaces, d->spaces[0].size, i);
        space.size = sizeof space;
        space.block_tokens = t->chunk_tokens;
        int e = tsri_space_check(&space);
        if (e) return e;
        uint8_t fingerprint[16];
        tsri_space_fingerprint(&space, fingerprint);
        memcpy(words + n, fingerprint, sizeof fingerprint);
        n += 4;
        for (uint32_t k = 0; k < i; k++) {
            if (memcmp(words + (size_t)4 * k, fingerprint, sizeof fingerprint) != 0) continue;
            bool may = t->flags & TSR_CONNECTOR_SHARED_SPACES && k / t->n_groups != i / t->n_groups;
            if (!may)
                return tsri_fail(TSR_EINVAL, "connector: spaces %u and %u are the same", k, i);
            t->copies |= UINT64_C(1) << i;
        }
        if (rank != TSRI_ALL_RANKS && i / t->n_groups != rank) continue;
        e = tsr_space_open(&t->spaces[i], t->cache, &space);
        if (e) return e;
    }
    for (uint32_t g = 0; g < t->n_groups; g++) {
        words[n++] = t->groups[g].block_tokens;
        words[n++] = t->groups[g].window_tokens;
        words[n++] = t->groups[g].draft_tokens;
        words[n++] = t->groups[g].flags;
    }
    words[n++] = t->n_ranks;
    words[n++] = t->chunk_tokens;
    struct tsri_key identity = tsri_tokens_hash(words, n);
    memcpy(t->identity, &identity, sizeof t->identity);
    return 0;
}

static int settle(struct tsri_terms *t, const struct tsr_connector_desc *d, uint32_t rank)
{
    if (!t->n_groups || t->n_groups > TSR_GROUPS_MAX || t->n_ranks > TSR_RANKS_MAX ||
        t->n_ranks * t->n_groups > TSRI_LOOKUP_SPACES_MAX)
        return tsri_fail(TSR_ERANGE, "connector: invalid: %u ranks of %u groups", t->n_ranks,
                         t->n_groups);
    if (t->boundary > TSR_BOUNDARY_PLACEHOLDERS)
        return tsri_fail(TSR_EINVAL, "connector: unknown boundary %u", t->boundary);
    if (t->flags >= TSR_CONNECTOR_SHARED_SPACES * 2)
        return tsri_fail(TSR_EINVAL, "connector: unknown flags %#x", t->flags);
    if (t->jobs_max > JOBS_LIMIT) return tsri_fail(TSR_ERANGE, "connector: %u jobs", t->jobs_max);
    if (rank != TSRI_ALL_RANKS && rank >= t->n_ranks)
        return tsri_fail(TSR_EINVAL, "connector: rank %u of %u", rank, t->n_ranks);
    int e = settle_groups(t, d);
    if (!e) e = settle_chunk(t, d);
    if (!e) e = settle_spaces(t, d, rank);
    if (!e) e = tsr_client_open(&t->client, t->cache);
    if (!e && t->n_states) e = tsr_client_open(&t->state_client, t->cache);
    return e;
}

int tsri_terms_init(struct tsri_terms *t, struct tsr_cache *cache,
                    const struct tsr_connector_desc *desc, uint32_t rank)
{
    memset(t, 0, sizeof *t);
    if (!cache || !desc) return tsri_fail(TSR_EINVAL, "connector: cache or description is NULL");
    if (desc->size < offsetof(struct tsr_connector_desc, chunk_tokens))
        return tsri_fail(TSR_EINVAL, "connector: description has %zu bytes", desc->size);
    struct tsr_connector_desc d;
    copy_sized(&d, sizeof d, desc, desc->size, 0);
    t->cache = cache;
    t->n_ranks = d.n_ranks ? d.n_ranks : 1;
    t->n_groups = d.n_groups ? d.n_groups : 1;
    t->n_spaces = t->n_ranks * t->n_groups;
    t->boundary = d.boundary;
    t->flags = d.flags;
    t->load_timeout_ns = (uint64_t)(d.load_timeout_ms ? d.load_timeout_ms : TIMEOUT_MS) * 1000000;
    t->save_timeout_ns = (uint64_t)(d.save_timeout_ms ? d.save_timeout_ms : TIMEOUT_MS) * 1000000;
    t->save_wait_ns = (uint64_t)(d.save_wait_ms ? d.save_wait_ms : SAVE_WAIT_MS) * 1000000;
    if (d.flags & TSR_CONNECTOR_NO_WAIT) t->save_wait_ns = 0;
    t->jobs_max = d.jobs_max ? d.jobs_max : JOBS_MAX;
    int e = settle(t, &d, rank);
    if (e) tsri_terms_fini(t);
    return e;
}

void tsri_terms_fini(struct tsri_terms *t)
{
    if (t->client) tsr_client_close(t->client);
    if (t->state_client) tsr_client_close(t->state_client);
    for (uint32_t i = 0; i < TSR_RANKS_MAX; i++)
        if (t->spaces[i]) tsr_space_close(t->spaces[i]);
    memset(t, 0, sizeof *t);
}

uint32_t tsri_terms_spaces(const struct tsri_terms *t, bool states,
                           struct tsr_space *out[TSR_RANKS_MAX])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_spaces; i++)
        if (tsri_is_state(t, i) == states) out[n++] = t->spaces[i];
    return n;
}

/* ---- extras ---- */

static bool is_media(const struct tsr_extra *e)
{
    return e->kind == TSR_EXTRA_MEDIA;
}

/* What of a media item stands in its first chunk. */
static uint32_t first_piece(const struct tsr_extra *e, uint32_t chunk_tokens)
{
    return tsri_min_u32(e->n_tokens, chunk_tokens - e->offset % chunk_tokens);
}

static uint32_t n_pieces(const struct tsr_extra *e, uint32_t chunk_tokens)
{
    if (!is_media(e) || !e->n_tokens) return 1;
    uint32_t rest = e->n_tokens - first_piece(e, chunk_tokens);
    return 1 + (rest + chunk_tokens - 1) / chunk_tokens;
}

/* Whole-request items first, then media by offset: those of a shorter prompt come first. */
static void insert(struct tsri_extras *x, const struct tsr_extra *item)
{
    uint32_t i = x->n++;
    for (; i > 0; i--) {
        const struct tsr_extra *before = &x->items[i - 1];
        bool after = is_media(item) && (!is_media(before) || before->offset <= item->offset);
        if (after || (!is_media(item) && !is_media(before))) break;
        x->items[i] = *before;
    }
    x->items[i] = *item;
}

int tsri_extras_init(struct tsri_extras *x, const struct tsr_extra *extra, uint32_t n,
                     uint32_t n_tokens, uint32_t chunk_tokens)
{
    *x = (struct tsri_extras){0};
    int e = tsri_extra_check(extra, n, n_tokens);
    if (e || n == 0) return e;
    size_t bytes = 0, n_items = 0, at = 0;
    for (uint32_t i = 0; i < n; i++) {
        bytes += extra[i].bytes;
        n_items += n_pieces(&extra[i], chunk_tokens);
    }
    if (n_items > TSRI_EXTRA_ITEMS_MAX)
        return tsri_fail(TSR_ERANGE, "connector: %zu media items, limit %u", n_items,
                         (unsigned)TSRI_EXTRA_ITEMS_MAX);
    x->items = tsri_alloc(n_items, sizeof *x->items);
    x->data = tsri_alloc(bytes + 1, 1);
    if (!x->items || !x->data) {
        tsri_extras_fini(x);
        return TSR_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct tsr_extra piece = extra[i];
        if (piece.bytes) memcpy(x->data + at, extra[i].data, piece.bytes);
        piece.data = x->data + at;
        at += piece.bytes;
        uint32_t rest = piece.n_tokens;
        do {
            piece.n_tokens = rest;
            if (is_media(&piece)) piece.n_tokens = first_piece(&piece, chunk_tokens);
            insert(x, &piece);
            rest -= piece.n_tokens;
            piece.offset += piece.n_tokens;
        } while (is_media(&piece) && rest);
    }
    e = tsri_extra_check(x->items, x->n, n_tokens);
    if (e) tsri_extras_fini(x);
    return e;
}

void tsri_extras_fini(struct tsri_extras *x)
{
    tsri_free(x->items);
    tsri_free(x->data);
    *x = (struct tsri_extras){0};
}

uint32_t tsri_extras_within(const struct tsri_extras *x, uint32_t n_tokens)
{
    uint32_t n = x->n;
    while (n && is_media(&x->items[n - 1]) && x->items[n - 1].offset >= n_tokens)
        n--;
    return n;
}
