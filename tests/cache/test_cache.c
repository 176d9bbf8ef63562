/* test_cache.c - opening and closing, what a cache costs, clearing, pinning for good, the numbers.
 */
#include "cache/core.h"

#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t handle(const struct kit *k, uint32_t id)
{
    return tsri_handle(id, tsri_word_gen(atomic_load(&k->cache->entries[id].word)));
}

static uint32_t find(struct kit *k, uint64_t seed)
{
    return tsri_index_find(&k->cache->index, k->cache->entries, kit_key(seed));
}

/* Pages of address space, and of them resident. */
static void statm(long *size, long *resident)
{
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f);
    CHECK_INT(fscanf(f, "%ld %ld", size, resident), 2);
    fclose(f);
}

/* ---- opening and closing ---- */

TEST(a_cache_opens_with_defaults_and_closes)
{
    struct tsr_cache *c = NULL;
    CHECK_INT(tsri_cache_open(&c, NULL), 0);
    CHECK(c);
    CHECK_INT(c->pool.n_pages, 4096); /* 1 GiB of 256 KiB */
    CHECK_INT(c->ids_max, 4096);      /* an entry takes at least a page */
    CHECK_INT(c->arena.region.bytes, 16 << 20);
    CHECK(kit_cache_valid(c));
    tsri_cache_close(c);
    tsr_cache_close(NULL);
}

TEST(limits_that_nobody_set_follow_from_host_size)
{
    static const struct {
        const char *host, *page;
        uint32_t ids_max;
        size_t metadata;
    } rows[] = {
        {"1M", "4K", 1024, 4 << 20},    /* the least of both */
        {"64M", "4K", 16384, 4 << 20},  /* a page an entry */
        {"1G", "4K", 262144, 16 << 20}, /* a 64th for tokens */
        {"64G", "4K", 4 << 20, (size_t)1 << 30},
    };
    /* The thread sanitizer has no 64 GB of addresses to spare on Arm. */
    for (size_t i = 0; i < TSRI_COUNT(rows) - TEST_TSAN; i++) {
        struct tsr_config *cfg =
            kit_config((const char *[]){"host_size", rows[i].host, "host_page_size", rows[i].page,
                                        "entries_max", "0", "metadata_size", "0", NULL});
        struct tsr_cache *c;
        CHECK_INT(tsri_cache_open(&c, cfg), 0);
        CHECK_INT(c->ids_max, rows[i].ids_max);
        CHECK_INT(c->arena.region.bytes, rows[i].metadata);
        tsri_cache_close(c);
        tsr_config_close(cfg);
    }
}

TEST(what_cannot_be_opened_leaves_nothing_behind)
{
    struct tsr_cache *c = NULL;
    struct tsr_config *cfg =
        kit_config((const char *[]){"host_size", "1M", "host_page_size", "2M", NULL});
    CHECK(tsr_cache_open(&c, cfg) < 0);
    CHECK(c == NULL);
    CHECK_HAS(tsr_errmsg(), "host_page_size");
    tsr_config_close(cfg);
    /* More address space than there is: whatever was opened before it is given back. */
    cfg = kit_config((const char *[]){"host_size", "16T", "host_page_size", "64M", "entries_max",
                                      "268435456", "metadata_size", "100G", NULL});
    long size = 0, after = 0, resident;
    statm(&size, &resident);
    int e = tsr_cache_open(&c, cfg);
    if (e == 0) {
        tsr_cache_close(c);
    } else {
        CHECK_INT(e, TSR_ENOMEM);
        CHECK(c == NULL);
    }
    statm(&after, &resident);
    if (!TEST_SANITIZED) CHECK(after - size < 4096); /* 16 MiB of stacks and heap may stay */
    tsr_config_close(cfg);
}

static int failing_open(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    (void)out;
    (void)desc;
    return tsri_fail(TSR_EIO, "this tier does not open");
}

