/* sim_cache.c - one cache of a simulation: entries without KV in host memory and on a disk, and those
 * that a server is known to have. The policies are the library's; the steps are those of a request in
 * the library, in the same order:
 *
 *   discover (cache/discover.c), look up (find/find.c), load (cache/fetch.c), store (cache/puts.c),
 *   evict (cache/room.c, cache/entries.c), write to lower tiers (cache/writeback.c).
 *
 * Everything a store writes is below before the next request: a trace has no time in between. */
#include "lab/simulate.h"

#include <stdlib.h>

#define BIT(tier) ((uint8_t)(1u << (tier)))
#define SHARED (BIT(TSRI_SIM_REDIS) | BIT(TSRI_SIM_S3))
#define LOWER (BIT(TSRI_SIM_DISK) | SHARED)
#define DISK_UNIT 4096u
#define VICTIMS_MAX 256u

/* ---- by text ---- */

static uint32_t home(const struct tsri_sim_cache *c, uint32_t text)
{
    return (uint32_t)((text * 0x9E3779B97F4A7C15u) >> 32) & c->mask;
}

static uint32_t find(const struct tsri_sim_cache *c, uint32_t text)
{
    for (uint32_t i = home(c, text); c->table[i]; i = (i + 1) & c->mask)
        if (c->entries[c->table[i] - 1].text == text) return c->table[i] - 1;
    return TSRI_SIM_NONE;
}

static void list(struct tsri_sim_cache *c, uint32_t id)
{
    uint32_t i = home(c, c->entries[id].text);
    while (c->table[i])
        i = (i + 1) & c->mask;
    c->table[i] = id + 1;
}

/* Those behind the gap move up, so that none is cut off from its home. */
static void unlist(struct tsri_sim_cache *c, uint32_t id)
{
    uint32_t gap = home(c, c->entries[id].text);
    while (c->table[gap] != id + 1)
        gap = (gap + 1) & c->mask;
    for (uint32_t i = (gap + 1) & c->mask; c->table[i]; i = (i + 1) & c->mask) {
        uint32_t from = home(c, c->entries[c->table[i] - 1].text);
        if (((i - from) & c->mask) < ((i - gap) & c->mask)) continue;
        c->table[gap] = c->table[i];
        gap = i;
    }
    c->table[gap] = 0;
}

/* ---- chains ---- */

static void link_parent(struct tsri_sim_cache *c, uint32_t id, uint32_t parent)
{
    struct tsri_sim_entry *e = &c->entries[id];
    if (e->parent != TSRI_SIM_NONE || parent == TSRI_SIM_NONE) return;
    e->parent = parent;
    e->before = TSRI_SIM_NONE;
    e->after = c->entries[parent].first_child;
    if (e->after != TSRI_SIM_NONE) c->entries[e->after].before = id;
    c->entries[parent].first_child = id;
}

static void unlink_parent(struct tsri_sim_cache *c, uint32_t id)
{
    struct tsri_sim_entry *e = &c->entries[id];
    if (e->parent == TSRI_SIM_NONE) return;
    if (e->before != TSRI_SIM_NONE)
        c->entries[e->before].after = e->after;
    else
        c->entries[e->parent].first_child = e->after;
    if (e->after != TSRI_SIM_NONE) c->entries[e->after].before = e->before;
}

/* ---- one entry ---- */

static uint32_t n_tokens(const struct tsri_sim_cache *c, uint32_t id)
{
    return c->s->texts.all[c->entries[id].text].n_tokens;
}

static uint32_t n_pages(const struct tsri_sim_cache *c, uint32_t id)
{
    return tsri_shape_n_pages(&c->s->shape, n_tokens(c, id));
}

static uint64_t disk_units(const struct tsri_sim_cache *c, uint32_t id)
{
    uint64_t bytes = n_tokens(c, id) * (c->s->token_bytes + sizeof(uint32_t));
    return (bytes + DISK_UNIT - 1) / DISK_UNIT;
}

