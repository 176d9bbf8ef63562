/* test_entries.c - the life of entries: what is pinned stands still, what is dropped is not found
 * again and is freed when the last reader lets go, an id that is used again is another entry, and
 * chains go from their leaves. */
#include "cache/core.h"

#include "support/cache_kit.h"
#include "support/test.h"

static uint64_t word(const struct kit *k, uint32_t id)
{
    return atomic_load(&k->cache->entries[id].word);
}

static uint64_t handle(const struct kit *k, uint32_t id)
{
    return tsri_handle(id, tsri_word_gen(word(k, id)));
}

static uint32_t find(struct kit *k, uint64_t seed)
{
    return tsri_index_find(&k->cache->index, k->cache->entries, kit_key(seed));
}

static uint32_t drop(struct kit *k, uint32_t id)
{
    pthread_mutex_lock(&k->cache->lock);
    uint32_t n = tsri_entry_drop(k->cache, id, TSR_EVENT_DROPPED);
    pthread_mutex_unlock(&k->cache->lock);
    return n;
}

static bool evict(struct kit *k, uint32_t id)
{
    pthread_mutex_lock(&k->cache->lock);
    bool went = tsri_entry_evict(k->cache, id);
    pthread_mutex_unlock(&k->cache->lock);
    return went;
}

static bool is_idle(struct kit *k, uint32_t id)
{
    pthread_mutex_lock(&k->cache->lock);
    bool idle = tsri_entry_is_idle(k->cache, id);
    pthread_mutex_unlock(&k->cache->lock);
    return idle;
}

static uint32_t pages_free(const struct kit *k)
{
    return tsri_pool_n_free(&k->cache->pool);
}

/* ---- birth ---- */

TEST(what_is_being_filled_is_neither_found_nor_pinned)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_filling(&k, 1, 20);
    CHECK(id != TSRI_ID_NONE);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_FILLING);
    CHECK_INT(find(&k, 1), TSRI_ID_NONE);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_FREE);
    uint32_t pinned;
    CHECK_INT(tsri_pin_handle(k.cache, handle(&k, id), &pinned), TSRI_FREE);
    CHECK_INT(k.cache->n_host, 0);

    pthread_mutex_lock(&k.cache->lock);
    tsri_entry_publish(k.cache, id, TSRI_ID_NONE);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(find(&k, 1), id);
    CHECK_INT(tsri_entry_live(k.cache, kit_key(1)), id);
    CHECK_INT(k.cache->n_host, 1);
    struct tsr_event event;
    CHECK_INT(tsri_events_take(&k.cache->events, &event, 1), 1);
    CHECK_INT(event.kind, TSR_EVENT_STORED);
    CHECK_INT(event.n_tokens, 20);
    struct tsri_key key = kit_key(1);
    CHECK(memcmp(event.key.bytes, &key, 16) == 0);
    CHECK(memcmp(event.space, k.space->fingerprint, 16) == 0);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(what_is_abandoned_gives_everything_back)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t n_free = pages_free(&k);
    size_t used = k.cache->arena.bytes_used;
    uint32_t id = kit_filling(&k, 1, 200);
    CHECK(pages_free(&k) < n_free && k.cache->arena.bytes_used > used);
    pthread_mutex_lock(&k.cache->lock);
    tsri_entry_abandon(k.cache, id);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(pages_free(&k), n_free);
    CHECK_INT(k.cache->arena.bytes_used, used);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_FREE);
    CHECK_INT(kit_filling(&k, 2, 20), id); /* and the id */
    kit_close(&k);
}

TEST(ids_run_out_and_come_back)
{
    struct kit k;
    kit_open(&k, (const char *[]){"entries_max", "16", NULL});
    uint32_t ids[16];
    for (uint32_t i = 0; i < 16; i++) {
        CHECK(tsri_entry_can_alloc(k.cache));
        ids[i] = kit_filling(&k, i, 1);
        for (uint32_t j = 0; j < i; j++)
            CHECK(ids[i] != ids[j]);
    }
    CHECK(!tsri_entry_can_alloc(k.cache));
    CHECK_INT(kit_filling(&k, 99, 1), TSRI_ID_NONE);
    pthread_mutex_lock(&k.cache->lock);
    tsri_entry_abandon(k.cache, ids[5]);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK(tsri_entry_can_alloc(k.cache));
    CHECK_INT(kit_filling(&k, 99, 1), ids[5]);
    kit_close(&k);
}

/* ---- pins ---- */

