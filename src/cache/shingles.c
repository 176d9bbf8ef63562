/* shingles.c - the table of registered shingles: which entries hold these 8 tokens. An entry
 * registers its tokens 0 to 7, 12 to 19, 24 to 31 and so on; a prompt asks for the shingles at all
 * of its offsets. So one is found in whatever 19 tokens both have in common, and in 64 tokens with
 * any 4 of them edited, since an edit spoils at most one of the five. Picking shingles by their
 * content (winnowing), at as many bytes, would promise 30 tokens.
 *
 * Edits at equal distances may keep step with these places: with one at every 12th token either all
 * shingles have one or none has, and with one at every 9th runs of 8 equal tokens begin at places
 * that two of three texts never register. So an entry in memory also registers tokens 16 to 23, 92
 * to 99 and so on. 76 is 4 modulo 12 and modulo 9, so that these stand everywhere between the others
 * in turn: an entry of 100 tokens is found wherever the 12ths begin, and one of 556 tokens wherever
 * the 9ths do. Lower tiers keep the hashes of the others alone, which is the form that stores have:
 * after a restart an entry has these once it is in memory again.
 *
 * A slot is 4 bytes: id, two bits of its generation and a tag, which is what fits of the hash. It
 * does not say where in the entry the shingle stands: that is looked up among its tokens, one
 * comparison for each. In return there is room for one shingle in 11 tokens: five sixths of the
 * slots are as many as were asked for, and with the filter that is 15.9 bytes for 32 tokens.
 *
 * As in windows.c a shingle may stand in either of two buckets of a group and takes the emptier, a
 * word of the filter holds two bits for each shingle at home in its bucket, and nothing is
 * unregistered: when both buckets are full a slot whose entry is gone is reused, then one whose
 * entry is in a lower tier, then any.
 *
 * Threads: one writer, under cache->lock; readers take no lock and see a slot or do not. */
#include "cache/core.h"

#define SLOTS 16u         /* of a bucket: a cache line */
#define GROUP 16u         /* buckets */
#define BATCH 16u         /* shingles of an entry whose places are fetched at once */
#define BETWEEN_FIRST 16u /* token at which the first shingle between the others begins */
#define GEN_BITS 2u
#define TAG_BITS_MIN 6u
#define AWAY ((uint32_t)1 << 31)

static inline uint32_t load(const _Atomic uint32_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}
/* The home is of the high bits of a hash and the tag of the low ones: 32 are enough for both. */
static inline uint64_t home_of(const struct tsri_shingles *t, uint32_t x)
{
    return (uint64_t)x * t->n_buckets >> 32;
}
/* Never 0, so that no slot is. */
static inline uint32_t tag_of(const struct tsri_shingles *t, uint32_t x)
{
    uint32_t tag = x & ((1u << t->tag_bits) - 1);
    return tag | (uint32_t)(tag == 0);
}
static inline uint32_t slot_tag(const struct tsri_shingles *t, uint32_t slot)
{
    return (slot & ~AWAY) >> (t->id_bits + GEN_BITS);
}
static inline uint32_t slot_id(const struct tsri_shingles *t, uint32_t slot)
{
    return slot & ((1u << t->id_bits) - 1);
}
static inline uint32_t slot_gen(const struct tsri_shingles *t, uint32_t slot)
{
    return slot >> t->id_bits & (TSRI_SHINGLE_GENS - 1);
}
static inline uint64_t neighbour_of(uint64_t bucket, uint32_t tag)
{
    uint32_t other = tag & (GROUP - 1);
    return bucket ^ (other | (uint32_t)(other == 0));
}
/* Of the tag alone: a word is made again from its slots. */
static inline uint64_t filter_bits(uint32_t tag)
{
    uint32_t x = tag * 0x9E3779B1u;
    return (uint64_t)1 << (x >> 26) | (uint64_t)1 << (x >> 20 & 63);
}

/* ---- memory ---- */