static void rank(struct tsri_sim_cache *c, struct tsri_policy *policy, uint32_t id, uint64_t units)
{
    struct tsri_policy_item item = {.hash = c->s->texts.all[c->entries[id].text].key.lo,
                                    .units = (uint32_t)units,
                                    .n_tokens = n_tokens(c, id),
                                    .parent = c->entries[id].parent};
    policy->ops->insert(policy, id, &item);
}

static bool is_cold(const struct tsri_sim_cache *c, uint32_t id)
{
    return !(c->entries[id].tiers & BIT(TSRI_SIM_HOST));
}

static bool is_pinned(const struct tsri_sim_cache *c, uint32_t id)
{
    return c->entries[id].pinned == c->request;
}

/* A tier has it now. */
static void note(struct tsri_sim_cache *c, uint32_t id, enum tsri_sim_tier tier)
{
    uint8_t before = c->entries[id].tiers;
    c->entries[id].tiers |= BIT(tier);
    if (before & BIT(tier)) return;
    if (tier == TSRI_SIM_HOST) {
        rank(c, c->host, id, n_pages(c, id));
        c->n_host++;
    } else if (tier == TSRI_SIM_DISK) {
        rank(c, c->disk, id, disk_units(c, id));
        c->disk_used += disk_units(c, id);
    } else if (!(before & SHARED)) {
        rank(c, c->cold, id, 1);
    }
}

/* And now it has not. */
static void unnote(struct tsri_sim_cache *c, uint32_t id, enum tsri_sim_tier tier)
{
    struct tsri_sim_entry *e = &c->entries[id];
    if (!(e->tiers & BIT(tier))) return;
    e->tiers &= (uint8_t)~BIT(tier);
    if (tier == TSRI_SIM_HOST) {
        c->host->ops->remove(c->host, id);
        c->pages_used -= n_pages(c, id);
        c->n_host--;
    } else if (tier == TSRI_SIM_DISK) {
        c->disk->ops->remove(c->disk, id);
        c->disk_used -= disk_units(c, id);
    } else if (!(e->tiers & SHARED)) {
        c->cold->ops->remove(c->cold, id);
    }
}

static void reclaim(struct tsri_sim_cache *c, uint32_t id)
{
    c->n_cold -= is_cold(c, id);
    for (int t = 0; t < TSRI_SIM_TIERS; t++)
        unnote(c, id, (enum tsri_sim_tier)t);
    unlist(c, id);
    unlink_parent(c, id);
    tsri_sim_texts_release(&c->s->texts, c->entries[id].text);
    c->entries[id].after = c->ids_free;
    c->ids_free = id;
}

/* Forgets it and all behind it; what is lost and not only forgotten is dropped by servers too. */
static void drop(struct tsri_sim_cache *c, uint32_t id, bool lost)
{
    for (uint32_t at = id;;) {
        while (c->entries[at].first_child != TSRI_SIM_NONE)
            at = c->entries[at].first_child;
        const struct tsri_sim_entry *e = &c->entries[at];
        uint32_t parent = e->parent;
        for (int t = TSRI_SIM_REDIS; lost && t < TSRI_SIM_TIERS; t++)
            if (e->tiers & BIT(t)) tsri_sim_drop(c->s, (enum tsri_sim_tier)t, e->text);
        reclaim(c, at);
        if (at == id) return;
        at = parent;
    }
}

/* ---- room ---- */

static int may_go(void *arg, uint32_t id)
{
    const struct tsri_sim_cache *c = arg;
    const struct tsri_sim_entry *e = &c->entries[id];
    return !is_pinned(c, id) && (e->first_child == TSRI_SIM_NONE || (e->tiers & LOWER));
}

/* The id that left host memory, or none. */
static uint32_t evict(struct tsri_sim_cache *c)
{
    uint32_t id = c->host->ops->victim(c->host, may_go, c);
    if (id == TSRI_POLICY_NONE) return TSRI_SIM_NONE;
    c->s->result->evicted++;
    unnote(c, id, TSRI_SIM_HOST);
    c->n_cold++;
    if (!c->entries[id].tiers) reclaim(c, id);
    return id;
}