TEST(what_is_pinned_is_not_evicted)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 20, TSRI_ID_NONE);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);
    CHECK_INT(tsri_word_pins(word(&k, id)), 2);
    CHECK(!evict(&k, id));
    tsri_unpin(k.cache, id);
    CHECK(!evict(&k, id));
    tsri_unpin(k.cache, id);
    CHECK_INT(tsri_word_pins(word(&k, id)), 0);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_HOST);
    CHECK(evict(&k, id));
    CHECK_INT(find(&k, 1), TSRI_ID_NONE);
    CHECK(!evict(&k, id)); /* gone already */
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(pins_are_counted_up_to_a_limit_and_refused_beyond)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 20, TSRI_ID_NONE), pinned;
    uint64_t h = handle(&k, id);
    atomic_store(&k.cache->entries[id].word,
                 tsri_word_make(tsri_word_gen(word(&k, id)), TSRI_HOST, TSRI_PINS_MAX - 1));
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_FREE);
    CHECK_INT(tsri_pin_handle(k.cache, h, &pinned), TSRI_FREE);
    /* State and generation are as they were: the count has not run over. */
    CHECK_INT(word(&k, id), tsri_word_make(h >> 28, TSRI_HOST, TSRI_PINS_MAX));
    atomic_store(&k.cache->entries[id].word, tsri_word_make(h >> 28, TSRI_HOST, 0));
    kit_close(&k);
}

TEST(the_parts_of_a_word_do_not_touch_each_other)
{
    uint64_t gens[] = {0, 1, ((uint64_t)1 << 36) - 1};
    uint32_t pins[] = {0, 1, TSRI_PINS_MAX};
    for (size_t g = 0; g < 3; g++)
        for (uint32_t s = TSRI_FREE; s <= TSRI_DYING; s++)
            for (size_t p = 0; p < 3; p++) {
                uint64_t w = tsri_word_make(gens[g], (enum tsri_state)s, pins[p]);
                CHECK(tsri_word_gen(w) == gens[g]);
                CHECK_INT(tsri_word_state(w), s);
                CHECK_INT(tsri_word_pins(w), pins[p]);
            }
    uint64_t h = tsri_handle(TSRI_IDS_MAX - 1, ((uint64_t)1 << 36) - 1);
    CHECK_INT(tsri_handle_id(h), TSRI_IDS_MAX - 1);
    CHECK(h >> 28 == ((uint64_t)1 << 36) - 1);
}

TEST(handles_that_nobody_made_are_refused)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 20, TSRI_ID_NONE), pinned;
    CHECK_INT(tsri_pin_handle(k.cache, UINT64_MAX, &pinned), TSRI_FREE);
    CHECK_INT(tsri_pin_handle(k.cache, k.cache->ids_max, &pinned), TSRI_FREE);
    CHECK_INT(tsri_pin_handle(k.cache, handle(&k, id) + ((uint64_t)1 << 28), &pinned), TSRI_FREE);
    CHECK_INT(tsri_pin_handle(k.cache, handle(&k, id), &pinned), TSRI_HOST);
    CHECK_INT(pinned, id);
    tsri_unpin(k.cache, id);
    CHECK(!tsri_entry_is(k.cache, UINT64_MAX));
    CHECK(tsri_entry_is(k.cache, handle(&k, id)));
    kit_close(&k);
}

/* ---- death ---- */

TEST(dropped_while_pinned_it_is_gone_for_others_and_stays_for_its_readers)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t n_free = pages_free(&k), pinned;
    uint32_t id = kit_entry(&k, 1, 200, TSRI_ID_NONE);
    struct tsri_meta *m = tsri_meta(k.cache, &k.cache->entries[id]);
    memset(tsri_meta_tokens(m), 0x5A, 200 * 4);
    memset(tsri_pool_page(&k.cache->pool, tsri_meta_pages(m)[0]), 0x77, 16384);
    uint64_t h = handle(&k, id);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);

    CHECK_INT(drop(&k, id), 1);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_DYING);
    CHECK_INT(find(&k, 1), TSRI_ID_NONE);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_FREE);
    CHECK_INT(tsri_pin_handle(k.cache, h, &pinned), TSRI_FREE);
    CHECK(kit_valid(&k));
    /* Others come and go; the bytes stand. */
    for (uint64_t seed = 2; seed < 300; seed++) {
        uint32_t other = kit_entry(&k, seed, 64, TSRI_ID_NONE);
        CHECK(other != TSRI_ID_NONE && other != id);
        m = tsri_meta(k.cache, &k.cache->entries[other]);
        memset(tsri_meta_tokens(m), 0, 64 * 4);
        memset(tsri_pool_page(&k.cache->pool, tsri_meta_pages(m)[0]), 0, 16384);
    }
    m = tsri_meta(k.cache, &k.cache->entries[id]);
    for (uint32_t t = 0; t < 200; t++)
        CHECK_INT(tsri_meta_tokens(m)[t], 0x5A5A5A5A);
    const uint8_t *page = tsri_pool_page(&k.cache->pool, tsri_meta_pages(m)[0]);
    for (uint32_t i = 0; i < 16384; i++)
        CHECK_INT(page[i], 0x77);

    tsri_unpin(k.cache, id);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_DYING);
    tsri_unpin(k.cache, id);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_FREE);
    CHECK(tsri_cache_clear(k.cache, NULL, -1) > 0);
    CHECK_INT(pages_free(&k), n_free);
    kit_close(&k);
}

