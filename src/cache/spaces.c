/* spaces.c - the spaces a cache knows. A slot is found by its fingerprint and stays as long as
 * somebody has it open or entries name it by number; opening the same description again then gives
 * the same slot. A slot that is neither is used again when all others are taken, and when there is
 * none of these, the entries of the space that was closed longest ago go: tenants come and
 * go, and a new one is worth more than what an old one has left. */
#include "cache/backend.h"
#include "cache/manager.h"

#include <stdio.h>
#include <stdlib.h>

static struct tsr_space *find_slot(struct tsr_cache *c, const uint8_t fingerprint[16])
{
    for (uint32_t i = 0; i < c->n_spaces; i++)
        if (memcmp(c->spaces[i].fingerprint, fingerprint, 16) == 0) return &c->spaces[i];
    return NULL;
}

static struct tsr_space *unused_slot(struct tsr_cache *c)
{
    if (c->n_spaces < c->options.spaces_max) return &c->spaces[c->n_spaces++];
    for (uint32_t i = 0; i < c->n_spaces; i++)
        if (c->spaces[i].refs == 0 && c->spaces[i].n_entries == 0) return &c->spaces[i];
    return NULL;
}

struct tsr_space *tsri_space_slot(struct tsr_cache *c, const uint8_t fingerprint[16])
{
    struct tsr_space *space = find_slot(c, fingerprint);
    if (space) return space;
    space = unused_slot(c);
    if (!space) return NULL;
    *space = (struct tsr_space){.cache = c, .id = (uint16_t)(space - c->spaces)};
    memcpy(space->fingerprint, fingerprint, 16);
    return space;
}

/* ---- taking over ---- */

#define VICTIMS_MAX 4u /* looked at, each with a walk over all entries */
#define WALK_BATCH 1024u

struct victim {
    const struct tsr_space *space; /* NULL: none yet */
    uint64_t closed;               /* as it was then */
};

/* Under lock. The next victim in the order in which they were closed; only from a tier, and never
 * opened, is oldest of all. */
static struct victim next_victim(const struct tsr_cache *c, const struct victim *last)
{
    struct victim next = {NULL, 0};
    for (uint32_t i = 0; i < c->n_spaces; i++) {
        const struct tsr_space *s = &c->spaces[i];
        bool later = !last->space || s->closed > last->closed ||
                     (s->closed == last->closed && s > last->space);
        if (s->refs || !later || (next.space && s->closed >= next.closed)) continue;
        next = (struct victim){s, s->closed};
    }
    return next;
}

/* Under lock. False when it is in use, or waits to be written: dropped before, it would be lost and
 * a flush would not say so. */
static bool pass_entry(struct tsr_cache *c, const struct tsr_space *s, uint32_t id, bool drop)
{
    enum tsri_state state = tsri_word_state(atomic_load(&c->entries[id].word));
    if (state != TSRI_HOST && state != TSRI_COLD) return true;
    if (c->entries[id].space != s->id) return true;
    if (c->entries[id].flags & TSRI_ENTRY_QUEUED || !tsri_entry_is_idle(c, id)) return false;
    if (drop) tsri_stats_add(c->stats, TSRI_M_evictions, tsri_entry_drop(c, id, TSR_EVENT_EVICTED));
    return true;
}

/* Walks the entries of a space, in batches, so that nobody waits long for the lock; false when one
 * of them is in use, or the space has been opened again. */
static bool walk_entries(struct tsr_cache *c, const struct victim *v, bool drop)
{
    const struct tsr_space *s = v->space;
    bool idle = true;
    for (uint32_t id = 0, end = UINT32_MAX; idle && id < end;) {
        pthread_mutex_lock(&c->lock);
        end = c->ids_fresh;
        uint32_t stop = tsri_min_u32(end, id + WALK_BATCH);
        idle = s->refs == 0 && s->closed == v->closed;
        for (; idle && id < stop; id++)
            idle = pass_entry(c, s, id, drop);
        pthread_mutex_unlock(&c->lock);
    }
    return idle;
}

/* Sets *any if there is a space that is not open. */
static bool take_over(struct tsr_cache *c, bool *any)
{
    struct victim v = {NULL, 0};
    for (uint32_t i = 0; i < VICTIMS_MAX; i++) {
        pthread_mutex_lock(&c->lock);
        v = next_victim(c, &v);
        pthread_mutex_unlock(&c->lock);
        if (!v.space) return false;
        *any = true;
        if (walk_entries(c, &v, false) && walk_entries(c, &v, true)) return true;
    }
    return false;
}

