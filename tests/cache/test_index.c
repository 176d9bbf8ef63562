/* test_index.c - the index says what a plain array would say, also when its lines overflow, and
 * never loses a key under the eyes of readers that take no lock. Keys are forced into few lines, so
 * that the counts of passed keys matter. */
#include "cache/index.h"

#include "support/test.h"

#include <pthread.h>

#define IDS 200u
/* Keys a test may insert; each id takes one of several, as ids are used again. */
#define KEYS 600u

struct model {
    struct tsri_index index;
    struct tsri_entry *entries;
    struct tsri_key keys[KEYS];
    uint32_t id_of[KEYS]; /* TSRI_ID_NONE: not in the index */
    uint32_t key_of[IDS]; /* KEYS: free */
};

/* The lower half of a key whose home is that line of n. */
static uint64_t key_at(uint64_t home, uint64_t n)
{
    return ((home << 32) + n - 1) / n << 32;
}

/* n_homes lines as homes, and tags that are the same for many. */
static void open_model(struct model *m, uint32_t n_homes, uint32_t n_tags)
{
    memset(m, 0, sizeof *m);
    CHECK_INT(tsri_index_init(&m->index, IDS), 0);
    m->entries = aligned_alloc(64, IDS * sizeof m->entries[0]);
    CHECK(m->entries);
    memset(m->entries, 0, IDS * sizeof m->entries[0]);
    for (uint32_t k = 0; k < KEYS; k++) {
        /* The last lines of the table too, so that keys go on at its beginning. */
        uint32_t n = m->index.n_lines, home = (n - 1 - n_homes / 2 + k % n_homes) % n;
        m->keys[k] = (struct tsri_key){key_at(home, n) | k, (uint64_t)(k % n_tags) << 32 | k};
        CHECK_INT(tsri_index_home(&m->index, m->keys[k]), home);
        m->id_of[k] = TSRI_ID_NONE;
    }
    for (uint32_t i = 0; i < IDS; i++)
        m->key_of[i] = KEYS;
}

static void close_model(struct model *m)
{
    tsri_index_fini(&m->index);
    free(m->entries);
}

static void put(struct model *m, uint32_t k, uint32_t id)
{
    atomic_store_explicit(&m->entries[id].key_lo, m->keys[k].lo, memory_order_relaxed);
    atomic_store_explicit(&m->entries[id].key_hi, m->keys[k].hi, memory_order_relaxed);
    tsri_index_insert(&m->index, m->keys[k], id);
    m->id_of[k] = id;
    m->key_of[id] = k;
}

/* The entry keeps its key, as a freed one does until it is used again. */
static void take(struct model *m, uint32_t k)
{
    tsri_index_remove(&m->index, m->keys[k], m->id_of[k]);
    m->key_of[m->id_of[k]] = KEYS;
    m->id_of[k] = TSRI_ID_NONE;
}

/* As lookups in batches do. */
static uint32_t find_nominated(const struct model *m, struct tsri_key key)
{
    uint32_t id = tsri_index_nominate(&m->index, m->entries, key);
    if (id == TSRI_ID_NONE || tsri_entry_has_key(&m->entries[id], key)) return id;
    return tsri_index_find(&m->index, m->entries, key);
}

/* Every key lives in the first line from its home that can have had room, and every line counts
 * the keys that passed it. */
static void check_lines(const struct model *m)
{
    const struct tsri_index *x = &m->index;
    uint32_t n_slots = 0, n_keys = 0;
    for (uint32_t i = 0; i < x->n_lines; i++)
        for (uint32_t s = 0; s < TSRI_LINE_SLOTS; s++)
            n_slots += atomic_load(&x->lines[i].slots[s]) != 0;
    for (uint32_t i = 0; i < x->n_lines; i++) {
        uint32_t n_passed = 0;
        for (uint32_t k = 0; k < KEYS; k++) {
            if (m->id_of[k] == TSRI_ID_NONE) continue;
            n_keys += i == 0;
            bool lives_here = false, passed = false;
            uint32_t home = tsri_index_home(x, m->keys[k]);
            for (uint32_t at = home;; at = (at + 1) % x->n_lines) {
                for (uint32_t s = 0; s < TSRI_LINE_SLOTS; s++)
                    lives_here |= (uint32_t)atomic_load(&x->lines[at].slots[s]) == m->id_of[k] + 1;
                if (lives_here) break;
                passed |= at == i;
                CHECK((at + 1) % x->n_lines != home); /* it is somewhere */
            }
            n_passed += passed;
        }
        CHECK_INT(atomic_load(&x->lines[i].n_passed), n_passed);
    }
    CHECK_INT(n_slots, n_keys);
}

static void run_model(uint32_t n_homes, uint32_t n_tags, uint64_t seed)
{
    static struct model m;
    open_model(&m, n_homes, n_tags);
    for (uint32_t step = 0; step < 6000; step++) {
        uint32_t k = (uint32_t)(test_rand(&seed) % KEYS), id = (uint32_t)(test_rand(&seed) % IDS);
        if (m.id_of[k] != TSRI_ID_NONE)
            take(&m, k);
        else if (m.key_of[id] == KEYS)
            put(&m, k, id);
        uint32_t ask = (uint32_t)(test_rand(&seed) % KEYS);
        CHECK_INT(tsri_index_find(&m.index, m.entries, m.keys[ask]), m.id_of[ask]);
        CHECK_INT(find_nominated(&m, m.keys[ask]), m.id_of[ask]);
        if (step % 1000 != 999) continue;
        check_lines(&m);
        for (k = 0; k < KEYS; k++) {
            CHECK_INT(tsri_index_find(&m.index, m.entries, m.keys[k]), m.id_of[k]);
            CHECK_INT(find_nominated(&m, m.keys[k]), m.id_of[k]);
        }
    }
    for (uint32_t k = 0; k < KEYS; k++)
        if (m.id_of[k] != TSRI_ID_NONE) take(&m, k);
    check_lines(&m); /* empty: no tombstones, all counts 0 */
    close_model(&m);
}

