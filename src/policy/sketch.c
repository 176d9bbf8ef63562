/* sketch.c - how often keys were used lately, in one byte a key. A key's count is the least of four
 * counters, which other keys may have raised, so it is never too low (Cormode and Muthukrishnan,
 * "An improved data stream summary: the count-min sketch", 2005). Only the least are raised, which
 * halves the error. All four stand in one cache line: one miss a use instead of four.
 *
 * After AGE uses for each entry of the cache all counts are halved. Less, and what is used seldom
 * but steadily cannot be told from what comes once; more, and old fame outlives its time. 16 was
 * best of 8 to 30 over all traces of bench_policy. */
#include "policy/ranks.h"

#define AGE 16u
#define AGE_USES_MIN 4096u
#define LINE_WORDS (TSRI_CACHE_LINE / 8u)
#define LINES_MIN 256u
#define ROWS 4u

/* 1 byte a key: two counters. */
int tsri_sketch_init(struct tsri_sketch *s, uint32_t keys_max)
{
    memset(s, 0, sizeof *s);
    s->n_lines = keys_max / TSRI_CACHE_LINE + LINES_MIN;
    int e = tsri_region_init(&s->region, (size_t)s->n_lines * TSRI_CACHE_LINE);
    s->words = (uint64_t *)(void *)s->region.data;
    return e;
}

void tsri_sketch_fini(struct tsri_sketch *s)
{
    tsri_region_fini(&s->region);
}

/* Where the key's counters are: row r has the line's words 2r and 2r + 1, 32 counters. */
struct counters {
    uint64_t *words[ROWS];
    uint32_t shifts[ROWS];
};

static void find(const struct tsri_sketch *s, uint32_t hash, struct counters *p)
{
    uint64_t mix = tsri_mark_mix(hash, 1);
    uint64_t *line = s->words + (((mix >> 32) * s->n_lines) >> 32) * LINE_WORDS;
    for (uint32_t r = 0; r < ROWS; r++, mix >>= 5) {
        p->words[r] = line + 2 * r + (mix >> 4 & 1);
        p->shifts[r] = (uint32_t)(mix & 15) * 4;
    }
}

static uint32_t counter(const struct counters *p, uint32_t row)
{
    return (uint32_t)(*p->words[row] >> p->shifts[row]) & TSRI_SKETCH_MAX;
}

static uint32_t least(const struct counters *p)
{
    uint32_t min = TSRI_SKETCH_MAX;
    for (uint32_t r = 0; r < ROWS; r++)
        min = tsri_min_u32(min, counter(p, r));
    return min;
}

uint32_t tsri_sketch_count(const struct tsri_sketch *s, uint32_t hash)
{
    struct counters p;
    find(s, hash, &p);
    return least(&p);
}

static void halve(struct tsri_sketch *s)
{
    for (size_t i = 0; i < (size_t)s->n_lines * LINE_WORDS; i++)
        s->words[i] = s->words[i] >> 1 & 0x7777777777777777u;
    s->n_adds /= 2;
}

void tsri_sketch_add(struct tsri_sketch *s, uint32_t hash, uint32_t n_entries)
{
    struct counters p;
    find(s, hash, &p);
    uint32_t count = least(&p);
    for (uint32_t r = 0; r < ROWS && count < TSRI_SKETCH_MAX; r++)
        if (counter(&p, r) == count) *p.words[r] += (uint64_t)1 << p.shifts[r];
    uint64_t uses = (uint64_t)AGE * n_entries;
    if (++s->n_adds >= (uses < AGE_USES_MIN ? AGE_USES_MIN : uses)) halve(s);
}
