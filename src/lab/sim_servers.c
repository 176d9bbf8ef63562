/* sim_servers.c - the servers of a simulation: a Redis cluster with `allkeys-lru`, and a bucket that
 * keeps everything. Their rules are theirs, not the library's:
 *
 * - A cluster spreads names over its nodes by a hash. Ours are hashes already, so a part of the key
 *   does the same.
 * - An entry is a record and parts, each a value of its own. Redis evicts values, not entries: what is
 *   left of an entry is of no use and stays until its turn comes.
 * - Redis does not know which value is the oldest. It looks at a few at random and evicts the one that
 *   was not used for longest, by a clock of seconds. It samples five and remembers good candidates
 *   from before; ten fresh ones come close to that.
 * - A bucket drops nothing by itself. */
#include "lab/simulate.h"

#include <stdlib.h>

#define SAMPLES 10u
#define PARTS_AT_ONCE 4u /* a share of the parts of an entry */

const char *const tsri_sim_tier_names[TSRI_SIM_TIERS] = {"host", "disk", "redis", "s3"};

uint64_t tsri_sim_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint32_t below(struct tsri_sim *s, uint32_t n)
{
    s->random += 0x9E3779B97F4A7C15u;
    return (uint32_t)((tsri_sim_mix(s->random) >> 32) * n >> 32);
}

static uint64_t kv_bytes(const struct tsri_sim *s, uint32_t text)
{
    return (uint64_t)s->texts.all[text].n_tokens * s->token_bytes;
}

/* ---- redis ---- */

static struct tsri_sim_redis *node_of(struct tsri_sim *s, uint32_t text)
{
    return &s->redis[(s->texts.all[text].key.hi >> 32) * s->desc->n_redis >> 32];
}

static uint32_t n_parts(const struct tsri_sim *s, uint32_t text)
{
    uint64_t n =
        (kv_bytes(s, text) + s->options->redis_part_size - 1) / s->options->redis_part_size;
    return n > s->desc->n_layers ? s->desc->n_layers : (uint32_t)n;
}

/* The record has the tokens; names and what the server takes for a value go to all alike. */
static uint64_t record_bytes(const struct tsri_sim *s, uint32_t text)
{
    return s->texts.all[text].n_tokens * sizeof(uint32_t) + s->desc->redis_extra / 2;
}

static uint64_t part_bytes(const struct tsri_sim *s, uint32_t text)
{
    return (kv_bytes(s, text) + s->desc->redis_extra / 2) / n_parts(s, text);
}

static uint64_t bytes_of(const struct tsri_sim *s, const struct tsri_sim_value *v)
{
    return (v->record ? record_bytes(s, v->text) : 0) + v->n_parts * part_bytes(s, v->text);
}

/* The values of an entry, or what is left of them. */
static void take_out(struct tsri_sim *s, struct tsri_sim_redis *node, uint32_t at)
{
    struct tsri_sim_value *v = &node->values[at];
    node->bytes_used -= bytes_of(s, v);
    if (v->record) {
        s->texts.all[v->text].redis = TSRI_SIM_NONE;
        s->result->redis_entries--;
    }
    tsri_sim_texts_release(&s->texts, v->text);
    *v = node->values[--node->n];
    if (at < node->n && v->record) s->texts.all[v->text].redis = at;
}

/* One at random, an entry of more values more often. */
static uint32_t sample(struct tsri_sim *s, const struct tsri_sim_redis *node)
{
    for (;;) {
        uint32_t at = below(s, node->n);
        const struct tsri_sim_value *v = &node->values[at];
        if (below(s, node->values_max) < (uint32_t)v->n_parts + v->record) return at;
    }
}

/* One value: without its record an entry is not found, without one of its parts it cannot be read. */
static void evict_one(struct tsri_sim *s, struct tsri_sim_redis *node)
{
    uint32_t oldest = sample(s, node);
    for (uint32_t i = 1; i < SAMPLES; i++) {
        uint32_t other = sample(s, node);
        if (node->values[other].used_s < node->values[oldest].used_s) oldest = other;
    }
    struct tsri_sim_value *v = &node->values[oldest];
    bool record = v->record && below(s, (uint32_t)v->n_parts + 1) == 0;
    s->result->redis_evicted++;
    if (v->n_parts + v->record <= 1) {
        take_out(s, node, oldest);
    } else if (record) {
        node->bytes_used -= record_bytes(s, v->text);
        s->texts.all[v->text].redis = TSRI_SIM_NONE;
        s->result->redis_entries--;
        v->record = 0;
    } else {
        /* Parts of one entry are of one age: of many, some go at once, which saves most of the work. */
        uint32_t n = 1 + v->n_parts / PARTS_AT_ONCE;
        node->bytes_used -= n * part_bytes(s, v->text);
        v->n_parts = (uint16_t)(v->n_parts - n);
    }
}