int tsri_shingles_init(struct tsri_shingles *t, uint32_t windows_max, uint32_t ids_max)
{
    memset(t, 0, sizeof *t);
    if (windows_max == 0) return 0;
    uint64_t n_shingles = (uint64_t)windows_max * TSRI_WINDOW / TSRI_SHINGLE_STRIDE;
    uint64_t n_groups = n_shingles * 53 / 40 / (GROUP * SLOTS) + 1, n_buckets = n_groups * GROUP;
    if (n_buckets > UINT32_MAX) n_buckets = UINT32_MAX / GROUP * GROUP;
    int e = tsri_region_init(&t->region, n_buckets * (SLOTS * sizeof(uint32_t) + sizeof(uint64_t)));
    if (e) return e;
    t->slots = (_Atomic uint32_t *)(void *)t->region.data;
    t->filter = (_Atomic uint64_t *)(void *)(t->slots + n_buckets * SLOTS);
    t->n_buckets = (uint32_t)n_buckets;
    /* Entries beyond 8M are found by their windows alone. */
    t->id_bits = ids_max > 1 ? 32 - (uint32_t)__builtin_clz(ids_max - 1) : 1;
    t->id_bits = tsri_min_u32(t->id_bits, 31 - GEN_BITS - TAG_BITS_MIN);
    t->tag_bits = 31 - GEN_BITS - t->id_bits;
    return 0;
}

void tsri_shingles_fini(struct tsri_shingles *t)
{
    tsri_region_fini(&t->region);
    memset(t, 0, sizeof *t);
}

/* Where it stands among every stride-th place from `at` on. */
static uint32_t place_from(uint32_t at, uint32_t stride, const uint32_t *shingle,
                           const uint32_t *tokens, uint32_t n)
{
    for (; at + TSRI_SHINGLE <= n; at += stride)
        if (tokens[at] == shingle[0] &&
            memcmp(tokens + at, shingle, TSRI_SHINGLE * sizeof shingle[0]) == 0)
            return at;
    return UINT32_MAX;
}

uint32_t tsri_shingle_place(const uint32_t *shingle, const uint32_t *tokens, uint32_t n)
{
    uint32_t at = place_from(0, TSRI_SHINGLE_STRIDE, shingle, tokens, n);
    return at != UINT32_MAX ? at
                            : place_from(BETWEEN_FIRST, TSRI_SHINGLE_BETWEEN, shingle, tokens, n);
}

/* ---- registering ---- */

/* Whether a slot's entry is gone (0), in a lower tier (1) or in memory (2). */
static uint32_t worth_of(const struct tsr_cache *c, uint32_t slot)
{
    uint64_t word =
        atomic_load_explicit(&c->entries[slot_id(&c->shingles, slot)].word, memory_order_relaxed);
    if (tsri_word_gen(word) % TSRI_SHINGLE_GENS != slot_gen(&c->shingles, slot)) return 0;
    enum tsri_state state = tsri_word_state(word);
    return state == TSRI_HOST ? 2 : state == TSRI_COLD;
}

static void renew_filter(struct tsri_shingles *t, uint64_t home)
{
    uint64_t group = home / GROUP * GROUP, bits = 0;
    for (uint64_t b = group; b < group + GROUP; b++)
        for (uint32_t i = 0; i < SLOTS; i++) {
            uint32_t slot = load(&t->slots[b * SLOTS + i]), tag = slot_tag(t, slot);
            bool here = slot & AWAY ? neighbour_of(b, tag) == home : b == home;
            if (slot && here) bits |= filter_bits(tag);
        }
    atomic_store_explicit(&t->filter[home], bits, memory_order_relaxed);
}

static void put(struct tsri_shingles *t, uint64_t at, uint64_t home, uint32_t slot)
{
    uint64_t bucket = at / SLOTS;
    uint32_t before = load(&t->slots[at]), tag = slot_tag(t, slot);
    if (bucket != home) slot |= AWAY;
    atomic_store_explicit(&t->slots[at], slot, memory_order_relaxed);
    atomic_fetch_or_explicit(&t->filter[home], filter_bits(tag), memory_order_relaxed);
    if (before)
        renew_filter(t, before & AWAY ? neighbour_of(bucket, slot_tag(t, before)) : bucket);
    else
        t->n_used++;
    t->n_added++;
}