TEST(a_tier_that_does_not_open_is_why_the_cache_does_not)
{
    struct tsr_tier_ops broken = mem_tier;
    broken.open = failing_open;
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_tier_attach(cfg, &mem_tier, NULL), 0); /* this one is open by then */
    CHECK_INT(tsr_tier_attach(cfg, &broken, NULL), 0);
    struct tsr_cache *c = NULL;
    CHECK_INT(tsr_cache_open(&c, cfg), TSR_EIO);
    CHECK(c == NULL);
    CHECK_HAS(tsr_errmsg(), "this tier does not open");
    tsr_config_close(cfg);
}

/* Runs in a child that has the locks in whatever state: whoever waits for one is ended. */
static int in_child(void (*run)(void *arg), void *arg)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        run(arg);
        _exit(7);
    }
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void close_all(void *arg)
{
    struct kit *k = arg;
    tsr_client_close(k->client);
    tsr_space_close(k->space);
    tsr_cache_close(k->cache);
}

TEST(a_forked_child_closes_and_the_parent_notices_nothing)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 40);
    CHECK_INT(kit_store_segment(&k, tokens, 40), 40);
    struct kit_hits hits;
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 40, &range);
    CHECK_INT(kit_lookup(&k, &prompt, 9, &hits), 40); /* a lease the child must not let go */
    pthread_mutex_lock(&k.cache->lock);
    CHECK_INT(in_child(close_all, &k), 7);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(kit_load_and_check(&k, &prompt), 40);
    CHECK_INT(tsr_client_release(k.client, 9), 1);
    free(tokens);
    kit_close(&k);
}

/* ---- what it costs ---- */

TEST(an_entry_costs_at_most_96_bytes_beside_its_tokens)
{
    static const uint32_t sizes[] = {4096, 5000, 100000, 1000000, 1100000, 1300000, 4 << 20};
    for (size_t i = 0; i < TSRI_COUNT(sizes); i++) {
        uint32_t n = sizes[i];
        struct tsri_index index;
        CHECK_INT(tsri_index_init(&index, n), 0);
        uint64_t bytes = (uint64_t)index.n_lines * sizeof(struct tsri_line);
        bytes += (uint64_t)n * sizeof(struct tsri_entry);
        tsri_index_fini(&index);
        /* What the policy takes is its own affair: look at the address space, which is given out
         * in pieces of 2 MiB. */
        long before, after, resident;
        struct tsri_policy *policy;
        struct tsri_policy_env env = {.ids_max = n};
        statm(&before, &resident);
        CHECK_INT(tsri_policy_lru.open(&policy, &env), 0);
        statm(&after, &resident);
        policy->ops->close(policy);
        uint64_t links = (uint64_t)(after - before) * (uint64_t)sysconf(_SC_PAGESIZE);
        if (links > 2 << 20) bytes += links - (2 << 20);
        if (n == 1000000) printf("    %.1f bytes an entry\n", (double)(bytes + (2 << 20)) / n);
        CHECK(bytes <= (uint64_t)n * 96);
    }
}

TEST(an_idle_cache_takes_less_than_8_mib)
{
    if (TEST_SANITIZED) SKIP("sanitizers have memory of their own");
    long size, before, after;
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    CHECK_INT(tsr_config_set(cfg, "host_size", "1G"), 0);
    struct tsr_cache *c;
    statm(&size, &before);
    CHECK_INT(tsr_cache_open(&c, cfg), 0);
    struct tsr_client *client = kit_client(c);
    struct tsr_space_desc d = kit_desc();
    struct tsr_space *space = kit_space(c, &d);
    statm(&size, &after);
    long bytes = (after - before) * sysconf(_SC_PAGESIZE);
    printf("    %.2f MiB\n", (double)bytes / (1 << 20));
    CHECK(bytes < 8 << 20);
    tsr_space_close(space);
    tsr_client_close(client);
    tsr_cache_close(c);
    tsr_config_close(cfg);
}

/* ---- clear ---- */