static bool take_pages(struct tsri_sim_cache *c, uint32_t pages)
{
    if (pages == 0 || pages > c->pages_max) return false;
    while (c->pages_max - c->pages_used < pages)
        if (evict(c) == TSRI_SIM_NONE) return false;
    c->pages_used += pages;
    return true;
}

static int may_be_shed(void *arg, uint32_t id)
{
    const struct tsri_sim_cache *c = arg;
    return is_cold(c, id) && !is_pinned(c, id) && c->entries[id].first_child == TSRI_SIM_NONE;
}

static bool shed(struct tsri_sim_cache *c)
{
    struct tsri_policy *policies[] = {c->cold, c->disk};
    for (size_t i = 0; i < TSRI_COUNT(policies); i++) {
        uint32_t id =
            policies[i] ? policies[i]->ops->victim(policies[i], may_be_shed, c) : TSRI_POLICY_NONE;
        if (id == TSRI_POLICY_NONE) continue;
        drop(c, id, false);
        return true;
    }
    return false;
}

static bool give_up_one(struct tsri_sim_cache *c)
{
    if (c->n_cold > c->n_host / 16 && shed(c)) return true;
    uint32_t id = evict(c);
    if (id == TSRI_SIM_NONE) return shed(c);
    /* With lower tiers it may still have its id. */
    if (c->ids_free != id && c->entries[id].first_child == TSRI_SIM_NONE) drop(c, id, false);
    return true;
}

/* A new entry, pinned, in no tier yet. */
static uint32_t alloc(struct tsri_sim_cache *c, uint32_t text)
{
    while (c->ids_free == TSRI_SIM_NONE && c->ids_fresh == c->ids_max)
        if (!give_up_one(c)) return TSRI_SIM_NONE;
    uint32_t id = c->ids_free;
    if (id != TSRI_SIM_NONE)
        c->ids_free = c->entries[id].after;
    else
        id = c->ids_fresh++;
    c->entries[id] = (struct tsri_sim_entry){.text = text,
                                             .parent = TSRI_SIM_NONE,
                                             .first_child = TSRI_SIM_NONE,
                                             .before = TSRI_SIM_NONE,
                                             .after = TSRI_SIM_NONE,
                                             .pinned = c->request};
    tsri_sim_texts_hold(&c->s->texts, text);
    list(c, id);
    return id;
}

/* ---- down ---- */

static int may_leave_disk(void *arg, uint32_t id)
{
    const struct tsri_sim_cache *c = arg;
    for (uint32_t at = c->entries[id].first_child; at != TSRI_SIM_NONE; at = c->entries[at].after)
        if (c->entries[at].tiers & BIT(TSRI_SIM_DISK)) return 0;
    if (!is_cold(c, id)) return 1;
    return !is_pinned(c, id) && c->entries[id].first_child == TSRI_SIM_NONE;
}

static bool make_room_on_disk(struct tsri_sim_cache *c, uint64_t units)
{
    for (uint32_t i = 0; c->disk_max < c->disk_used + units; i++) {
        uint32_t id =
            i < VICTIMS_MAX ? c->disk->ops->victim(c->disk, may_leave_disk, c) : TSRI_POLICY_NONE;
        if (id == TSRI_POLICY_NONE) return false;
        unnote(c, id, TSRI_SIM_DISK);
        if (!c->entries[id].tiers) drop(c, id, false);
    }
    return true;
}

/* Behind the blocks before it that the disk lacks and host memory has. */
static void write_to_disk(struct tsri_sim_cache *c, uint32_t id)
{
    uint32_t first = id;
    for (uint32_t at = c->entries[id].parent; at != TSRI_SIM_NONE; at = c->entries[at].parent) {
        if (c->entries[at].tiers & BIT(TSRI_SIM_DISK) || is_cold(c, at)) break;
        first = at;
    }
    while (first != id) {
        uint32_t next = id; /* the one behind `first` on the way to id */
        while (c->entries[next].parent != first)
            next = c->entries[next].parent;
        if (!make_room_on_disk(c, disk_units(c, first))) return;
        note(c, first, TSRI_SIM_DISK);
        c->s->result->writes[TSRI_SIM_DISK]++;
        c->s->result->write_bytes[TSRI_SIM_DISK] += n_tokens(c, first) * c->s->token_bytes;
        first = next;
    }
    if (!make_room_on_disk(c, disk_units(c, id))) return;
    note(c, id, TSRI_SIM_DISK);
    c->s->result->writes[TSRI_SIM_DISK]++;
    c->s->result->write_bytes[TSRI_SIM_DISK] += n_tokens(c, id) * c->s->token_bytes;
}

