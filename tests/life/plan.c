/* plan.c - a seed becomes a plan. Everything is drawn before anything happens, so a plan is the
 * same wherever it runs, and a step that is left out changes no other. The kind of a life goes
 * round with the seed: a row of seeds has all of them. */
#include "life/life.h"

#include <string.h>

/* splitmix64: every seed, 0 too, is a good one. */
static uint64_t draw(uint64_t *rng)
{
    uint64_t x = *rng += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
static uint32_t below(uint64_t *rng, uint32_t n)
{
    return (uint32_t)(draw(rng) >> 32) % n;
}
static bool percent(uint64_t *rng, uint32_t n)
{
    return below(rng, 100) < n;
}
#define PICK(rng, array) (array)[below(rng, sizeof(array) / sizeof *(array))]

/* ---- kinds of lives ---- */

static const struct kind {
    enum life_owner owner;
    uint8_t tiers;
    bool evicts, fills;
} kinds[] = {
    {LIFE_DAEMON, LIFE_DISK, false, false},
    {LIFE_PROCESS, LIFE_DISK, false, true},
    {LIFE_DAEMON, LIFE_REDIS, false, false},
    {LIFE_PROCESS, LIFE_DISK, true, false},
    {LIFE_DAEMON, LIFE_DISK, false, true},
    {LIFE_EMBEDDED, LIFE_DISK, false, false},
    {LIFE_PROCESS, LIFE_DISK | LIFE_DISK2, false, false},
    {LIFE_DAEMON, LIFE_DISK | LIFE_REDIS, false, false},
};

/* clang-format off */
static const uint8_t weights[LIFE_STEP_KINDS] = {
    [LIFE_STORE] = 18, [LIFE_LOOKUP] = 12, [LIFE_LOAD] = 18, [LIFE_CHECK] = 8, [LIFE_FLUSH] = 9,
    [LIFE_CLEAR] = 3, [LIFE_CLEAR_ALL] = 1, [LIFE_EVICT] = 3, [LIFE_BURST] = 4, [LIFE_BURST_ALL] = 2,
    [LIFE_RESTART] = 6, [LIFE_STOP] = 2, [LIFE_KILL_DURING] = 5, [LIFE_CLIENT_RESTART] = 3,
    [LIFE_FILL] = 4, [LIFE_UNFILL] = 3, [LIFE_REDIS_RESTART] = 2,
};
/* clang-format on */

static enum life_step_kind draw_kind(uint64_t *rng, const struct life_plan *p)
{
    for (;;) {
        uint32_t at = below(rng, 120), kind = 0;
        while (kind < LIFE_STEP_KINDS && at >= weights[kind])
            at -= weights[kind++];
        if (kind == LIFE_STEP_KINDS) continue;
        if ((kind == LIFE_FILL || kind == LIFE_UNFILL) && !p->fills) continue;
        if (kind == LIFE_REDIS_RESTART && !(p->tiers & LIFE_REDIS)) continue;
        if (kind == LIFE_KILL_DURING && !(p->parts & LIFE_WITH_KILL)) continue;
        if (kind == LIFE_CLIENT_RESTART && p->owner == LIFE_PROCESS) continue;
        return (enum life_step_kind)kind;
    }
}

/* ---- steps ---- */

static struct life_options draw_options(uint64_t *rng, const struct life_plan *p)
{
    static const uint32_t hosts[] = {1024, 2048, 4096}, pages[] = {4, 16, 64},
                          indexes[] = {0, 0, 0, 4096, 48, 16}, segments[] = {1, 2, 4};
    struct life_options o = {.host_kb = PICK(rng, hosts),
                             .page_kb = PICK(rng, pages),
                             .entries_max = PICK(rng, indexes),
                             .segment_mb = PICK(rng, segments),
                             .io_threads = 1 + below(rng, 3),
                             .tiers = p->tiers,
                             .policy = (uint8_t)below(rng, 3),
                             .disk_io = (uint8_t)below(rng, 2),
                             .write = (uint8_t)percent(rng, 20),
                             .windows = percent(rng, 50)};
    uint8_t off = (uint8_t)(1u << below(rng, 3));
    if (percent(rng, 15) && p->tiers != off) o.tiers &= (uint8_t)~off;
    if (!(p->parts & LIFE_WITH_INDEX)) o.entries_max = 0;
    if (p->evicts) {
        o.host_kb = 16384;
        o.page_kb = 64u << below(rng, 3);
        o.segment_mb = 4;
        o.entries_max = 0;
        o.tiers = p->tiers;
    }
    return o;
}

static struct life_step draw_step(uint64_t *rng, const struct life_plan *p)
{
    static const enum life_step_kind during[] = {LIFE_STORE, LIFE_STORE, LIFE_FLUSH,
                                                 LIFE_LOAD,  LIFE_BURST, LIFE_CLEAR};
    struct life_step s = {.kind = draw_kind(rng, p),
                          .worker = (uint8_t)below(rng, LIFE_WORKERS),
                          .tenant = (uint8_t)below(rng, LIFE_TENANTS),
                          .space = (uint8_t)below(rng, LIFE_SPACES),
                          .slot = (uint8_t)below(rng, LIFE_SLOTS),
                          .form = (uint8_t)draw(rng),
                          .kill = percent(rng, 50),
                          .owner = percent(rng, 60),
                          .crossed = percent(rng, 20),
                          .unseen = percent(rng, 35),
                          .waits = percent(rng, 80),
                          .during = PICK(rng, during),
                          .delay_us = below(rng, 4) ? below(rng, 3000) : below(rng, 30000),
                          .spare_kb = below(rng, 3) * 64,
                          .seed = draw(rng),
                          .options = draw_options(rng, p)};
    if (!(p->parts & LIFE_WITH_KILL)) s.kill = false;
    if (!(p->parts & LIFE_WITH_CROSS)) s.crossed = false;
    s.n_texts = (uint16_t)(percent(rng, 30) ? 8 + below(rng, 24) : 1 + below(rng, 4));
    s.text = (uint16_t)below(rng, LIFE_TEXTS);
    if (s.n_texts > LIFE_TEXTS - s.text) s.n_texts = (uint16_t)(LIFE_TEXTS - s.text);
    if (s.kind == LIFE_LOOKUP || s.kind == LIFE_CHECK || s.kind == LIFE_CLEAR) s.n_texts = 1;
    return s;
}

/* Most of what is asked for was stored by an earlier step, most of what is loaded looked up. */
static void aim(uint64_t *rng, const struct life_plan *p, uint32_t at, struct life_step *s)
{
    enum life_step_kind wanted = s->kind == LIFE_LOAD ? LIFE_LOOKUP : LIFE_STORE;
    bool asks = s->kind == LIFE_LOOKUP || s->kind == LIFE_CHECK || s->kind == LIFE_LOAD;
    uint32_t back = 1 + below(rng, 40);
    if (!asks || percent(rng, 15)) return;
    for (uint32_t i = back; i <= at && i < back + 40; i++) {
        const struct life_step *old = &p->steps[at - i];
        if (old->kind != wanted) continue;
        s->worker = (uint8_t)((s->worker & 2) | (old->worker & 1));
        s->tenant = old->tenant;
        s->space = old->space;
        s->slot = s->kind == LIFE_LOAD ? old->slot : s->slot;
        s->text = (uint16_t)(old->text + below(rng, old->n_texts));
        return;
    }
}

void life_plan_make(struct life_plan *p, uint64_t seed, uint32_t parts)
{
    uint64_t rng = seed;
    const struct kind *kind = &kinds[seed % (sizeof kinds / sizeof *kinds)];
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->owner = kind->owner;
    p->tiers = kind->tiers;
    p->parts = parts;
    p->evicts = kind->evicts && parts & LIFE_WITH_EVICT;
    p->fills = kind->fills && parts & LIFE_WITH_FILL;
    if (!(parts & LIFE_WITH_REDIS)) p->tiers &= (uint8_t)~LIFE_REDIS;
    if (!(parts & LIFE_WITH_DISK2)) p->tiers &= (uint8_t)~LIFE_DISK2;
    if (!p->tiers) p->tiers = LIFE_DISK;
    p->options = draw_options(&rng, p);
    p->options.tiers = p->tiers;
    p->options.entries_max = 0;
    uint32_t start_at = 0;
    p->n_steps = p->evicts ? 60 + below(&rng, 40) : 120 + below(&rng, 120);
    for (uint32_t i = 0; i < p->n_steps; i++) {
        p->steps[i] = draw_step(&rng, p);
        aim(&rng, p, i, &p->steps[i]);
        if (start_at && i >= start_at) p->steps[i].kind = LIFE_START, start_at = 0;
        if (p->steps[i].kind == LIFE_STOP) start_at = i + 1 + below(&rng, 3);
    }
}

const char *life_step_name(enum life_step_kind kind)
{
    static const char *const names[] = {
#define NAME(name) #name,
        LIFE_STEPS(NAME)
#undef NAME
    };
    return names[kind];
}

void life_step_say(const struct life_step *s, char *text, size_t bytes)
{
    const struct life_options *o = &s->options;
    int n = snprintf(text, bytes, "%s", life_step_name(s->kind));
    size_t at = (size_t)n < bytes ? (size_t)n : bytes;
    if (s->kind == LIFE_RESTART || s->kind == LIFE_START || s->kind == LIFE_STOP)
        snprintf(text + at, bytes - at,
                 "%s host %uK page %uK entries %u segment %uM tiers %u policy %u io %u write %u",
                 s->kill ? " kill" : "", o->host_kb, o->page_kb, o->entries_max, o->segment_mb,
                 o->tiers, o->policy, o->disk_io, o->write);
    else if (s->kind == LIFE_KILL_DURING)
        snprintf(text + at, bytes - at, " %s: kill %s after %u us; worker %u texts %u+%u",
                 life_step_name(s->during), s->owner ? "owner" : "worker", s->delay_us, s->worker,
                 s->text, s->n_texts);
    else if (s->kind == LIFE_FILL)
        snprintf(text + at, bytes - at, " but %u KiB", s->spare_kb);
    else
        snprintf(text + at, bytes - at,
                 " worker %u tenant %u space %u slot %u form %u%s%s texts %u+%u", s->worker,
                 s->tenant, s->space, s->slot, s->form, s->crossed ? " crossed" : "",
                 s->kill ? " kill" : "", s->text, s->n_texts);
}