TEST(clear_drops_what_is_not_in_use)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++)
        ids[i] = kit_entry(&k, i, 1, TSRI_ID_NONE);
    CHECK_INT(tsri_pin(k.cache, ids[7]), TSRI_HOST);
    CHECK_INT(tsri_cache_pin_one(k.cache, handle(&k, ids[9]), NULL), 1);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 38);
    for (uint32_t i = 0; i < 40; i++)
        CHECK((find(&k, i) != TSRI_ID_NONE) == (i == 7 || i == 9));
    tsri_unpin(k.cache, ids[7]);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 1);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_cleared), 39);
    CHECK_INT(tsri_cache_unpin_one(k.cache, handle(&k, ids[9]), NULL), 1);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, 0), 1); /* from host memory: there is no other */
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 0);
    CHECK(kit_valid(&k));
    kit_close(&k);
}

TEST(more_entries_than_a_batch_are_cleared)
{
    struct kit k;
    kit_open(&k, (const char *[]){"host_size", "16M", NULL});
    for (uint32_t i = 0; i < 1000; i++)
        CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 1000);
    CHECK_INT(k.cache->n_host, 0);
    kit_close(&k);
}

TEST(clear_of_a_space_leaves_the_others)
{
    struct kit k, other;
    kit_open(&k, NULL);
    struct tsr_space_desc d = kit_desc();
    d.salt = "other";
    other = k;
    other.space = kit_space(k.cache, &d);
    for (uint32_t i = 0; i < 10; i++) {
        CHECK(kit_entry(&k, i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
        CHECK(kit_entry(&other, 100 + i, 1, TSRI_ID_NONE) != TSRI_ID_NONE);
    }
    CHECK_INT(tsri_cache_clear(k.cache, other.space, -1), 10);
    for (uint32_t i = 0; i < 10; i++)
        CHECK(find(&k, i) != TSRI_ID_NONE && find(&k, 100 + i) == TSRI_ID_NONE);
    tsr_space_close(other.space);
    kit_close(&k);
}

TEST(a_chain_that_somebody_reads_stays_whole)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE), b = kit_entry(&k, 2, 1, a);
    uint32_t leaf = kit_entry(&k, 3, 1, b);
    kit_entry(&k, 4, 1, a); /* a twig */
    CHECK_INT(tsri_pin(k.cache, leaf), TSRI_HOST);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 1); /* the twig alone */
    CHECK(find(&k, 1) == a && find(&k, 2) == b && find(&k, 3) == leaf);
    CHECK_INT(find(&k, 4), TSRI_ID_NONE);
    int32_t everywhere = -1;
    CHECK_INT(tsri_cache_clear_one(k.cache, handle(&k, a), &everywhere), 0);
    tsri_unpin(k.cache, leaf);
    uint64_t h = handle(&k, a);
    CHECK_INT(tsri_cache_clear_one(k.cache, h, &everywhere), 3);
    uint32_t again = kit_entry(&k, 5, 1, TSRI_ID_NONE);
    CHECK_INT(tsri_handle_id(h) == again || kit_entry(&k, 6, 1, TSRI_ID_NONE) == a, 1);
    CHECK_INT(tsri_cache_clear_one(k.cache, h, &everywhere), 0); /* its id is another entry now */
    kit_close(&k);
}

TEST(clear_of_one_tier_leaves_the_copies_in_others)
{
    struct tsr_config *cfg = kit_config(NULL);
    struct mem_tier_store store;
    mem_tier_store_init(&store, 0);
    CHECK_INT(tsr_tier_attach(cfg, &mem_tier, &store), 0);
    struct kit k;
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64); /* four blocks */
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(store.n_items, 4);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, 0), 4);
    CHECK_INT(k.cache->n_host, 0);
    CHECK_INT(k.cache->n_cold, 4);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_load_and_check(&k, &prompt), 64);
    CHECK_INT(k.cache->n_host, 4);
    struct tsr_clear_desc below = {.size = sizeof below, .tier = 1};
    CHECK_INT(tsr_cache_clear(k.cache, &below), 4); /* returns when the tier has done it */
    CHECK_INT(store.n_items, 0);
    CHECK_INT(kit_load_and_check(&k, &prompt), 64);
    CHECK_INT(tsr_cache_clear(k.cache, &below), 0);
    CHECK_INT(tsri_cache_clear(k.cache, NULL, 5), 0); /* no such tier is open */
    CHECK_INT(tsri_cache_clear(k.cache, NULL, -1), 4);
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    CHECK(kit_valid(&k));
    free(tokens);
    kit_close(&k);
    mem_tier_store_fini(&store);
}