static int put_in(struct tsri_sim *s, uint32_t text)
{
    struct tsri_sim_redis *node = node_of(s, text);
    struct tsri_sim_value v = {
        .text = text, .used_s = s->now_s, .n_parts = (uint16_t)n_parts(s, text), .record = 1};
    uint64_t bytes = bytes_of(s, &v);
    if (bytes > s->desc->redis_bytes) return 0; /* refused */
    while (node->bytes_used + bytes > s->desc->redis_bytes)
        evict_one(s, node);
    if (node->n == node->room) {
        uint32_t room = node->room ? 2 * node->room : 64;
        void *p = realloc(node->values, (size_t)room * sizeof *node->values);
        if (!p) return tsri_fail(TSR_ENOMEM, "no memory for %u values", room);
        node->values = p;
        node->room = room;
    }
    if (v.n_parts + 1u > node->values_max) node->values_max = v.n_parts + 1u;
    node->values[node->n] = v;
    tsri_sim_texts_hold(&s->texts, text);
    s->texts.all[text].redis = node->n++;
    node->bytes_used += bytes;
    node->bytes_moved += kv_bytes(s, text);
    s->result->redis_entries++;
    return 1;
}

void tsri_sim_redis_lose(struct tsri_sim *s, uint32_t i)
{
    struct tsri_sim_redis *node = &s->redis[i];
    while (node->n)
        take_out(s, node, node->n - 1);
}

/* The entry's values are all there. */
static bool is_whole(struct tsri_sim *s, uint32_t text)
{
    uint32_t at = s->texts.all[text].redis;
    return at != TSRI_SIM_NONE && node_of(s, text)->values[at].n_parts == n_parts(s, text);
}

/* ---- both ---- */

static bool holds(const struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text)
{
    const struct tsri_sim_text *t = &s->texts.all[text];
    return tier == TSRI_SIM_REDIS ? t->redis != TSRI_SIM_NONE : t->in_s3;
}

bool tsri_sim_has(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text)
{
    s->result->asked[tier]++;
    return holds(s, tier, text);
}

bool tsri_sim_read(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text)
{
    if (tier == TSRI_SIM_REDIS ? !is_whole(s, text) : !holds(s, tier, text)) return false;
    s->result->reads[tier]++;
    s->result->read_bytes[tier] += kv_bytes(s, text);
    if (tier != TSRI_SIM_REDIS) return true;
    struct tsri_sim_redis *node = node_of(s, text);
    node->values[s->texts.all[text].redis].used_s = s->now_s;
    node->bytes_moved += kv_bytes(s, text);
    s->texts.all[text].n_redis_reads++;
    return true;
}

int tsri_sim_write(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text)
{
    int stored = 1;
    /* Another cache may have stored it first: then nothing is sent. */
    if (tier == TSRI_SIM_REDIS ? is_whole(s, text) : holds(s, tier, text)) return 1;
    if (tier == TSRI_SIM_REDIS) {
        tsri_sim_drop(s, tier, text);
        stored = put_in(s, text);
    } else {
        s->texts.all[text].in_s3 = 1;
        tsri_sim_texts_hold(&s->texts, text);
        s->result->s3_entries++;
    }
    if (stored <= 0) return stored;
    s->result->writes[tier]++;
    s->result->write_bytes[tier] += kv_bytes(s, text);
    return 1;
}

void tsri_sim_drop(struct tsri_sim *s, enum tsri_sim_tier tier, uint32_t text)
{
    if (!holds(s, tier, text)) return;
    if (tier == TSRI_SIM_REDIS) {
        take_out(s, node_of(s, text), s->texts.all[text].redis);
        return;
    }
    s->texts.all[text].in_s3 = 0;
    s->result->s3_entries--;
    tsri_sim_texts_release(&s->texts, text);
}