/* Tiers that take entries when they are stored, or only when they are used again. */
static uint8_t takers(const struct tsri_sim_cache *c, bool used)
{
    const struct tsri_sim_desc *d = c->s->desc;
    const struct tsri_options *o = c->s->options;
    const int second = TSRI_DISK_ADMISSION_SECOND_TOUCH;
    uint8_t tiers = 0;
    if (d->disk && (o->disk_admission == second) == used) tiers |= BIT(TSRI_SIM_DISK);
    if (d->n_redis && ((int)o->redis_admission == second) == used) tiers |= BIT(TSRI_SIM_REDIS);
    if (d->s3 && ((int)o->s3_admission == second) == used) tiers |= BIT(TSRI_SIM_S3);
    return tiers;
}

static int write_down(struct tsri_sim_cache *c, uint32_t id, uint8_t tiers)
{
    tiers &= (uint8_t)~c->entries[id].tiers;
    if (is_cold(c, id)) return 0;
    if (tiers & BIT(TSRI_SIM_DISK)) write_to_disk(c, id);
    for (int t = TSRI_SIM_REDIS; t < TSRI_SIM_TIERS; t++) {
        if (!(tiers & BIT(t))) continue;
        int stored = tsri_sim_write(c->s, (enum tsri_sim_tier)t, c->entries[id].text);
        if (stored < 0) return stored;
        if (stored) note(c, id, (enum tsri_sim_tier)t);
    }
    return 0;
}

/* ---- a request ---- */

/* Asks the servers about chunks that are not known here; those that are there become known. */
static void discover(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n, bool prefix)
{
    const struct tsri_sim_desc *d = c->s->desc;
    const bool have[] = {[TSRI_SIM_REDIS] = d->n_redis > 0, [TSRI_SIM_S3] = d->s3};
    uint32_t first = 0;
    while (prefix && first < n && find(c, texts[first]) != TSRI_SIM_NONE)
        first++;
    for (int t = TSRI_SIM_REDIS; t < TSRI_SIM_TIERS; t++) {
        bool chain = true;
        uint32_t done = first;
        for (uint32_t i = first; have[t] && i < n; i++) {
            uint32_t id = find(c, texts[i]);
            if (!prefix && id != TSRI_SIM_NONE) continue;
            bool there = tsri_sim_has(c->s, (enum tsri_sim_tier)t, texts[i]);
            if (prefix) chain = chain && there;
            if (!there || !chain) continue;
            if (id == TSRI_SIM_NONE) {
                id = alloc(c, texts[i]);
                if (id == TSRI_SIM_NONE) return;
                c->n_cold++;
            }
            note(c, id, (enum tsri_sim_tier)t);
            c->entries[id].pinned = c->request; /* or the next one could take its place */
            if (prefix && i) link_parent(c, id, find(c, texts[i - 1]));
            done = i + 1;
        }
        if (prefix) first = done;
    }
}

/* Fills c->found; of a prefix only up to the first chunk that is not known. Returns how many of its
 * chunks were found. */
static int look_up(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n, bool prefix)
{
    uint32_t n_found = 0;
    bool chain = true;
    for (uint32_t i = 0; i < n; i++) {
        c->found[i] = chain ? find(c, texts[i]) : TSRI_SIM_NONE;
        if (c->found[i] == TSRI_SIM_NONE) {
            chain = !prefix;
            continue;
        }
        n_found++;
        c->entries[c->found[i]].pinned = c->request;
    }
    uint8_t tiers = takers(c, true);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = prefix ? n - 1 - k : k; /* a chain leaf first */
        uint32_t id = c->found[i];
        if (id == TSRI_SIM_NONE) continue;
        if (!is_cold(c, id)) c->host->ops->touch(c->host, &id, 1);
    }
    for (uint32_t i = 0; tiers && i < n; i++) {
        int err = c->found[i] == TSRI_SIM_NONE ? 0 : write_down(c, c->found[i], tiers);
        if (err < 0) return err;
    }
    return (int)n_found;
}

