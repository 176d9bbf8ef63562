/* windows.c - the table of registered windows: which entries hold these 32 tokens, and where. An
 * entry registers its windows at every multiple of 32 tokens, so whatever 63 tokens a prompt has in
 * common with it, one whole registered window is among them; a prompt asks for the windows at all
 * of its offsets. A window only nominates: who uses it pins the entry and compares the tokens.
 *
 * The hash is chunk/window.c's, rolled over the prompt with one multiplication and two sums a
 * token.
 *
 * A window may stand in either of two buckets, its home and a neighbour of the same group of 16,
 * and takes the emptier. A bucket is a cache line of eight slots (id, place in the entry, what fits
 * of the hash) and, in front of the table, a word of the filter with two bits for each window at
 * home there. So asking for a window that no entry has touches one word; the filter is 1/9 of the
 * table and stays in the cache of a core when the rest cannot. Two thirds of the slots are as many
 * windows as were asked for, 13.5 bytes each: fuller groups would overflow before the table is
 * full.
 *
 * Nothing is unregistered. When both buckets are full, a slot whose entry is gone is reused, then
 * one whose entry is in a lower tier only (it registers again when it comes back), then the oldest;
 * the filter's word is then rebuilt from the slots.
 *
 * Threads: one writer, under cache->lock; readers take no lock and see a slot or do not. */
#include "cache/core.h"

#define SLOTS 8u  /* of a bucket */
#define GROUP 16u /* buckets */
#define BATCH 16u /* windows of an entry whose places are fetched at once */

/* A slot, from the low bits: mark (tag and neighbour and as many more bits of the hash as there is
 * room for), number of the window, id, generation, epoch, whether it is away from home, used.
 * Generation and epoch are the low bits of theirs: enough to recognise most of what is gone, and to
 * tell old from new over four times the table's content. */
#define TAG_BITS 12u
#define MARK_BITS_MIN 16u
#define MARK_BITS_MAX 32u
#define NUMBER_BITS_MAX 17u
#define GEN_SHIFT 56u
#define EPOCH_SHIFT 59u
#define AWAY ((uint64_t)1 << 62)
#define USED ((uint64_t)1 << 63)
#define GENS TSRI_WINDOW_GENS
#define EPOCHS 8u

static inline uint64_t home_of(const struct tsri_windows *w, uint64_t x)
{
    return (x >> 32) * w->n_buckets >> 32;
}
static inline uint64_t neighbour_of(uint64_t bucket, uint64_t mark)
{
    uint64_t other = mark >> TAG_BITS & (GROUP - 1);
    return bucket ^ (other | (uint64_t)(other == 0));
}
static inline uint64_t filter_bits(uint64_t mark)
{
    return (uint64_t)1 << (mark & 63) | (uint64_t)1 << (mark >> 6 & 63);
}

static inline uint64_t load(const _Atomic uint64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}
static inline void store(_Atomic uint64_t *at, uint64_t value)
{
    atomic_store_explicit(at, value, memory_order_relaxed);
}

/* ---- memory ---- */

int tsri_windows_init(struct tsri_windows *w, uint32_t windows_max, uint32_t ids_max)
{
    memset(w, 0, sizeof *w);
    if (windows_max == 0) return 0;
    uint64_t n_slots = (uint64_t)windows_max * 3 / 2;
    uint64_t n_groups = (n_slots + GROUP * SLOTS - 1) / (GROUP * SLOTS);
    uint64_t n_buckets = n_groups * GROUP;
    /* Slots first: they are whole cache lines. */
    int e = tsri_region_init(&w->region, n_buckets * (SLOTS + 1) * sizeof(uint64_t));
    if (e) return e;
    w->slots = (_Atomic uint64_t *)(void *)w->region.data;
    w->filter = w->slots + n_buckets * SLOTS;
    w->n_buckets = (uint32_t)n_buckets;
    w->epoch_windows = windows_max / (EPOCHS / 4) + 1;
    w->id_bits = ids_max > 1 ? 32 - (uint32_t)__builtin_clz(ids_max - 1) : 1;
    w->number_bits = tsri_min_u32(NUMBER_BITS_MAX, GEN_SHIFT - MARK_BITS_MIN - w->id_bits);
    w->mark_bits = tsri_min_u32(MARK_BITS_MAX, GEN_SHIFT - w->id_bits - w->number_bits);
    return 0;
}

void tsri_windows_fini(struct tsri_windows *w)
{
    tsri_region_fini(&w->region);
    memset(w, 0, sizeof *w);
}