TEST(an_id_that_is_used_again_is_another_entry)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 20, TSRI_ID_NONE), pinned;
    uint64_t old[50];
    for (uint32_t i = 0; i < 50; i++) {
        old[i] = handle(&k, id);
        if (i % 2)
            CHECK(evict(&k, id));
        else
            CHECK_INT(drop(&k, id), 1);
        CHECK_INT(kit_entry(&k, 2 + i, 20, TSRI_ID_NONE), id);
        for (uint32_t j = 0; j <= i; j++) {
            CHECK(!tsri_entry_is(k.cache, old[j]));
            CHECK_INT(tsri_pin_handle(k.cache, old[j], &pinned), TSRI_FREE);
        }
        CHECK_INT(tsri_pin_handle(k.cache, handle(&k, id), &pinned), TSRI_HOST);
        tsri_unpin(k.cache, id);
    }
    kit_close(&k);
}

/* One more, and the first handle of the place would be alive again. */
TEST(a_place_whose_generations_are_used_up_is_not_used_again)
{
    struct kit k;
    uint32_t pinned;
    kit_open(&k, (const char *const[]){"entries_max", "16", NULL});
    uint32_t id = kit_entry(&k, 1, 16, TSRI_ID_NONE);
    uint64_t first = handle(&k, id);
    k.cache->entries[id].word |= TSRI_GEN_MAX << TSRI_GEN_SHIFT;
    uint64_t last = handle(&k, id);
    CHECK_INT(tsri_pin_handle(k.cache, last, &pinned), TSRI_HOST);
    tsri_unpin(k.cache, pinned);
    CHECK_INT(kit_evict_all(&k), 1);
    CHECK_INT(tsri_pin_handle(k.cache, first, &pinned), TSRI_FREE);
    CHECK_INT(tsri_pin_handle(k.cache, last, &pinned), TSRI_FREE);
    for (uint32_t i = 1; i < 16; i++) {
        uint32_t next = kit_entry(&k, 1 + i, 16, TSRI_ID_NONE);
        CHECK(next != id && next != TSRI_ID_NONE);
    }
    CHECK_INT(tsri_pin_handle(k.cache, first, &pinned), TSRI_FREE);
    CHECK(kit_valid(&k));
    CHECK(kit_end(&k));
}

TEST(pins_for_good_die_with_the_entry)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 20, TSRI_ID_NONE);
    uint64_t h = handle(&k, id);
    CHECK_INT(tsri_cache_pin_one(k.cache, h, NULL), 1);
    CHECK_INT(tsri_cache_pin_one(k.cache, h, NULL), 1);
    CHECK_INT(k.cache->n_pinned, 1);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST); /* a reader */
    CHECK_INT(drop(&k, id), 1);
    CHECK_INT(k.cache->n_pinned, 0);
    CHECK_INT(tsri_word_pins(word(&k, id)), 1);
    CHECK_INT(tsri_cache_unpin_one(k.cache, h, NULL), 0); /* nothing left to let go */
    tsri_unpin(k.cache, id);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_FREE);
    CHECK_INT(word(&k, id) & TSRI_PINS_MAX, 0);
    kit_close(&k);
}

/* ---- chains: a random forest against plain arrays ---- */

#define NODES 120u

struct forest {
    struct kit k;
    uint32_t id[NODES], parent[NODES]; /* by number; TSRI_ID_NONE: not there, or a root */
    uint32_t pins[NODES];
};