/* Brings an entry to host memory. The tier it came from, or TSRI_SIM_TIERS: it is gone. */
static enum tsri_sim_tier fetch(struct tsri_sim_cache *c, uint32_t id)
{
    struct tsri_sim_entry *e = &c->entries[id];
    if (!is_cold(c, id)) return TSRI_SIM_HOST;
    if (!take_pages(c, n_pages(c, id))) return TSRI_SIM_TIERS;
    for (int t = TSRI_SIM_DISK; t < TSRI_SIM_TIERS; t++) {
        if (!(e->tiers & BIT(t))) continue;
        bool there = t == TSRI_SIM_DISK || tsri_sim_read(c->s, (enum tsri_sim_tier)t, e->text);
        if (there) {
            struct tsri_policy *lower = t == TSRI_SIM_DISK ? c->disk : c->cold;
            lower->ops->touch(lower, &id, 1);
            if (t == TSRI_SIM_DISK) {
                c->s->result->reads[t]++;
                c->s->result->read_bytes[t] += n_tokens(c, id) * c->s->token_bytes;
            }
            c->n_cold--;
            note(c, id, TSRI_SIM_HOST);
            return (enum tsri_sim_tier)t;
        }
        c->s->result->lost++;
        if (e->tiers == BIT(t)) break;
        unnote(c, id, (enum tsri_sim_tier)t);
    }
    c->pages_used -= n_pages(c, id);
    drop(c, id, true);
    return TSRI_SIM_TIERS;
}

static int64_t load(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n)
{
    int64_t tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        /* It may have gone with a block before it. */
        if (c->found[i] == TSRI_SIM_NONE || find(c, texts[i]) != c->found[i]) continue;
        enum tsri_sim_tier from = fetch(c, c->found[i]);
        if (from == TSRI_SIM_TIERS) continue;
        uint32_t loaded = c->s->texts.all[texts[i]].n_tokens;
        c->s->result->tokens_from[from] += loaded;
        tokens += loaded;
    }
    return tokens;
}

static bool store_one(struct tsri_sim_cache *c, uint32_t text, uint32_t *id)
{
    if (!take_pages(c, tsri_shape_n_pages(&c->s->shape, c->s->texts.all[text].n_tokens)))
        return false;
    *id = alloc(c, text);
    if (*id != TSRI_SIM_NONE) return true;
    c->pages_used -= tsri_shape_n_pages(&c->s->shape, c->s->texts.all[text].n_tokens);
    return false;
}

static int store_segments(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id;
        if (c->found[i] != TSRI_SIM_NONE || find(c, texts[i]) != TSRI_SIM_NONE ||
            c->s->texts.all[texts[i]].n_tokens < c->s->options->segment_min_tokens)
            continue;
        if (!store_one(c, texts[i], &id)) {
            c->s->result->refused++;
            continue;
        }
        note(c, id, TSRI_SIM_HOST);
        int err = write_down(c, id, takers(c, false));
        if (err < 0) return err;
        c->entries[id].pinned = 0; /* each segment is a store of its own */
    }
    return 0;
}

static void refresh_chain(struct tsri_sim_cache *c, uint32_t id)
{
    for (; id != TSRI_SIM_NONE; id = c->entries[id].parent)
        if (!is_cold(c, id)) tsri_policy_refresh(c->host, &id, 1);
}

