/* sim_texts.c - the text of a simulation by number. Caches and servers name an entry by that
 * number: 4 bytes instead of a key, for each of ten thousand caches. Text that no cache has any
 * more is forgotten and its number given again, or half an hour of a large fleet would not fit into
 * memory. */
#include "lab/simulate.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 1024u

static uint32_t *place(const struct tsri_sim_texts *t, struct tsri_key key)
{
    uint64_t i = key.lo & t->mask;
    while (t->table[i] && !tsri_key_equal(t->all[t->table[i] - 1].key, key))
        i = (i + 1) & t->mask;
    return &t->table[i];
}

static int grow_table(struct tsri_sim_texts *t)
{
    uint64_t slots = t->table ? 2 * (t->mask + 1) : (uint64_t)2 * FIRST;
    uint32_t *table = calloc(slots, sizeof *table);
    if (!table) return tsri_fail(TSR_ENOMEM, "no memory for %u texts", t->n);
    free(t->table);
    t->table = table;
    t->mask = slots - 1;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->all[i].n_held) *place(t, t->all[i].key) = i + 1;
    return 0;
}

static int grow(struct tsri_sim_texts *t)
{
    if (t->n == TSRI_SIM_TEXTS_MAX)
        return tsri_fail(TSR_ERANGE, "more than %u texts: use fewer copies or --limit",
                         TSRI_SIM_TEXTS_MAX);
    /* By half, not twice: this is most of the memory of a long run. */
    uint32_t room = t->room ? t->room + t->room / 2 : FIRST;
    void *all = realloc(t->all, (size_t)room * sizeof *t->all);
    if (!all) return tsri_fail(TSR_ENOMEM, "no memory for %u texts", t->n);
    t->all = all;
    t->room = room;
    return 0;
}

int tsri_sim_texts_add(struct tsri_sim_texts *t, struct tsri_key key, uint32_t n_tokens,
                       uint32_t *text)
{
    /* At most three quarters full. */
    uint64_t n_known = t->n - t->n_free;
    int err = !t->table || n_known * 4 >= (t->mask + 1) * 3 ? grow_table(t) : 0;
    if (err) return err;
    uint32_t *at = place(t, key);
    if (!*at) {
        if (!t->first_free && t->n == t->room) err = grow(t);
        if (err) return err;
        *at = t->first_free ? t->first_free : ++t->n;
        if (t->first_free) {
            t->first_free = t->all[*at - 1].redis;
            t->n_free--;
        }
        t->all[*at - 1] =
            (struct tsri_sim_text){.key = key, .n_tokens = n_tokens, .redis = TSRI_SIM_NONE};
        t->n_added++;
    }
    *text = *at - 1;
    t->all[*text].n_held++;
    return 0;
}

void tsri_sim_texts_prefetch(const struct tsri_sim_texts *t, struct tsri_key key)
{
    if (t->table) __builtin_prefetch(&t->table[key.lo & t->mask]);
}

void tsri_sim_texts_hold(struct tsri_sim_texts *t, uint32_t text)
{
    t->all[text].n_held++;
}

/* ---- hot ones ---- */

/* The list is sorted, the hottest first. */
static void count_hot(const struct tsri_sim_text *text, uint64_t hot[TSRI_SIM_HOT],
                      uint64_t *redis_reads)
{
    if (text->n_redis_reads > *redis_reads) *redis_reads = text->n_redis_reads;
    uint32_t i = TSRI_SIM_HOT;
    for (; i && hot[i - 1] < text->n_asked; i--)
        if (i < TSRI_SIM_HOT) hot[i] = hot[i - 1];
    if (i < TSRI_SIM_HOT) hot[i] = text->n_asked;
}

void tsri_sim_texts_hot(const struct tsri_sim_texts *t, uint64_t hot[TSRI_SIM_HOT],
                        uint64_t *redis_reads)
{
    memcpy(hot, t->hot, sizeof t->hot);
    *redis_reads = t->hot_redis_reads;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->all[i].n_held) count_hot(&t->all[i], hot, redis_reads);
}

/* ---- forgetting ---- */

/* Those behind the gap move up, so that none is cut off from its home. */
static void unlist(struct tsri_sim_texts *t, uint32_t text)
{
    uint64_t gap = (uint64_t)(place(t, t->all[text].key) - t->table);
    for (uint64_t i = (gap + 1) & t->mask; t->table[i]; i = (i + 1) & t->mask) {
        uint64_t home = t->all[t->table[i] - 1].key.lo & t->mask;
        if (((i - home) & t->mask) < ((i - gap) & t->mask)) continue;
        t->table[gap] = t->table[i];
        gap = i;
    }
    t->table[gap] = 0;
}

void tsri_sim_texts_release(struct tsri_sim_texts *t, uint32_t text)
{
    struct tsri_sim_text *gone = &t->all[text];
    TSR_ASSERT(gone->n_held > 0);
    if (--gone->n_held) return;
    count_hot(gone, t->hot, &t->hot_redis_reads);
    unlist(t, text);
    gone->redis = t->first_free;
    t->first_free = text + 1;
    t->n_free++;
}

void tsri_sim_texts_fini(struct tsri_sim_texts *t)
{
    free(t->all);
    free(t->table);
    *t = (struct tsri_sim_texts){0};
}