TEST(it_says_what_a_plain_array_says)
{
    run_model(64, KEYS, 1);
}

TEST(keys_of_two_lines_overflow_into_the_next_and_past_the_end)
{
    run_model(2, KEYS, 2);
    run_model(1, KEYS, 3);
}

TEST(slots_with_the_same_tag_are_told_apart_by_the_whole_key)
{
    run_model(2, 3, 4);
    run_model(5, 1, 5); /* also the tag 0, which an empty slot has */
}

TEST(all_ids_fit_whatever_their_keys)
{
    static const uint32_t sizes[] = {16, 17, 100, 1000, 5000};
    for (size_t s = 0; s < TSRI_COUNT(sizes); s++) {
        uint32_t n = sizes[s];
        struct tsri_index x;
        CHECK_INT(tsri_index_init(&x, n), 0);
        CHECK(x.n_lines * TSRI_LINE_SLOTS >= n);
        struct tsri_entry *entries = aligned_alloc(64, n * sizeof entries[0]);
        CHECK(entries);
        for (uint32_t id = 0; id < n; id++) {
            struct tsri_key key = {id, id}; /* all of one home, all of one tag */
            atomic_init(&entries[id].key_lo, key.lo);
            atomic_init(&entries[id].key_hi, key.hi);
            tsri_index_insert(&x, key, id);
        }
        for (uint32_t id = 0; id < n; id += 7)
            CHECK_INT(tsri_index_find(&x, entries, (struct tsri_key){id, id}), id);
        CHECK_INT(tsri_index_find(&x, entries, (struct tsri_key){0, n}), TSRI_ID_NONE);
        free(entries);
        tsri_index_fini(&x);
    }
}

TEST(an_empty_index_finds_nothing)
{
    static struct model m;
    open_model(&m, 4, 2);
    for (uint32_t k = 0; k < KEYS; k++) {
        CHECK_INT(tsri_index_find(&m.index, m.entries, m.keys[k]), TSRI_ID_NONE);
        CHECK_INT(tsri_index_nominate(&m.index, m.entries, m.keys[k]), TSRI_ID_NONE);
    }
    close_model(&m);
}

/* ---- readers beside a writer ---- */

#define READERS 2u
#define STAY 40u /* keys 0 .. STAY - 1 never leave; the last 100 never come */
#define NEVER (KEYS - 100u)

struct reader {
    const struct model *m;
    atomic_bool *stop;
    uint64_t n, n_wrong;
};

static void *read_keys(void *arg)
{
    struct reader *r = arg;
    while (!atomic_load(r->stop)) {
        for (uint32_t k = 0; k < STAY; k++)
            r->n_wrong += tsri_index_find(&r->m->index, r->m->entries, r->m->keys[k]) != k ||
                          find_nominated(r->m, r->m->keys[k]) != k;
        for (uint32_t k = NEVER; k < KEYS; k++)
            r->n_wrong +=
                tsri_index_find(&r->m->index, r->m->entries, r->m->keys[k]) != TSRI_ID_NONE;
        r->n++;
    }
    return NULL;
}

TEST(readers_always_see_keys_that_stay_and_never_those_that_are_not_there)
{
    static struct model m;
    open_model(&m, 2, 7);
    uint64_t seed = 11;
    /* Others first, so that those that stay stand far from home; they leave as the writer runs. */
    for (uint32_t id = STAY; id < IDS; id++)
        put(&m, id, id);
    for (uint32_t k = 0; k < STAY; k++)
        put(&m, k, k);
    atomic_bool stop = false;
    struct reader readers[READERS];
    pthread_t threads[READERS];
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.m = &m, .stop = &stop};
        CHECK_INT(pthread_create(&threads[i], NULL, read_keys, &readers[i]), 0);
    }
    for (uint32_t step = 0; step < 60000; step++) {
        uint32_t k = STAY + (uint32_t)(test_rand(&seed) % (NEVER - STAY));
        uint32_t id = STAY + (uint32_t)(test_rand(&seed) % (IDS - STAY));
        if (m.id_of[k] != TSRI_ID_NONE)
            take(&m, k);
        else if (m.key_of[id] == KEYS)
            put(&m, k, id);
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < READERS; i++)
        CHECK_INT(readers[i].n_wrong, 0);
    check_lines(&m);
    close_model(&m);
}

int main(void)
{
    RUN(it_says_what_a_plain_array_says);
    RUN(keys_of_two_lines_overflow_into_the_next_and_past_the_end);
    RUN(slots_with_the_same_tag_are_told_apart_by_the_whole_key);
    RUN(all_ids_fit_whatever_their_keys);
    RUN(an_empty_index_finds_nothing);
    RUN(readers_always_see_keys_that_stay_and_never_those_that_are_not_there);
    return test_end();
}