static inline uint64_t mark_mask(const struct tsri_windows *w)
{
    return ((uint64_t)1 << w->mark_bits) - 1;
}
static inline uint32_t slot_number(const struct tsri_windows *w, uint64_t slot)
{
    return (uint32_t)(slot >> w->mark_bits) & ((1u << w->number_bits) - 1);
}
static inline uint32_t slot_id(const struct tsri_windows *w, uint64_t slot)
{
    return (uint32_t)(slot >> (w->mark_bits + w->number_bits)) & (uint32_t)((1u << w->id_bits) - 1);
}
static inline uint32_t slot_gen(uint64_t slot)
{
    return (uint32_t)(slot >> GEN_SHIFT) % GENS;
}

/* ---- registering ---- */

/* What a slot is worth; the least goes first. */
enum worth { GONE, COLD, PREFIX, SEGMENT };

struct adding {
    struct tsr_cache *c;
    struct tsri_windows *w;
    uint32_t id;
    uint64_t gen, epoch;
    enum worth worth;
};

static enum worth worth_of(const struct tsr_cache *c, uint64_t slot)
{
    const struct tsri_entry *e = &c->entries[slot_id(&c->windows, slot)];
    uint64_t word = load(&e->word);
    if (tsri_word_gen(word) % GENS != slot_gen(slot)) return GONE;
    enum tsri_state state = tsri_word_state(word);
    if (state == TSRI_COLD) return COLD;
    if (state != TSRI_HOST) return GONE;
    return e->kind == TSR_KIND_PREFIX ? PREFIX : SEGMENT;
}

/* Makes a word of the filter from the slots at home there. */
static void renew_filter(struct tsri_windows *w, uint64_t home)
{
    uint64_t group = home / GROUP * GROUP, bits = 0;
    for (uint64_t b = group; b < group + GROUP; b++)
        for (uint32_t i = 0; i < SLOTS; i++) {
            uint64_t slot = load(&w->slots[b * SLOTS + i]);
            bool here = slot & AWAY ? neighbour_of(b, slot) == home : b == home;
            if (slot && here) bits |= filter_bits(slot);
        }
    store(&w->filter[home], bits);
}

static void put(struct tsri_windows *w, uint64_t at, uint64_t home, uint64_t slot)
{
    uint64_t before = load(&w->slots[at]), bucket = at / SLOTS;
    if (bucket != home) slot |= AWAY;
    store(&w->slots[at], slot);
    store(&w->filter[home], load(&w->filter[home]) | filter_bits(slot));
    if (before) renew_filter(w, before & AWAY ? neighbour_of(bucket, before) : bucket);
}

/* The slot to lose out of n: worth least, then oldest. */
static uint32_t least(const struct adding *a, const uint64_t *at, uint32_t n, enum worth *worth)
{
    uint32_t best = 0;
    uint64_t best_score = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        __builtin_prefetch(&a->c->entries[slot_id(a->w, load(&a->w->slots[at[i]]))]);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t slot = load(&a->w->slots[at[i]]);
        uint64_t age = (a->epoch - (slot >> EPOCH_SHIFT)) % EPOCHS;
        enum worth is = worth_of(a->c, slot);
        uint64_t score = (uint64_t)is * EPOCHS + (EPOCHS - 1 - age);
        if (score >= best_score) continue;
        best_score = score;
        best = i;
        *worth = is;
        if (is == GONE) break;
    }
    return best;
}

/* Where the window may stand and what stands there. */
struct places {
    uint64_t same[TSRI_WINDOW_CANDIDATES]; /* slots of the same hash */
    uint32_t n_same, n_own;                /* and how many of them are of this entry */
    uint64_t all[2 * SLOTS];
    uint32_t n_all;
    uint64_t free; /* a free slot in the emptier bucket, or UINT64_MAX */
    bool known;    /* it is registered already */
};

