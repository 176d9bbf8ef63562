/* sim_texts.c - all text of a simulation, numbered in the order it was first asked for. Caches and
 * servers name an entry by that number: 4 bytes instead of a key, for each of ten thousand caches. */
#include "lab/simulate.h"

#include <stdlib.h>

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
    uint64_t slots = t->table ? 2 * (t->mask + 1) : 2 * FIRST;
    uint32_t *table = calloc(slots, sizeof *table);
    if (!table) return tsri_fail(TSR_ENOMEM, "no memory for %u texts", t->n);
    free(t->table);
    t->table = table;
    t->mask = slots - 1;
    for (uint32_t i = 0; i < t->n; i++)
        *place(t, t->all[i].key) = i + 1;
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
    int err = !t->table || (uint64_t)t->n * 4 >= (t->mask + 1) * 3 ? grow_table(t) : 0;
    if (err) return err;
    uint32_t *at = place(t, key);
    if (!*at) {
        if (t->n == t->room) err = grow(t);
        if (err) return err;
        t->all[t->n++] =
            (struct tsri_sim_text){.key = key, .n_tokens = n_tokens, .redis = TSRI_SIM_NONE};
        *at = t->n;
    }
    *text = *at - 1;
    return 0;
}

void tsri_sim_texts_fini(struct tsri_sim_texts *t)
{
    free(t->all);
    free(t->table);
    *t = (struct tsri_sim_texts){0};
}