static bool is_behind(const struct forest *f, uint32_t n, uint32_t root)
{
    for (; n != TSRI_ID_NONE; n = f->parent[n])
        if (n == root) return true;
    return false;
}

static bool naive_idle(const struct forest *f, uint32_t root)
{
    for (uint32_t n = 0; n < NODES; n++)
        if (f->id[n] != TSRI_ID_NONE && f->pins[n] && is_behind(f, n, root)) return false;
    return true;
}

static void forest_grow(struct forest *f, uint32_t n, uint64_t *seed)
{
    uint32_t parent = (uint32_t)(test_rand(seed) % NODES);
    if (f->id[parent] == TSRI_ID_NONE) parent = TSRI_ID_NONE;
    f->parent[n] = parent;
    f->id[n] = kit_entry(&f->k, n, 1, parent == TSRI_ID_NONE ? TSRI_ID_NONE : f->id[parent]);
    CHECK(f->id[n] != TSRI_ID_NONE);
}

static void forest_drop(struct forest *f, uint32_t root)
{
    uint32_t n_gone = 0;
    bool gone[NODES] = {false};
    for (uint32_t n = 0; n < NODES; n++)
        if (f->id[n] != TSRI_ID_NONE && is_behind(f, n, root)) {
            gone[n] = true;
            n_gone++;
        }
    CHECK_INT(drop(&f->k, f->id[root]), n_gone);
    for (uint32_t n = 0; n < NODES; n++) {
        if (!gone[n]) continue;
        for (; f->pins[n]; f->pins[n]--)
            tsri_unpin(f->k.cache, f->id[n]);
        CHECK_INT(tsri_word_state(word(&f->k, f->id[n])), TSRI_FREE);
        f->id[n] = TSRI_ID_NONE;
    }
}

TEST(dropping_a_block_drops_exactly_what_is_behind_it)
{
    static struct forest f;
    kit_open(&f.k, (const char *[]){"host_size", "4M", NULL});
    uint64_t seed = 31;
    memset(f.id, 0xFF, sizeof f.id);
    memset(f.pins, 0, sizeof f.pins);
    for (uint32_t step = 0; step < 6000; step++) {
        uint32_t n = (uint32_t)(test_rand(&seed) % NODES);
        if (f.id[n] == TSRI_ID_NONE) {
            forest_grow(&f, n, &seed);
        } else if (test_rand(&seed) % 12 == 0) {
            forest_drop(&f, n);
        } else if (test_rand(&seed) % 4 == 0) {
            CHECK_INT(tsri_pin(f.k.cache, f.id[n]), TSRI_HOST);
            f.pins[n]++;
        } else if (f.pins[n]) {
            tsri_unpin(f.k.cache, f.id[n]);
            f.pins[n]--;
        }
        uint32_t ask = (uint32_t)(test_rand(&seed) % NODES);
        CHECK_INT(find(&f.k, ask), f.id[ask]);
        if (f.id[ask] != TSRI_ID_NONE) CHECK(is_idle(&f.k, f.id[ask]) == naive_idle(&f, ask));
        if (step % 200 == 0) CHECK(kit_valid(&f.k));
    }
    for (uint32_t n = 0; n < NODES; n++)
        for (; f.pins[n]; f.pins[n]--)
            tsri_unpin(f.k.cache, f.id[n]);
    kit_close(&f.k);
}

TEST(a_block_goes_before_the_one_it_stands_behind)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE), b = kit_entry(&k, 2, 1, a);
    kit_entry(&k, 3, 1, b);
    kit_entry(&k, 4, 1, b);
    struct tsr_event events[8];
    CHECK_INT(tsri_events_take(&k.cache->events, events, 8), 4);
    CHECK_INT(drop(&k, a), 4);
    CHECK_INT(tsri_events_take(&k.cache->events, events, 8), 4);
    struct tsri_key key = kit_key(1);
    for (uint32_t i = 0; i < 4; i++)
        CHECK_INT(events[i].kind, TSR_EVENT_DROPPED);
    CHECK(memcmp(events[3].key.bytes, &key, 16) == 0);
    key = kit_key(2);
    CHECK(memcmp(events[2].key.bytes, &key, 16) == 0);
    kit_close(&k);
}