static void look(const struct adding *a, uint64_t home, uint64_t slot, struct places *p)
{
    uint64_t identity = ((uint64_t)1 << EPOCH_SHIFT) - 1, mask = mark_mask(a->w) | AWAY;
    uint32_t n_free_best = 0;
    *p = (struct places){.free = UINT64_MAX};
    for (uint32_t b = 0; b < 2; b++) {
        uint64_t bucket = b ? neighbour_of(home, slot) : home, free = 0;
        uint64_t want = b ? slot | AWAY : slot;
        uint32_t n_free = 0;
        for (uint32_t i = 0; i < SLOTS; i++) {
            uint64_t at = bucket * SLOTS + i, there = load(&a->w->slots[at]);
            p->all[p->n_all++] = at;
            if (there == 0) {
                free = at;
                n_free++;
                continue;
            }
            if ((there & mask) != (want & mask)) continue;
            if ((there & identity) == (want & identity)) {
                p->known = true;
                store(&a->w->slots[at], want); /* as young as it can be */
            }
            p->n_own += slot_id(a->w, there) == a->id;
            if (p->n_same < TSRI_WINDOW_CANDIDATES) p->same[p->n_same++] = at;
        }
        if (n_free > n_free_best) {
            n_free_best = n_free;
            p->free = free;
        }
    }
}

static void add_window(const struct adding *a, uint64_t x, uint32_t number)
{
    struct tsri_windows *w = a->w;
    uint64_t home = home_of(w, x);
    uint64_t slot = (x & mark_mask(w)) | (uint64_t)number << w->mark_bits |
                    (uint64_t)a->id << (w->mark_bits + w->number_bits) | a->gen << GEN_SHIFT |
                    a->epoch << EPOCH_SHIFT | USED;
    struct places p;
    look(a, home, slot, &p);
    if (p.known) return;
    enum worth worth = GONE;
    uint64_t at = p.free;
    if (p.n_same == TSRI_WINDOW_CANDIDATES) {
        /* A text that an entry repeats is found by its first places; and segments, which may be
         * used anywhere, do not give way to blocks. */
        if (p.n_own == TSRI_WINDOW_CANDIDATES) return;
        at = p.same[least(a, p.same, p.n_same, &worth)];
        if (worth > a->worth) {
            tsri_stats_add(a->c->stats, TSRI_M_windows_dropped, 1);
            return;
        }
    } else if (at == UINT64_MAX) {
        at = p.all[least(a, p.all, p.n_all, &worth)];
    } else {
        w->n_used++;
    }
    if (worth > GONE) tsri_stats_add(a->c->stats, TSRI_M_windows_dropped, 1);
    put(w, at, home, slot);
    w->n_added++;
}