struct filler {
    struct kit *k;
    struct tsr_put *put;
    atomic_bool filling, cleared;
};

static void *fill_slowly(void *arg)
{
    struct filler *f = arg;
    uint32_t *tokens = kit_tokens(4, 50);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = f->k->space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = 50};
    if (tsr_put_open(&f->put, f->k->client, &store) != 0) f->put = NULL;
    /* Relaxed: nothing orders what the clear sees but the cache's own lock. */
    atomic_store_explicit(&f->filling, true, memory_order_relaxed);
    while (!atomic_load_explicit(&f->cleared, memory_order_relaxed)) {
    }
    free(tokens);
    return NULL;
}

TEST(clear_of_a_space_does_not_look_at_what_is_being_filled)
{
    struct kit k;
    kit_open(&k, NULL);
    struct filler f = {.k = &k};
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, fill_slowly, &f), 0);
    while (!atomic_load_explicit(&f.filling, memory_order_relaxed)) {
    }
    int n = tsri_cache_clear(k.cache, k.space, -1);
    atomic_store_explicit(&f.cleared, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    CHECK_INT(n, 0);
    CHECK(f.put);
    tsr_put_abort(f.put);
    CHECK_INT(tsri_pool_n_free(&k.cache->pool), k.cache->pool.n_pages);
    kit_close(&k);
}

/* ---- pinning for good, using ---- */

TEST(pinned_for_good_is_unpinned_as_often)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 1, TSRI_ID_NONE);
    uint64_t h = handle(&k, id);
    CHECK_INT(tsri_cache_unpin_one(k.cache, h, NULL), 0); /* it never was */
    CHECK_INT(tsri_cache_pin_one(k.cache, h, NULL), 1);
    CHECK_INT(tsri_cache_pin_one(k.cache, h, NULL), 1);
    CHECK_INT(k.cache->n_pinned, 1);
    CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST); /* a reader's pin is not counted with them */
    CHECK_INT(tsri_cache_unpin_one(k.cache, h, NULL), 1);
    CHECK_INT(k.cache->n_pinned, 1);
    CHECK_INT(tsri_cache_unpin_one(k.cache, h, NULL), 1);
    CHECK_INT(k.cache->n_pinned, 0);
    CHECK_INT(tsri_cache_unpin_one(k.cache, h, NULL), 0);
    CHECK_INT(tsri_word_pins(atomic_load(&k.cache->entries[id].word)), 1);
    tsri_unpin(k.cache, id);
    CHECK_INT(tsri_cache_pin_one(k.cache, h + ((uint64_t)1 << 28), NULL), 0); /* another one */
    kit_close(&k);
}

TEST(pins_for_good_are_refused_beyond_their_counter)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t id = kit_entry(&k, 1, 1, TSRI_ID_NONE);
    uint64_t h = handle(&k, id);
    uint32_t n = 0;
    while (n < 70000 && tsri_cache_pin_one(k.cache, h, NULL) == 1)
        n++;
    CHECK_INT(n, UINT16_MAX);
    CHECK_INT(tsri_word_pins(atomic_load(&k.cache->entries[id].word)), UINT16_MAX);
    CHECK_INT(k.cache->n_pinned, 1);
    while (tsri_cache_unpin_one(k.cache, h, NULL) == 1)
        n--;
    CHECK_INT(n, 0);
    CHECK_INT(k.cache->n_pinned, 0);
    kit_close(&k);
}

TEST(what_is_touched_goes_later)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t a = kit_entry(&k, 1, 1, TSRI_ID_NONE);
    kit_entry(&k, 2, 1, TSRI_ID_NONE);
    CHECK_INT(tsri_cache_touch_one(k.cache, handle(&k, a), NULL), 1);
    CHECK_INT(tsr_cache_evict(k.cache, (size_t)63 * 16384), 1);
    CHECK(find(&k, 1) == a && find(&k, 2) == TSRI_ID_NONE);
    kit_close(&k);
}