TEST(only_a_block_without_a_parent_is_adopted)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE), b = kit_entry(&k, 2, 1, TSRI_ID_NONE);
    uint32_t child = kit_entry(&k, 3, 1, TSRI_ID_NONE);
    pthread_mutex_lock(&k.cache->lock);
    tsri_entry_adopt(k.cache, child, a);
    tsri_entry_adopt(k.cache, child, b);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(k.cache->entries[child].parent, a);
    CHECK_INT(k.cache->entries[b].first_child, TSRI_ID_NONE);
    CHECK_INT(drop(&k, b), 1);
    CHECK_INT(drop(&k, a), 2);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

/* ---- COLD ---- */

TEST(what_a_lower_tier_has_stays_known_when_it_is_evicted)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t n_free = pages_free(&k), id = kit_entry(&k, 1, 20, TSRI_ID_NONE), pinned;
    uint32_t child = kit_entry(&k, 2, 20, id);
    uint64_t h = handle(&k, id);
    atomic_fetch_or(&k.cache->entries[id].tiers, 2); /* as if tier 1 had it */
    CHECK(evict(&k, id));                            /* although a block stands behind it */
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_COLD);
    CHECK_INT(atomic_load(&k.cache->entries[id].tiers), 2);
    CHECK_INT(k.cache->entries[id].meta, 0);
    CHECK_INT(pages_free(&k), n_free - 1);
    CHECK_INT(k.cache->n_cold, 1);
    CHECK_INT(k.cache->n_host, 1);
    CHECK_INT(find(&k, 1), id);
    CHECK_INT(k.cache->entries[child].parent, id);
    CHECK_INT(tsri_pin_handle(k.cache, h, &pinned), TSRI_COLD); /* still the same entry */
    tsri_unpin(k.cache, id);
    CHECK(kit_valid(&k));

    uint32_t meta;
    pthread_mutex_lock(&k.cache->lock);
    CHECK_INT(tsri_room_take(k.cache, &k.space->shape, 20, 0, &meta), 0);
    tsri_entry_warm(k.cache, id, meta);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(tsri_pin_handle(k.cache, h, &pinned), TSRI_HOST);
    tsri_unpin(k.cache, id);
    CHECK_INT(k.cache->n_cold, 0);
    CHECK_INT(k.cache->n_host, 2);
    CHECK_INT(atomic_load(&k.cache->entries[id].tiers), 3);
    CHECK(kit_valid(&k));
    atomic_fetch_and(&k.cache->entries[id].tiers, 1);
    CHECK_INT(drop(&k, id), 2);
    CHECK_INT(pages_free(&k), n_free);
    kit_close(&k);
}

TEST(an_entry_known_from_a_tier_is_cold_from_birth)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_cache *c = k.cache;
    struct tsri_key key = kit_key(7);
    pthread_mutex_lock(&c->lock);
    uint32_t id = tsri_entry_alloc(c);
    struct tsri_entry *e = &c->entries[id];
    atomic_store(&e->key_lo, key.lo);
    atomic_store(&e->key_hi, key.hi);
    e->n_tokens = 5;
    e->space = k.space->id;
    tsri_entry_publish_cold(c, id);
    pthread_mutex_unlock(&c->lock);
    CHECK_INT(find(&k, 7), id);
    CHECK_INT(tsri_pin(c, id), TSRI_COLD);
    CHECK_INT(c->n_cold, 1);
    CHECK(!evict(&k, id)); /* nothing of it is in host memory */
    CHECK(kit_valid(&k));
    CHECK_INT(drop(&k, id), 1);
    CHECK_INT(c->n_cold, 0);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_DYING);
    tsri_unpin(c, id);
    CHECK_INT(tsri_word_state(word(&k, id)), TSRI_FREE);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(the_walker_sees_what_does_not_agree)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 20, TSRI_ID_NONE), b = kit_entry(&k, 2, 20, a);
    CHECK(kit_valid(&k));
    k.cache->n_host++;
    CHECK(!kit_valid(&k));
    k.cache->n_host--;
    k.cache->entries[b].parent = b;
    CHECK(!kit_valid(&k));
    k.cache->entries[b].parent = a;
    tsri_index_remove(&k.cache->index, kit_key(2), b);
    CHECK(!kit_valid(&k));
    tsri_index_insert(&k.cache->index, kit_key(2), b);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

/* ---- readers beside a writer ---- */

#define SEEDS 48u
#define READERS 2u

struct reader {
    struct kit *k;
    atomic_bool *stop;
    _Atomic uint64_t n_read;
    uint64_t n_wrong;
};