/* The slot to lose out of n: worth least, and of those the one whose turn it is. */
static uint64_t least(const struct tsr_cache *c, const uint64_t *at, uint32_t n, uint32_t *worth)
{
    uint32_t best = 0, from = (uint32_t)c->shingles.n_added % n;
    *worth = UINT32_MAX;
    for (uint32_t i = 0; i < n && *worth; i++) {
        uint32_t k = (from + i) % n, is = worth_of(c, load(&c->shingles.slots[at[k]]));
        if (is >= *worth) continue;
        *worth = is;
        best = k;
    }
    return at[best];
}

static void add_shingle(struct tsr_cache *c, uint32_t x, uint32_t slot, bool cold)
{
    struct tsri_shingles *t = &c->shingles;
    uint32_t tag = tag_of(t, x), n_same = 0, n_all = 0, n_free_best = 0, worth = 0;
    slot |= tag << (t->id_bits + GEN_BITS);
    uint64_t home = home_of(t, x), same[TSRI_SHINGLE_CANDIDATES], all[2 * SLOTS];
    uint64_t at = UINT64_MAX;
    for (uint32_t b = 0; b < 2; b++) {
        uint64_t bucket = b ? neighbour_of(home, tag) : home, free = 0;
        uint32_t n_free = 0;
        for (uint32_t i = 0; i < SLOTS; i++) {
            uint32_t there = load(&t->slots[bucket * SLOTS + i]);
            all[n_all++] = bucket * SLOTS + i;
            if (there == 0) {
                free = bucket * SLOTS + i;
                n_free++;
            } else if (slot_tag(t, there) == tag && !(there & AWAY) == !b) {
                if ((there & ~AWAY) == slot) return; /* registered already, at another place */
                if (n_same < TSRI_SHINGLE_CANDIDATES) same[n_same++] = bucket * SLOTS + i;
            }
        }
        if (n_free > n_free_best) {
            n_free_best = n_free;
            at = free;
        }
    }
    if (n_same == TSRI_SHINGLE_CANDIDATES) {
        /* Text that many entries have nominates four of them; others are found by what is theirs
         * alone. */
        at = least(c, same, n_same, &worth);
        if (worth == 2) {
            tsri_stats_add(c->stats, TSRI_M_shingles_dropped, 1);
            return;
        }
    } else if (at == UINT64_MAX) {
        at = least(c, all, n_all, &worth);
    }
    if (worth) tsri_stats_add(c->stats, TSRI_M_shingles_dropped, 1);
    if (worth && cold) return;
    put(t, at, home, slot);
}