/* ---- layers ---- */

#define LAYERS 70u

struct layer_giver {
    struct tsr_put *put;
    const uint8_t *rows;
    uint32_t first;
    bool right;
};

static void *give_layers(void *arg)
{
    struct layer_giver *g = arg;
    g->right = true;
    for (uint32_t l = g->first; l < LAYERS; l += 2) {
        uint8_t rows[8 * 8 * 2];
        memcpy(rows, g->rows + (size_t)l * sizeof rows, sizeof rows);
        struct tsr_view view = {.data = rows, .bytes = sizeof rows};
        g->right &= tsr_put_layer(g->put, l, &view) == 0;
    }
    return NULL;
}

TEST(layers_may_come_from_several_threads_at_once)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc d = kit_desc();
    d.n_layers = LAYERS;
    d.n_heads = 1;
    d.k_dim = 4;
    struct tsr_space *deep = kit_space(k.cache, &d);
    uint32_t *tokens = kit_tokens(1, 8);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = deep,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = 8};
    struct tsr_view all = kit_store_view(&store);
    for (uint32_t round = 0; round < 50; round++) {
        struct tsr_put *put;
        CHECK_INT(tsr_put_open(&put, k.client, &store), 0);
        struct layer_giver givers[2];
        pthread_t threads[2];
        for (uint32_t i = 0; i < 2; i++) {
            givers[i] = (struct layer_giver){.put = put, .rows = all.data, .first = i};
            CHECK_INT(pthread_create(&threads[i], NULL, give_layers, &givers[i]), 0);
        }
        for (uint32_t i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(givers[0].right && givers[1].right);
        CHECK_INT(tsr_put_commit(put), 8);
        struct kit other = {.cache = k.cache, .client = k.client, .space = deep};
        struct tsr_range range;
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 8, &range);
        CHECK_INT(kit_load_and_check(&other, &prompt), 8);
        CHECK_INT(tsr_cache_clear(k.cache, NULL), 1);
    }
    free(all.data);
    free(tokens);
    tsr_space_close(deep);
    kit_close(&k);
}

/* ---- numbers ---- */

TEST(the_numbers_are_those_of_what_happened)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    CHECK_INT(kit_store_prefix(&k, tokens, 96), 96);
    CHECK_INT(kit_store_prefix(&k, tokens, 96), 0);
    CHECK_INT(kit_store_segment(&k, tokens, 100), 100);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 100);
    CHECK_INT(kit_load_and_check(&k, &prompt), 96);
    CHECK_INT(tsr_space_pin(k.space, &prompt), 6);
    struct tsr_stats s = {.size = sizeof s};
    CHECK_INT(tsr_cache_stats(k.cache, &s), 0);
    size_t row = tsri_shape_token_bytes(&k.space->shape);
    CHECK_INT(s.size, sizeof s);
    CHECK_INT(s.lookups, 1);
    CHECK_INT(s.tokens_asked, 100);
    CHECK_INT(s.tokens_reused, 96);
    CHECK_INT(s.lookup_hits, 1);
    CHECK_INT(s.lookup_misses, 0);
    CHECK_INT(s.loads, 6);
    CHECK_INT(s.load_misses, 0);
    CHECK_INT(s.load_bytes, 96 * row);
    CHECK_INT(s.stores, 3);
    CHECK_INT(s.stores_new, 7);
    CHECK_INT(s.store_bytes, 196 * row);
    CHECK_INT(s.entries, 7);
    CHECK_INT(s.pinned, 6);
    CHECK_INT(s.host_bytes, 1 << 20);
    CHECK_INT(s.host_bytes_used, 8 * 16384); /* 100 tokens are two cells */
    CHECK_INT(s.tokens_cached, 196);         /* the same text twice: as blocks and as a segment */
    CHECK_INT(s.tier_entries[0], 7);
    CHECK_INT(s.tier_tokens[0], 196);
    CHECK_INT(s.tier_bytes[0], 8 * 16384);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_host_tokens), 196);
    CHECK_INT(tsr_space_unpin(k.space, &prompt), 6);
    CHECK_INT(tsr_cache_evict(k.cache, (size_t)60 * 16384), 3);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 4);
    CHECK_INT(kit_find_prefix(&k, tokens, 96), 0);
    CHECK_INT(tsr_cache_stats(k.cache, &s), 0);
    CHECK_INT(s.lookup_misses, 1);
    CHECK_INT(s.tokens_cached, 0);
    CHECK_INT(s.tier_tokens[0], 0);
    CHECK_INT(s.evicted, 3);
    CHECK_INT(s.dropped, 4);
    CHECK_INT(s.entries, 0);
    CHECK_INT(s.host_bytes_used, 0);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_metadata_used_bytes), 0);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_clients), 1);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_spaces), 1);
    free(tokens);
    kit_close(&k);
}

