/* model.c - what must be true of a store, kept in plain memory. The rules:
 *
 * - What was never stored by a tenant is never found by it.
 * - When a flush has returned 0, everything that its caller has stored is in the tiers that wanted
 *   it, and stays there whatever happens, until it is cleared or evicted by rule.
 * - What a failed flush has told as lost is not answered for again, unless it is stored again.
 * - Evicted by rule is what lies further back than half of the disk's budget, counting every byte
 *   that was used since. Lives whose entries are small never come near it: there nothing is
 *   evicted. Half, because segments of a log are freed as a whole.
 * - A Redis server that restarts has forgotten everything. */
#include "life/life.h"

#include <string.h>

#define DISK_BYTES (64u << 20)

static uint32_t n_entries(uint32_t text)
{
    return text < LIFE_SEGMENTS ? 1 : LIFE_BLOCKS;
}

void life_model_try(struct life_model *m, uint32_t tenant, uint32_t space, uint32_t text)
{
    for (uint32_t b = 0; b < n_entries(text); b++) {
        struct life_fact *f = &m->facts[tenant][space][life_entry(text, b)];
        if (!f->tried) f->clock = m->clock;
        f->tried = true;
    }
}

void life_model_used(struct life_model *m, const struct life_plan *p, uint32_t text)
{
    m->clock += life_text_bytes(life_plan_shape(p), text);
}

static bool by_rule(const struct life_model *m, const struct life_plan *p,
                    const struct life_fact *f)
{
    return p->evicts && m->clock - f->clock > DISK_BYTES / 2;
}

void life_model_stored(struct life_model *m, const struct life_plan *p, const struct life_deed *d)
{
    life_model_used(m, p, d->text);
    for (uint32_t b = 0; b < d->n_entries; b++) {
        struct life_fact *f = &m->facts[d->tenant][d->space][life_entry(d->text, b)];
        /* What is there stays where it is in the order of eviction: a store of it is no use. */
        if (d->fresh && by_rule(m, p, f)) f->kept = 0;
        if (d->fresh) f->clock = m->clock;
        /* Nor does it go to a tier that has come since, or that lost it in a crash: where it is
         * is known when this owner wrote it or a flush has said so. One tier is no question. */
        bool one = (p->tiers & (p->tiers - 1)) == 0;
        uint8_t known = (f->owner == d->owner ? f->wanted : f->kept) & d->tiers;
        if (one) known = d->tiers;
        if (f->redis != d->redis) known &= (uint8_t)~LIFE_REDIS; /* it has forgotten since */
        f->tried = true;
        f->wanted = d->fresh ? d->tiers : known;
        f->by = d->by;
        if (d->fresh) f->redis = d->redis;
        f->owner = d->owner;
    }
}

void life_model_flushed(struct life_model *m, const struct life_plan *p, uint32_t by,
                        uint32_t redis, uint32_t owner)
{
    struct life_fact *all = &m->facts[0][0][0];
    for (size_t i = 0; i < sizeof m->facts / sizeof *all; i++) {
        struct life_fact *f = &all[i];
        if (!f->wanted || f->by != by) continue;
        if (f->owner != owner && !(p->parts & LIFE_WITH_ANSWER)) continue;
        f->kept |= f->wanted;
        if (f->redis != redis) f->kept &= (uint8_t)~LIFE_REDIS;
    }
}

void life_model_told(struct life_model *m, uint32_t tenant, uint32_t space, uint32_t by,
                     const uint8_t entries[LIFE_TEXTS])
{
    for (uint32_t text = 0; text < LIFE_TEXTS; text++)
        for (uint32_t b = entries[text]; b < n_entries(text); b++) {
            struct life_fact *f = &m->facts[tenant][space][life_entry(text, b)];
            if (f->by == by && !f->kept) f->wanted = 0;
        }
}

void life_model_cleared(struct life_model *m, uint32_t tenant, uint32_t space, uint32_t text)
{
    for (uint32_t i = 0; i < LIFE_ENTRIES; i++) {
        struct life_fact *f = &m->facts[tenant][space][i];
        bool mine = text == LIFE_TEXTS || (text < LIFE_SEGMENTS && i == text);
        /* The first blocks of a chain are those of its family, and what is behind them goes too. */
        if (text >= LIFE_SEGMENTS && text < LIFE_TEXTS && i >= LIFE_SEGMENTS)
            mine = life_entry(LIFE_SEGMENTS + (i - LIFE_SEGMENTS) / LIFE_BLOCKS, 0) ==
                   life_entry(text, 0);
        if (mine) f->kept = f->wanted = 0;
    }
}

void life_model_crowded(struct life_model *m, uint32_t tenant, uint8_t tiers)
{
    for (uint32_t s = 0; s < LIFE_SPACES; s++)
        for (uint32_t i = 0; i < LIFE_ENTRIES; i++)
            m->facts[tenant][s][i].kept &= (uint8_t)~tiers;
}

void life_model_redis_lost(struct life_model *m)
{
    struct life_fact *all = &m->facts[0][0][0];
    for (size_t i = 0; i < sizeof m->facts / sizeof *all; i++)
        all[i].kept &= (uint8_t)~LIFE_REDIS;
}

uint32_t life_model_must(const struct life_model *m, const struct life_plan *p, uint32_t tenant,
                         uint32_t space, uint32_t text, uint8_t tiers)
{
    for (uint32_t b = 0; b < n_entries(text); b++) {
        const struct life_fact *f = &m->facts[tenant][space][life_entry(text, b)];
        if (!(f->kept & tiers) || by_rule(m, p, f)) return b;
    }
    return n_entries(text);
}

uint32_t life_model_may(const struct life_model *m, uint32_t tenant, uint32_t space, uint32_t text)
{
    uint32_t b = 0;
    while (b < n_entries(text) && m->facts[tenant][space][life_entry(text, b)].tried)
        b++;
    return b;
}