static void add_some(struct tsr_cache *c, uint32_t id, const uint32_t *hashes, uint32_t n,
                     bool cold)
{
    struct tsri_shingles *t = &c->shingles;
    uint64_t word = atomic_load_explicit(&c->entries[id].word, memory_order_relaxed);
    uint32_t slot = (uint32_t)(tsri_word_gen(word) % TSRI_SHINGLE_GENS) << t->id_bits | id;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t home = home_of(t, hashes[i]);
        __builtin_prefetch(&t->filter[home]);
        __builtin_prefetch(&t->slots[home * SLOTS]);
        __builtin_prefetch(&t->slots[neighbour_of(home, tag_of(t, hashes[i])) * SLOTS]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (hashes[i]) add_shingle(c, hashes[i], slot, cold);
}

static bool takes(const struct tsri_shingles *t, const struct tsri_entry *e, uint32_t id)
{
    return t->n_buckets && e->kind != TSR_KIND_BLENDED && !(id >> t->id_bits);
}

void tsri_shingles_add(struct tsr_cache *c, uint32_t id)
{
    const struct tsri_entry *e = &c->entries[id];
    if (!takes(&c->shingles, e, id)) return;
    struct tsri_meta *m = tsri_meta(c, e);
    const uint32_t *tokens = tsri_meta_tokens(m);
    if (tsri_extra_holds_media(tsri_meta_extra(m), m->extra_bytes)) return;
    uint64_t seed = tsri_window_seed(c->spaces[e->space].fingerprint,
                                     tsri_extra_hash(tsri_meta_extra(m), m->extra_bytes));
    uint32_t hashes[BATCH], n_all = tsri_n_shingles(e->n_tokens);
    for (uint32_t first = 0; first < n_all; first += BATCH) {
        uint32_t n = tsri_min_u32(BATCH, n_all - first);
        tsri_shingle_hashes(seed, tokens + (size_t)first * TSRI_SHINGLE_STRIDE, n, hashes);
        add_some(c, id, hashes, n, false);
    }
    uint32_t n = 0;
    for (uint32_t at = BETWEEN_FIRST; at + TSRI_SHINGLE <= e->n_tokens;
         at += TSRI_SHINGLE_BETWEEN) {
        if (at % TSRI_SHINGLE_STRIDE == 0) continue; /* one of the others */
        tsri_shingle_hashes(seed, tokens + at, 1, &hashes[n++]);
        if (n == BATCH) add_some(c, id, hashes, n, false);
        n %= BATCH;
    }
    add_some(c, id, hashes, n, false);
}

void tsri_shingles_add_cold(struct tsr_cache *c, uint32_t id, const uint32_t *hashes, uint32_t n)
{
    if (!takes(&c->shingles, &c->entries[id], id)) return;
    n = tsri_min_u32(n, tsri_n_shingles(c->entries[id].n_tokens));
    for (uint32_t first = 0; first < n; first += BATCH)
        add_some(c, id, hashes + first, tsri_min_u32(BATCH, n - first), true);
}

/* ---- nominating ---- */

static uint32_t take_slots(const struct tsri_shingles *t, uint64_t bucket, uint32_t want,
                           uint32_t at, struct tsri_shingled *out, uint32_t max)
{
    uint32_t n = 0, shift = t->id_bits + GEN_BITS;
    for (uint32_t i = 0; i < SLOTS && n < max; i++) {
        uint32_t slot = load(&t->slots[bucket * SLOTS + i]);
        if (slot >> shift != want) continue;
        out[n++] =
            (struct tsri_shingled){.at = at, .id = slot_id(t, slot), .gen = slot_gen(t, slot)};
    }
    return n;
}

uint32_t tsri_shingles_nominate(const struct tsri_shingles *t, uint64_t seed,
                                const uint32_t *tokens, uint32_t at, uint32_t n,
                                struct tsri_shingled *out)
{
    TSR_ASSERT(n <= TSRI_SHINGLE_BATCH);
    uint64_t power = 1, h = tsri_shingle_hash(tokens + at);
    uint32_t all[TSRI_SHINGLE_BATCH], n_passed = 0, n_out = 0;
    uint16_t passed[TSRI_SHINGLE_BATCH];
    for (uint32_t i = 0; i < TSRI_SHINGLE; i++)
        power *= TSRI_WINDOW_BASE;
    /* All are hashed, and their words asked for, before the first is looked at. */
    for (uint32_t i = 0; i < n; i++) {
        all[i] = tsri_shingle_finish(h, seed);
        __builtin_prefetch(&t->filter[home_of(t, all[i])]);
        if (i + 1 < n)
            h = h * TSRI_WINDOW_BASE + (tokens[at + i + TSRI_SHINGLE] - tokens[at + i] * power);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bits = filter_bits(tag_of(t, all[i]));
        uint64_t word = atomic_load_explicit(&t->filter[home_of(t, all[i])], memory_order_relaxed);
        passed[n_passed] = (uint16_t)i;
        n_passed += (word & bits) == bits;
    }
    for (uint32_t i = 0; i < n_passed; i++) {
        uint64_t home = home_of(t, all[passed[i]]);
        __builtin_prefetch(&t->slots[home * SLOTS]);
        __builtin_prefetch(&t->slots[neighbour_of(home, tag_of(t, all[passed[i]])) * SLOTS]);
    }
    for (uint32_t i = 0; i < n_passed; i++) {
        uint64_t home = home_of(t, all[passed[i]]);
        uint32_t tag = tag_of(t, all[passed[i]]), p = at + passed[i];
        uint32_t k = take_slots(t, home, tag, p, out + n_out, TSRI_SHINGLE_CANDIDATES);
        k += take_slots(t, neighbour_of(home, tag), tag | 1u << t->tag_bits, p, out + n_out + k,
                        TSRI_SHINGLE_CANDIDATES - k);
        n_out += k;
    }
    return n_out;
}
