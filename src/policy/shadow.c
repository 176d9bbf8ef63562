/* shadow.c - which window would have been best. A few small caches without content, the shadows,
 * see the same uses as the real one, each with another window; the one that would have saved most
 * lately tells the window of the real cache. They see only keys whose hash falls into a sample and
 * are as much smaller, which keeps hit rates (Waldspurger et al., "Cache modeling and optimization
 * using miniature simulations", USENIX ATC 2017), so they cost the same whatever the cache's size;
 * caches of up to 1024 entries are shadowed whole.
 *
 * Why not climb the hill of the real hit rate step by step: a step must last until its effect shows
 * above the noise, several times the turnover of the cache, and the loss of each wrong step is
 * real. The shadows are compared on the same uses, at the same time, for nothing. */
#include "policy/ranks.h"

#define NO_ID 0xffffu
#define HEADS 1024u
/* Scores fade: halved after this many uses for each entry of a shadow, but not before SCORED_MIN,
 * when they are mostly chance. */
#define SCORED_PER_ENTRY 4u
#define SCORED_MIN 2000u
/* A window is left only for one that is better by so much. */
#define BETTER 1.01

/* Of the capacity, in hundredths. The first one is the first to be used. */
static const uint32_t windows[TSRI_SHADOWS] = {1, 10, 40, 100};

/* ---- one shadow ---- */

static uint16_t *head_of(struct tsri_shadow_cache *c, uint32_t hash)
{
    return &c->heads[tsri_mark_mix(hash, 2) % HEADS];
}

static uint32_t find(struct tsri_shadow_cache *c, uint32_t hash)
{
    uint32_t id = *head_of(c, hash);
    while (id != NO_ID && c->ranks.q.ranks[id].hash != hash)
        id = c->next[id];
    return id;
}

static void enter(struct tsri_shadow_cache *c, struct tsri_rank_mark mark)
{
    uint32_t id = c->ids_free;
    uint16_t *head = head_of(c, mark.hash);
    c->ids_free = c->next[id];
    c->next[id] = *head;
    *head = (uint16_t)id;
    tsri_queues_insert(&c->ranks.q, id, mark, TSRI_RECENT);
}

static void leave(struct tsri_shadow_cache *c, uint32_t id)
{
    uint16_t *at = head_of(c, c->ranks.q.ranks[id].hash);
    while (*at != id)
        at = &c->next[*at];
    *at = c->next[id];
    c->next[id] = (uint16_t)c->ids_free;
    c->ids_free = id;
    tsri_queues_remove(&c->ranks.q, id);
}

static int may_go(void *unused, uint32_t id)
{
    (void)unused;
    (void)id;
    return 1;
}

/* False when it would not fit into the empty cache, or all ids are taken. */
static bool make_room(struct tsri_shadow_cache *c, uint32_t units)
{
    if (units > c->ranks.capacity) return false;
    while (tsri_queues_units(&c->ranks.q) + units > c->ranks.capacity)
        leave(c, tsri_ranks_victim(&c->ranks, may_go, NULL));
    return c->ids_free != NO_ID;
}

static void use(struct tsri_shadow_cache *c, struct tsri_rank_mark mark)
{
    uint32_t id = find(c, mark.hash), units = tsri_mark_units(mark.size);
    if (id != NO_ID) {
        c->score += (double)((uint64_t)units << mark.tag);
        tsri_ranks_touch(&c->ranks, id);
    } else if (make_room(c, units)) {
        enter(c, mark);
    }
}

/* ---- the sample ---- */

static bool is_sampled(const struct tsri_shadow *s, uint32_t hash)
{
    return (tsri_mark_mix(hash, 3) & (((uint64_t)1 << s->shift) - 1)) == 0;
}

void tsri_shadow_resize(struct tsri_shadow *s, uint64_t capacity)
{
    s->capacity = capacity;
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++) {
        struct tsri_shadow_cache *c = &s->caches[i];
        c->ranks.capacity = capacity >> s->shift;
        c->ranks.window = c->ranks.capacity * windows[i] / 100;
        make_room(c, 0);
    }
}

/* Halves the sample when a shadow has run out of entries. */
static void thin(struct tsri_shadow *s)
{
    s->shift++;
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++) {
        struct tsri_shadow_cache *c = &s->caches[i];
        uint32_t ids[TSRI_SHADOW_ENTRIES];
        size_t n = tsri_queues_order(&c->ranks.q, ids, TSRI_SHADOW_ENTRIES);
        for (size_t j = 0; j < n; j++)
            if (!is_sampled(s, c->ranks.q.ranks[ids[j]].hash)) leave(c, ids[j]);
    }
    tsri_shadow_resize(s, s->capacity);
}

/* ---- scores ---- */

static void choose(struct tsri_shadow *s)
{
    double best = s->caches[s->best].score * BETTER;
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++)
        if (s->caches[i].score > best) {
            best = s->caches[i].score;
            s->best = i;
        }
    uint32_t uses_max = SCORED_PER_ENTRY * tsri_queues_n(&s->caches[s->best].ranks.q);
    if (++s->n_scored < (uses_max > SCORED_MIN ? uses_max : SCORED_MIN)) return;
    s->n_scored /= 2;
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++)
        s->caches[i].score /= 2;
}

void tsri_shadow_use(struct tsri_shadow *s, struct tsri_rank_mark mark)
{
    if (!is_sampled(s, mark.hash)) return;
    bool full = false;
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++) {
        use(&s->caches[i], mark);
        full |= s->caches[i].ids_free == NO_ID;
    }
    if (full) thin(s);
    choose(s);
}

void tsri_shadow_refresh(struct tsri_shadow *s, uint32_t hash)
{
    if (!is_sampled(s, hash)) return;
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++) {
        uint32_t id = find(&s->caches[i], hash);
        if (id != NO_ID) tsri_ranks_refresh(&s->caches[i].ranks, id);
    }
}

uint32_t tsri_shadow_window(const struct tsri_shadow *s)
{
    return windows[s->best];
}

/* ---- life ---- */

void tsri_shadow_fini(struct tsri_shadow *s)
{
    for (uint32_t i = 0; i < TSRI_SHADOWS; i++)
        tsri_queues_fini(&s->caches[i].ranks.q);
    tsri_free(s->memory);
    s->memory = NULL;
}

int tsri_shadow_init(struct tsri_shadow *s, uint64_t capacity, const struct tsri_sketch *sketch)
{
    memset(s, 0, sizeof *s);
    uint16_t *at = s->memory =
        tsri_alloc((size_t)TSRI_SHADOWS * (HEADS + TSRI_SHADOW_ENTRIES), sizeof *at);
    int e = at ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; i < TSRI_SHADOWS && e == 0; i++) {
        struct tsri_shadow_cache *c = &s->caches[i];
        e = tsri_queues_init(&c->ranks.q, TSRI_SHADOW_ENTRIES);
        c->ranks.sketch = sketch;
        c->heads = at;
        c->next = at + HEADS;
        at += HEADS + TSRI_SHADOW_ENTRIES;
        memset(c->heads, 0xff, HEADS * sizeof c->heads[0]);
        for (uint32_t id = 0; id < TSRI_SHADOW_ENTRIES; id++)
            c->next[id] = (uint16_t)(id + 1 < TSRI_SHADOW_ENTRIES ? id + 1 : NO_ID);
    }
    if (e)
        tsri_shadow_fini(s);
    else
        tsri_shadow_resize(s, capacity);
    return e;
}