/* Windows first, first + 1, ... of the entry, whose hashes are given. */
static void add_some(struct adding *a, const uint64_t *hashes, uint32_t n, uint32_t first)
{
    struct tsri_windows *w = a->w;
    a->epoch = w->n_added / w->epoch_windows % EPOCHS;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t home = home_of(w, hashes[i]);
        __builtin_prefetch(&w->filter[home]);
        __builtin_prefetch(&w->slots[home * SLOTS]);
        __builtin_prefetch(&w->slots[neighbour_of(home, hashes[i]) * SLOTS]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (hashes[i]) add_window(a, hashes[i], first + i);
}

static struct adding adding_of(struct tsr_cache *c, uint32_t id, enum worth worth)
{
    uint64_t gen = tsri_word_gen(load(&c->entries[id].word)) % GENS;
    return (struct adding){.c = c, .w = &c->windows, .id = id, .gen = gen, .worth = worth};
}

void tsri_windows_add(struct tsr_cache *c, uint32_t id)
{
    struct tsri_windows *w = &c->windows;
    struct tsri_entry *e = &c->entries[id];
    if (w->n_buckets == 0 || e->kind == TSR_KIND_BLENDED || e->n_tokens < TSRI_WINDOW) return;
    struct tsri_meta *m = tsri_meta(c, e);
    const uint32_t *tokens = tsri_meta_tokens(m);
    if (tsri_extra_holds_media(tsri_meta_extra(m), m->extra_bytes)) return;
    uint64_t seed = tsri_window_seed(c->spaces[e->space].fingerprint,
                                     tsri_extra_hash(tsri_meta_extra(m), m->extra_bytes));
    struct adding a = adding_of(c, id, e->kind == TSR_KIND_PREFIX ? PREFIX : SEGMENT);
    uint32_t n = tsri_min_u32(e->n_tokens / TSRI_WINDOW, 1u << w->number_bits);
    uint64_t hashes[BATCH];
    for (uint32_t first = 0; first < n; first += BATCH) {
        uint32_t some = tsri_min_u32(BATCH, n - first);
        tsri_window_hashes(seed, tokens + (size_t)first * TSRI_WINDOW, some, hashes);
        add_some(&a, hashes, some, first);
    }
}

void tsri_windows_add_cold(struct tsr_cache *c, uint32_t id, const uint64_t *hashes, uint32_t n)
{
    if (c->windows.n_buckets == 0) return;
    struct adding a = adding_of(c, id, COLD);
    n = tsri_min_u32(
        n, tsri_min_u32(c->entries[id].n_tokens / TSRI_WINDOW, 1u << c->windows.number_bits));
    for (uint32_t first = 0; first < n; first += BATCH)
        add_some(&a, hashes + first, tsri_min_u32(BATCH, n - first), first);
}

/* ---- nominating ---- */

void tsri_window_scan_init(struct tsri_window_scan *s, const struct tsri_windows *w, uint64_t seed,
                           const uint32_t *tokens, uint32_t end)
{
    *s = (struct tsri_window_scan){
        .windows = w, .seed = seed, .tokens = tokens, .end = end, .at = UINT32_MAX, .power = 1};
    for (uint32_t i = 0; i < TSRI_WINDOW; i++)
        s->power *= TSRI_WINDOW_BASE;
}

/* The windows from s->at on that the filter lets pass. All are hashed, and their words asked for,
 * before the first is looked at: with cold caches that takes half the time (bench_match). The token
 * behind the last window is not there when it is the prompt's last. */
static uint32_t pass_filter(struct tsri_window_scan *s, uint32_t n)
{
    const struct tsri_windows *w = s->windows;
    const uint32_t *tokens = s->tokens + s->at;
    uint32_t n_passed = 0, n_steps = s->at + n + TSRI_WINDOW <= s->end ? n : n - 1;
    uint64_t h = s->hash, seed = s->seed, power = s->power, all[TSRI_WINDOW_BATCH];
    for (uint32_t i = 0; i < n; i++) {
        all[i] = tsri_window_finish(h, seed);
        __builtin_prefetch(&w->filter[home_of(w, all[i])]);
        if (i < n_steps) h = h * TSRI_WINDOW_BASE + (tokens[i + TSRI_WINDOW] - tokens[i] * power);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t x = all[i], bits = filter_bits(x);
        s->hashes[n_passed] = x;
        s->passed[n_passed] = (uint16_t)i;
        n_passed += (load(&w->filter[home_of(w, x)]) & bits) == bits;
    }
    s->hash = h;
    s->at += n;
    return n_passed;
}

static uint32_t take_slots(const struct tsri_windows *w, uint64_t bucket, uint64_t want,
                           uint32_t at, struct tsri_nominee *out, uint32_t max)
{
    uint64_t mask = mark_mask(w) | AWAY | USED;
    uint32_t n = 0;
    for (uint32_t i = 0; i < SLOTS && n < max; i++) {
        uint64_t slot = load(&w->slots[bucket * SLOTS + i]);
        if ((slot & mask) != want) continue;
        out[n++] = (struct tsri_nominee){.at = at,
                                         .id = slot_id(w, slot),
                                         .entry_offset = slot_number(w, slot) * TSRI_WINDOW,
                                         .gen = slot_gen(slot)};
    }
    return n;
}

uint32_t tsri_window_scan_some(struct tsri_window_scan *s, uint32_t at, uint32_t *next,
                               struct tsri_nominee *out)
{
    const struct tsri_windows *w = s->windows;
    *next = s->end;
    if (w->n_buckets == 0 || s->end < TSRI_WINDOW || at > s->end - TSRI_WINDOW) return 0;
    uint32_t n = tsri_min_u32(TSRI_WINDOW_BATCH, s->end - TSRI_WINDOW + 1 - at);
    uint64_t mask = mark_mask(w);
    if (at != s->at) s->hash = tsri_window_hash(s->tokens + at);
    s->at = at;
    uint32_t n_passed = pass_filter(s, n), n_out = 0;
    for (uint32_t i = 0; i < n_passed; i++) {
        uint64_t home = home_of(w, s->hashes[i]);
        __builtin_prefetch(&w->slots[home * SLOTS]);
        __builtin_prefetch(&w->slots[neighbour_of(home, s->hashes[i]) * SLOTS]);
    }
    for (uint32_t i = 0; i < n_passed; i++) {
        uint64_t home = home_of(w, s->hashes[i]), want = (s->hashes[i] & mask) | USED;
        uint32_t p = at + s->passed[i],
                 k = take_slots(w, home, want, p, out + n_out, TSRI_WINDOW_CANDIDATES);
        k += take_slots(w, neighbour_of(home, want), want | AWAY, p, out + n_out + k,
                        TSRI_WINDOW_CANDIDATES - k);
        n_out += k;
    }
    *next = at + n;
    return n_out;
}
