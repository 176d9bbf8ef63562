/* spaces.c - the spaces a cache knows. A slot is found by its fingerprint and stays as long as
 * somebody has it open or entries name it by number; opening the same description again then gives
 * the same slot. A slot that is neither is used again when all others are taken: tenants come and
 * go. */
#include "cache/served.h"

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

int tsri_space_open(struct tsr_space **out, struct tsr_cache *c, const struct tsr_space_desc *desc)
{
    struct tsr_space_desc d = {0};
    memcpy(&d, desc, desc->size < sizeof d ? desc->size : sizeof d);
    if (d.block_tokens == 0) d.block_tokens = c->options.chunk_size;
    int e = tsri_space_check(&d);
    if (e) return e;
    struct tsri_shape shape;
    /* Pages are the server's business, when one has the cache. */
    e = tsri_shape_init(&shape, &d, c->served ? TSRI_MIB * 64 : c->options.host_page_size);
    if (e) return e;
    uint8_t fingerprint[16];
    tsri_space_fingerprint(&d, fingerprint);

    pthread_mutex_lock(&c->lock);
    struct tsr_space *space = tsri_space_slot(c, fingerprint);
    /* Once only: others who have it open read it without a lock, and it would be the same. */
    if (space && !space->shaped) {
        space->shape = shape;
        space->block_tokens = d.block_tokens;
        snprintf(space->model, sizeof space->model, "%s", d.model);
        space->shaped = true;
    }
    if (space) space->refs++;
    pthread_mutex_unlock(&c->lock);
    if (!space)
        return tsri_fail(TSR_EAGAIN, "%u spaces are open or have entries, spaces_max",
                         c->options.spaces_max);
    e = c->served ? tsri_served_space_open(space, &d) : 0;
    if (e) {
        tsri_space_close(space);
        return e;
    }
    *out = space;
    return 0;
}

void tsri_space_close(struct tsr_space *space)
{
    struct tsr_cache *c = space->cache;
    if (tsri_forked(c)) return;
    pthread_mutex_lock(&c->lock);
    TSR_ASSERT(space->refs > 0);
    struct tsri_separators *separators = NULL;
    if (--space->refs == 0) {
        separators = space->separators;
        space->separators = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    tsri_separators_close(separators);
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