/* As a lookup and a load do: nominate, pin, compare, read, let go. */
static void *read_entries(void *arg)
{
    struct reader *r = arg;
    struct tsr_cache *c = r->k->cache;
    uint64_t seed = (uint64_t)(uintptr_t)r;
    while (!atomic_load(r->stop)) {
        uint64_t s = test_rand(&seed) % SEEDS;
        uint32_t id = find(r->k, s);
        if (id == TSRI_ID_NONE || tsri_pin(c, id) == TSRI_FREE) continue;
        if (tsri_entry_has_key(&c->entries[id], kit_key(s))) {
            struct tsri_meta *m = tsri_meta(c, &c->entries[id]);
            bool right = m->n_tokens == 70;
            for (uint32_t t = 0; t < 70 && right; t++)
                right = tsri_meta_tokens(m)[t] == (uint32_t)s;
            for (uint32_t p = 0; p < m->n_pages && right; p++)
                right = *tsri_pool_page(&c->pool, tsri_meta_pages(m)[p]) == (uint8_t)s;
            r->n_wrong += !right;
            r->n_read++;
        }
        tsri_unpin(c, id);
    }
    return NULL;
}

static void write_entry(struct kit *k, uint64_t s)
{
    uint32_t id = kit_filling(k, s, 70);
    if (id == TSRI_ID_NONE) return;
    struct tsr_cache *c = k->cache;
    struct tsri_meta *m = tsri_meta(c, &c->entries[id]);
    for (uint32_t t = 0; t < 70; t++)
        tsri_meta_tokens(m)[t] = (uint32_t)s;
    for (uint32_t p = 0; p < m->n_pages; p++)
        *tsri_pool_page(&c->pool, tsri_meta_pages(m)[p]) = (uint8_t)s;
    pthread_mutex_lock(&c->lock);
    tsri_entry_publish(c, id, TSRI_ID_NONE);
    pthread_mutex_unlock(&c->lock);
}

TEST(what_is_pinned_stands_still_while_others_come_and_go)
{
    struct kit k;
    /* Room for 32 of 48: memory and ids are used again all the time. */
    kit_open(&k, (const char *[]){"entries_max", "40", NULL});
    atomic_bool stop = false;
    struct reader readers[READERS];
    pthread_t threads[READERS];
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.k = &k, .stop = &stop};
        CHECK_INT(pthread_create(&threads[i], NULL, read_entries, &readers[i]), 0);
    }
    uint64_t seed = 17;
    for (uint32_t step = 0;
         step < 40000 || (step < 4000000 && atomic_load(&readers[0].n_read) < 2000); step++) {
        uint64_t s = test_rand(&seed) % SEEDS;
        uint32_t id = find(&k, s);
        if (id == TSRI_ID_NONE)
            write_entry(&k, s);
        else if (step % 2)
            drop(&k, id);
        else
            evict(&k, id);
    }
    atomic_store(&stop, true);
    uint64_t n_read = 0;
    for (uint32_t i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(readers[i].n_wrong, 0);
        n_read += readers[i].n_read;
    }
    CHECK(n_read > 0);
    CHECK(kit_valid(&k));
    CHECK(tsri_cache_clear(k.cache, NULL, -1) >= 0);
    CHECK_INT(pages_free(&k), k.cache->pool.n_pages); /* nobody forgot a pin */
    kit_close(&k);
}

int main(void)
{
    RUN(what_is_being_filled_is_neither_found_nor_pinned);
    RUN(what_is_abandoned_gives_everything_back);
    RUN(ids_run_out_and_come_back);
    RUN(what_is_pinned_is_not_evicted);
    RUN(pins_are_counted_up_to_a_limit_and_refused_beyond);
    RUN(the_parts_of_a_word_do_not_touch_each_other);
    RUN(handles_that_nobody_made_are_refused);
    RUN(dropped_while_pinned_it_is_gone_for_others_and_stays_for_its_readers);
    RUN(an_id_that_is_used_again_is_another_entry);
    RUN(a_place_whose_generations_are_used_up_is_not_used_again);
    RUN(pins_for_good_die_with_the_entry);
    RUN(dropping_a_block_drops_exactly_what_is_behind_it);
    RUN(a_block_goes_before_the_one_it_stands_behind);
    RUN(only_a_block_without_a_parent_is_adopted);
    RUN(what_a_lower_tier_has_stays_known_when_it_is_evicted);
    RUN(an_entry_known_from_a_tier_is_cold_from_birth);
    RUN(the_walker_sees_what_does_not_agree);
    RUN(what_is_pinned_stands_still_while_others_come_and_go);
    return test_end();
}