/* Whatever a row of the table of options allows, alone and beside defaults. */
TEST(every_number_that_the_documents_allow_opens)
{
    uint64_t most = (uint64_t)17 << 40; /* host_size, and what is derived from it */
    void *all = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || TEST_SANITIZED) SKIP("17 TiB of addresses are refused here");
    munmap(all, most);
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        bool number = o->type == TSRI_OPTION_COUNT || o->type == TSRI_OPTION_SIZE;
        if (!number || strcmp(o->name, "device_pool_size") == 0) continue; /* needs a device */
        for (int k = 0; k < 2; k++) {
            char text[32];
            struct tsr_config *cfg;
            struct tsr_cache *cache;
            snprintf(text, sizeof text, "%.0f", k ? o->max : o->min);
            CHECK_INT(tsr_config_open(&cfg), 0);
            CHECK_INT(tsr_config_set(cfg, o->name, text), 0);
            int e = tsr_cache_open(&cache, cfg);
            if (e) printf("    %s=%s: %s\n", o->name, text, tsr_errmsg());
            CHECK_INT(e, 0);
            tsr_cache_close(cache);
            tsr_config_close(cfg);
        }
    }
}

TEST(the_rest_of_the_library_sees_a_cache_through_functions)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsri_cache_memory memory = tsri_cache_memory(k.cache);
    CHECK_INT(memory.n_pages, 64);
    CHECK_INT(memory.page_bytes, 16384);
    CHECK_INT(memory.fd, -1); /* not shared */
    CHECK_INT(tsri_cache_options(k.cache)->host_page_size, 16384);
    CHECK(tsri_cache_metrics(k.cache) != NULL);
    CHECK(tsri_cache_device(k.cache) == NULL);
    CHECK(!tsri_cache_is_forked(k.cache));
    CHECK(tsri_cache_work(k.cache) != NULL);
    CHECK_INT(tsri_cache_n_lost(k.cache), 0);
    kit_close(&k);
}

int main(void)
{
    RUN(an_idle_cache_takes_less_than_8_mib); /* first: nothing else has warmed the heap */
    RUN(a_cache_opens_with_defaults_and_closes);
    RUN(limits_that_nobody_set_follow_from_host_size);
    RUN(every_number_that_the_documents_allow_opens);
    RUN(what_cannot_be_opened_leaves_nothing_behind);
    RUN(a_tier_that_does_not_open_is_why_the_cache_does_not);
    RUN(a_forked_child_closes_and_the_parent_notices_nothing);
    RUN(an_entry_costs_at_most_96_bytes_beside_its_tokens);
    RUN(the_rest_of_the_library_sees_a_cache_through_functions);
    RUN(clear_drops_what_is_not_in_use);
    RUN(more_entries_than_a_batch_are_cleared);
    RUN(clear_of_a_space_leaves_the_others);
    RUN(a_chain_that_somebody_reads_stays_whole);
    RUN(clear_of_one_tier_leaves_the_copies_in_others);
    RUN(clear_of_a_space_does_not_look_at_what_is_being_filled);
    RUN(pinned_for_good_is_unpinned_as_often);
    RUN(pins_for_good_are_refused_beyond_their_counter);
    RUN(what_is_touched_goes_later);
    RUN(layers_may_come_from_several_threads_at_once);
    RUN(the_numbers_are_those_of_what_happened);
    return test_end();
}