/* Blocks from number `from` on; the one before it must still be there. */
static int store_prefix(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n, uint32_t from)
{
    uint32_t parent = from ? find(c, texts[from - 1]) : TSRI_SIM_NONE, last = TSRI_SIM_NONE;
    uint32_t end = from;
    if (from && parent == TSRI_SIM_NONE) {
        c->s->result->refused++;
        return 0;
    }
    for (; end < n; end++) {
        if (find(c, texts[end]) != TSRI_SIM_NONE || !store_one(c, texts[end], &c->found[end]))
            break;
    }
    c->s->result->refused += end == from && from < n;
    for (uint32_t i = from; i < end; i++) {
        last = c->found[i];
        link_parent(c, last, parent);
        note(c, last, TSRI_SIM_HOST);
        parent = last;
    }
    refresh_chain(c, last);
    for (uint32_t i = from; i < end; i++) {
        int err = write_down(c, c->found[i], takers(c, false));
        if (err < 0) return err;
    }
    return 0;
}

int64_t tsri_sim_cache_ask(struct tsri_sim_cache *c, const uint32_t *texts, uint32_t n, bool prefix)
{
    TSR_ASSERT(n <= c->found_max);
    c->request++;
    c->n_requests++;
    discover(c, texts, n, prefix);
    int n_found = look_up(c, texts, n, prefix);
    if (n_found < 0) return n_found;
    int64_t tokens = load(c, texts, n);
    int err = prefix ? store_prefix(c, texts, n, (uint32_t)n_found) : store_segments(c, texts, n);
    return err ? err : tokens;
}

/* ---- a life ---- */

static int open_policies(struct tsri_sim_cache *c)
{
    const struct tsri_sim_desc *d = c->s->desc;
    struct tsri_policy_env env = {.ids_max = c->ids_max, .config = d->config};
    const struct {
        struct tsri_policy **out;
        const char *name;
        uint64_t capacity;
        bool wanted;
    } all[] = {
        {&c->host, tsr_config_get(d->config, "policy"), c->pages_max, true},
        {&c->disk, tsr_config_get(d->config, "disk_policy"), c->disk_max, d->disk},
        {&c->cold, "lru", 0, d->n_redis || d->s3},
    };
    int err = 0;
    for (size_t i = 0; !err && i < TSRI_COUNT(all); i++) {
        env.capacity = all[i].capacity;
        if (all[i].wanted) err = tsri_policy_find(all[i].name)->open(all[i].out, &env);
    }
    return err;
}

int tsri_sim_cache_init(struct tsri_sim_cache *c, struct tsri_sim *s, uint64_t ids_max,
                        uint32_t chunks_max)
{
    const struct tsri_options *o = s->options;
    *c = (struct tsri_sim_cache){.s = s, .ids_free = TSRI_SIM_NONE, .found_max = chunks_max};
    c->pages_max = o->host_size / o->host_page_size;
    c->disk_max = s->desc->disk ? o->disk_size / DISK_UNIT : 0;
    c->ids_max = (uint32_t)(ids_max < 16 ? 16 : ids_max);
    uint32_t slots = 32;
    while (slots < 2 * (uint64_t)c->ids_max && slots < (uint32_t)1 << 31)
        slots *= 2;
    c->mask = slots - 1;
    c->entries = calloc(c->ids_max, sizeof *c->entries);
    c->table = calloc(slots, sizeof *c->table);
    c->found = calloc(chunks_max, sizeof *c->found);
    int err = c->entries && c->table && c->found ? open_policies(c) : TSR_ENOMEM;
    if (err) tsri_sim_cache_fini(c);
    return err ? tsri_fail(err, "no memory for a cache of %u entries", c->ids_max) : 0;
}

void tsri_sim_cache_forget(struct tsri_sim_cache *c)
{
    for (uint32_t i = 0; c->table && i <= c->mask; i++)
        if (c->table[i]) tsri_sim_texts_release(&c->s->texts, c->entries[c->table[i] - 1].text);
}

void tsri_sim_cache_fini(struct tsri_sim_cache *c)
{
    struct tsri_policy *policies[] = {c->host, c->disk, c->cold};
    for (size_t i = 0; i < TSRI_COUNT(policies); i++)
        if (policies[i]) policies[i]->ops->close(policies[i]);
    free(c->entries);
    free(c->table);
    free(c->found);
    c->entries = NULL;
    c->table = c->found = NULL;
    c->host = c->disk = c->cold = NULL;
}