bool tsri_spaces_make_room(struct tsr_cache *c)
{
    bool any = false;
    if (take_over(c, &any)) return true;
    if (!any || !c->manager) return false;
    tsri_manager_drain(c); /* what was in the way may only have waited to be written */
    return take_over(c, &any);
}

/* ---- opening ---- */

/* NULL when there is no slot. */
static struct tsr_space *enter(struct tsr_cache *c, const uint8_t fingerprint[16],
                               const struct tsri_shape *shape, const struct tsr_space_desc *d)
{
    pthread_mutex_lock(&c->lock);
    struct tsr_space *space = tsri_space_slot(c, fingerprint);
    /* Once only: others who have it open read it without a lock, and it would be the same. */
    if (space && !space->shaped) {
        space->shape = *shape;
        space->block_tokens = d->block_tokens;
        snprintf(space->model, sizeof space->model, "%s", d->model);
        space->shaped = true;
    }
    if (space) space->refs++;
    pthread_mutex_unlock(&c->lock);
    return space;
}

static int open_space(struct tsr_space **out, struct tsr_cache *c,
                      const struct tsr_space_desc *desc, bool may_wait)
{
    struct tsr_space_desc d = {0};
    memcpy(&d, desc, desc->size < sizeof d ? desc->size : sizeof d);
    if (d.block_tokens == 0) d.block_tokens = c->options.chunk_size;
    int e = tsri_space_check(&d);
    if (e) return e;
    struct tsri_shape shape;
    e = tsri_shape_init(&shape, &d, c->options.host_page_size);
    if (e) return e;
    uint8_t fingerprint[16];
    tsri_space_fingerprint(&d, fingerprint);

    struct tsr_space *space = enter(c, fingerprint, &shape, &d);
    if (!space && may_wait && tsri_spaces_make_room(c)) space = enter(c, fingerprint, &shape, &d);
    if (!space)
        return tsri_fail(TSR_EAGAIN, "%u spaces are open or in use, the limit (spaces_max)",
                         c->options.spaces_max);
    e = c->backend->space_open(space, &d);
    if (e) {
        tsri_space_close(space);
        return e;
    }
    *out = space;
    return 0;
}

int tsri_space_open(struct tsr_space **out, struct tsr_cache *c, const struct tsr_space_desc *desc)
{
    return open_space(out, c, desc, true);
}

int tsri_space_open_now(struct tsr_space **out, struct tsr_cache *c,
                        const struct tsr_space_desc *desc)
{
    return open_space(out, c, desc, false);
}

void tsri_space_close(struct tsr_space *space)
{
    struct tsr_cache *c = space->cache;
    if (tsri_forked(c)) return;
    pthread_mutex_lock(&c->lock);
    TSR_ASSERT(space->refs > 0);
    struct tsri_separators *separators = NULL;
    if (--space->refs == 0) {
        space->closed = ++c->n_closed;
        separators = space->separators;
        space->separators = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    tsri_separators_close(separators);
}

bool tsri_space_is_split(const struct tsr_space *space)
{
    return space->separators != NULL;
}

bool tsri_space_has_separator(const struct tsr_space *space, const uint32_t *tokens, uint32_t n)
{
    return space->separators && tsri_separators_seen(space->separators, tokens, n);
}

uint32_t tsri_space_block_tokens(const struct tsr_space *space)
{
    return space->block_tokens;
}

const struct tsri_shape *tsri_space_shape(const struct tsr_space *space)
{
    return &space->shape;
}

static int by_entries(const void *a, const void *b)
{
    const struct tsri_space_row *x = a, *y = b;
    return (x->entries < y->entries) - (x->entries > y->entries);
}

uint32_t tsri_cache_spaces(struct tsr_cache *c, struct tsri_space_row *out, uint32_t max)
{
    uint32_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_spaces && n < max; i++) {
        const struct tsr_space *s = &c->spaces[i];
        if (s->refs == 0 && s->n_entries == 0) continue;
        struct tsri_space_row *row = &out[n++];
        *row = (struct tsri_space_row){.refs = s->refs, .entries = s->n_entries};
        if (s->shaped) row->token_bytes = tsri_shape_token_bytes(&s->shape);
        memcpy(row->model, s->model, sizeof row->model);
        memcpy(row->fingerprint, s->fingerprint, sizeof row->fingerprint);
    }
    pthread_mutex_unlock(&c->lock);
    qsort(out, n, sizeof *out, by_entries);
    return n;
}
