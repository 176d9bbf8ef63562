/* Every byte that is loaded for a run found anywhere is right: for random prompts of edited
 * documents, while others store and evict, and from lower tiers. */
#include "cache/manager.h"
#include "cache/ops.h"
#include "support/fake_tier.h"
#include "support/match_kit.h"
#include "support/test.h"
#include "support/tmpdir.h"

static struct kit k;

static uint32_t n_pins(void)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < k.cache->ids_fresh; id++)
        n += tsri_word_pins(atomic_load(&k.cache->entries[id].word));
    return n;
}

TEST(random_prompts_load_only_right_bytes)
{
    uint64_t seed = 11;
    for (uint32_t round = 0; round < (getenv("TESSERA_TEST_LONG") ? 400u : 20u); round++) {
        struct text docs[8], t;
        struct stored stored[8];
        struct kit_hits hits;
        uint32_t vocabulary = round % 2 ? 3 : 50000;
        match_reopen(&k, NULL);
        text_init(&t, 6000);
        for (uint32_t d = 0; d < 8; d++) {
            text_init(&docs[d], 700);
            text_add_random(&docs[d], &seed, 1 + text_random(&seed, 699), vocabulary);
            stored[d] = match_pure(&k, docs[d].tokens, docs[d].n);
            CHECK(kit_store_segment(&k, docs[d].tokens, docs[d].n) >= 0);
        }
        for (uint32_t part = 0; part < 10; part++) {
            const struct text *d = &docs[text_random(&seed, 8)];
            text_add_edited(&t, &seed, d->tokens, d->n, text_random(&seed, 5), vocabulary);
        }
        struct tsr_prompt prompt = match_prompt(&t, TSR_PROMPT_PREFIX);
        int n = kit_lookup(&k, &prompt, 1, &hits);
        CHECK(n > 0);
        CHECK(match_rows_are_right(&k, &hits, n, &prompt, stored, 8));
        CHECK_INT(n_pins(), hits.io.n_matches);
        for (uint32_t d = 0; d < 8; d++)
            text_fini(&docs[d]);
        text_fini(&t);
        tsr_client_release(k.client, 1);
        CHECK(kit_valid(&k));
    }
}

struct storer {
    pthread_t thread;
    struct kit own; /* with a client of its own */
    const struct stored *docs;
    uint32_t n, n_refused; /* when everything is leased */
};

static void *store_on(void *arg)
{
    struct storer *s = arg;
    for (uint32_t i = 0; i < 200; i++) {
        const struct stored *d = &s->docs[i * 7 % s->n];
        if (kit_store_segment(&s->own, d->tokens, d->n) < 0) s->n_refused++;
    }
    return NULL;
}

/* Stores evict each other while lookups match and load: a miss is allowed, a wrong byte is not. */
TEST(loads_are_right_while_others_store_and_evict)
{
    struct stored docs[12];
    struct text t;
    uint64_t seed = 6;
    match_reopen(&k, (const char *const[]){"host_size", "1M", "windows_max", "1024", NULL});
    text_init(&t, 8000);
    for (uint32_t d = 0; d < 12; d++) {
        uint32_t *tokens = kit_tokens(d, 300 + d * 20);
        docs[d] = match_pure(&k, tokens, 300 + d * 20);
        text_add_edited(&t, &seed, tokens, 300 + d * 20, 2, 50000);
    }
    struct storer s = {.own = k, .docs = docs, .n = 12};
    s.own.client = kit_client(k.cache);
    CHECK_INT(pthread_create(&s.thread, NULL, store_on, &s), 0);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    uint32_t n_found = 0;
    bool right = true;
    for (uint32_t i = 0; i < 60 || (n_found == 0 && i < 10000); i++) {
        struct kit_hits hits;
        int n = kit_lookup(&k, &prompt, 5, &hits);
        right &= match_rows_are_right(&k, &hits, n, &prompt, docs, 12); /* leased: all load */
        n_found += n > 0;
        tsr_client_release(k.client, 5);
    }
    pthread_join(s.thread, NULL);
    tsr_client_close(s.own.client);
    CHECK(right);
    CHECK(n_found > 0);
    CHECK(kit_valid(&k));
    for (uint32_t d = 0; d < 12; d++)
        free((uint32_t *)(uintptr_t)docs[d].tokens);
    text_fini(&t);
}

TEST(text_in_a_lower_tier_is_no_match_now_and_is_on_its_way)
{
    if (k.cache) kit_close(&k);
    struct tsr_config *cfg = kit_config((const char *const[]){"host_size", "8M", NULL});
    struct fake_tier_plan plan;
    fake_tier_plan_init(&plan);
    CHECK_INT(tsr_tier_attach(cfg, &fake_tier, &plan), 0);
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    uint32_t *doc = kit_tokens(1, 500);
    struct text t;
    struct kit_hits hits;
    uint64_t seed = 5;
    text_init(&t, 1000);
    text_add_random(&t, &seed, 100, 50000);
    text_add(&t, doc, 500);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    CHECK_INT(kit_store_segment(&k, doc, 500), 500);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(
        tsr_cache_clear(k.cache,
                        &(struct tsr_clear_desc){.size = sizeof(struct tsr_clear_desc), .tier = 0}),
        1);
    fake_tier_gate(&plan, FAKE_GET); /* else it may be there before the lookup is over */
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    CHECK_INT(kit_metric(&k, TSRI_M_windows_cold), 500 / 32);
    CHECK_INT(kit_metric(&k, TSRI_M_prefetches), 1);
    fake_tier_gate(&plan, 0);
    tsri_work_drain(tsri_ops_work(k.cache->ops));
    int n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK_INT(n, 500);
    struct stored stored = match_pure(&k, doc, 500);
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, &stored, 1));
    /* Found in memory, gone from there before it is loaded: it comes from below. */
    CHECK_INT(
        tsr_cache_clear(k.cache,
                        &(struct tsr_clear_desc){.size = sizeof(struct tsr_clear_desc), .tier = 0}),
        1);
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, &stored, 1));
    kit_close(&k);
    fake_tier_plan_fini(&plan);
    free(doc);
    text_fini(&t);
}

/* A disk, filled by one cache and opened by the next. */
TEST(text_of_a_reopened_store_is_found_at_any_offset)
{
    if (k.cache) kit_close(&k);
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const options[] = {"host_size", "8M", "disk_path", dir.path,
                                   "disk_size", "1G", NULL};
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .bytes = 3, .data = "abc"};
    uint32_t *doc = kit_tokens(1, 500), *salted = kit_tokens(2, 300);
    kit_open(&k, options);
    CHECK_INT(kit_store_segment(&k, doc, 500), 500);
    struct tsr_store_desc store = {
        .kind = TSR_KIND_SEGMENT, .tokens = salted, .n_tokens = 300, .extra = &salt, .n_extra = 1};
    CHECK_INT(kit_store(&k, &store), 300);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    kit_close(&k);
    kit_open(&k, options);
    CHECK_INT(k.cache->windows.n_used, 500 / 32 + 300 / 32);

    struct text t;
    struct kit_hits hits;
    uint64_t seed = 5;
    text_init(&t, 1000);
    text_add_random(&t, &seed, 77, 50000);
    text_add(&t, doc + 20, 450);
    text_add(&t, salted, 300);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    /* Its tokens are not here: no match, unless the prefetch is faster than this lookup. */
    int n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK(n == 0 || n == 450);
    CHECK_INT(kit_metric(&k, TSRI_M_prefetches), 1); /* of the other salt nothing is nominated */
    tsri_work_drain(tsri_ops_work(k.cache->ops));
    n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK_INT(n, 450);
    struct stored stored = match_pure(&k, doc, 500);
    CHECK(match_rows_are_right(&k, &hits, n, &prompt, &stored, 1));
    prompt.extra = &salt;
    prompt.n_extra = 1;
    n = kit_lookup(&k, &prompt, 0, &hits);
    CHECK(n == 0 || n == 300);
    tsri_work_drain(tsri_ops_work(k.cache->ops));
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 300);
    CHECK(kit_valid(&k));
    kit_close(&k);
    tmpdir_fini(&dir);
    free(doc);
    free(salted);
    text_fini(&t);
}

/* An edit every 20 tokens leaves no window: shingles that the disk has kept nominate it. Also in a
 * store of which no checkpoint is left. */
TEST(text_with_frequent_edits_of_a_reopened_store_is_found)
{
    enum { FOUND = 640 - 32 - 7 /* before the first edit: too short for a match */ };
    if (k.cache) kit_close(&k);
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const options[] = {"host_size", "8M", "disk_path", dir.path,
                                   "disk_size", "1G", NULL};
    uint32_t *doc = kit_tokens(1, 640), *small = kit_tokens(2, 30);
    kit_open(&k, options);
    CHECK_INT(kit_store_segment(&k, doc, 640), 640);
    CHECK_INT(kit_store_segment(&k, small, 30), 30);              /* shorter than a window */
    uint64_t n_kept = tsri_n_shingles(640) + tsri_n_shingles(30); /* by the disk */
    CHECK_INT(k.cache->shingles.n_used, n_kept + 6 + 1);          /* and those between */
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    struct text t;
    uint64_t seed = 5;
    text_init(&t, 1000);
    text_add_random(&t, &seed, 77, 50000);
    for (uint32_t i = 0; i < 640; i++)
        t.tokens[t.n++] = i % 20 == 7 ? 1000000 + i : doc[i];
    text_add_random(&t, &seed, 77, 50000);
    struct tsr_prompt prompt = match_prompt(&t, 0);
    struct stored stored = match_pure(&k, doc, 640);
    struct kit_hits hits;
    for (uint32_t round = 0; round < 3; round++) {
        kit_close(&k);
        char path[600];
        snprintf(path, sizeof path, "%s/checkpoint", dir.path);
        if (round == 2) CHECK_INT(unlink(path), 0);
        kit_open(&k, options);
        CHECK_INT(k.cache->shingles.n_used, n_kept);
        /* Its tokens are not here: no match, unless the prefetch is faster than this lookup. */
        int n = kit_lookup(&k, &prompt, 0, &hits);
        CHECK(n == 0 || n == FOUND);
        tsri_work_drain(tsri_ops_work(k.cache->ops));
        CHECK_INT(kit_metric(&k, TSRI_M_prefetches), 1);
        n = kit_lookup(&k, &prompt, 0, &hits);
        CHECK_INT(n, FOUND);
        CHECK_INT(k.cache->shingles.n_used, n_kept + 6); /* in memory again */
        CHECK(match_rows_are_right(&k, &hits, n, &prompt, &stored, 1));
        CHECK_INT(n_pins(), 0);
    }
    /* Who looks for runs only neither keeps them nor asks for the entry. */
    kit_close(&k);
    kit_open(&k, (const char *const[]){"host_size", "8M", "disk_path", dir.path, "disk_size", "1G",
                                       "partial", "runs", NULL});
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 0);
    CHECK_INT(kit_metric(&k, TSRI_M_prefetches), 0);
    CHECK(kit_valid(&k));
    kit_close(&k);
    tmpdir_fini(&dir);
    free(doc);
    free(small);
    text_fini(&t);
}

/* Of 63 tokens one window need be found and no more; with 94 there may still be only one. */
TEST(the_shortest_run_that_is_promised_is_brought_up_too)
{
    if (k.cache) kit_close(&k);
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const options[] = {"host_size", "8M", "disk_path", dir.path,
                                   "disk_size", "1G", NULL};
    uint32_t *doc = kit_tokens(1, 500);
    kit_open(&k, options);
    CHECK_INT(kit_store_segment(&k, doc, 500), 500);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    for (uint32_t at = 0; at < 32; at++)
        for (uint32_t n = 63; n <= 94; n += 31) {
            kit_close(&k);
            kit_open(&k, options);
            struct text t;
            struct kit_hits hits;
            uint64_t seed = 5;
            text_init(&t, 1000);
            text_add_random(&t, &seed, 77, 50000);
            text_add(&t, doc + 100 + at, n);
            text_add_random(&t, &seed, 77, 50000);
            struct tsr_prompt prompt = match_prompt(&t, 0);
            kit_lookup(&k, &prompt, 0, &hits);
            tsri_work_drain(tsri_ops_work(k.cache->ops));
            CHECK_INT(kit_metric(&k, TSRI_M_prefetches), 1);
            int found = kit_lookup(&k, &prompt, 0, &hits);
            CHECK_INT(found, n);
            struct stored stored = match_pure(&k, doc, 500);
            CHECK(match_rows_are_right(&k, &hits, found, &prompt, &stored, 1));
            text_fini(&t);
        }
    kit_close(&k);
    tmpdir_fini(&dir);
    free(doc);
}

TEST(a_window_that_the_table_took_for_another_brings_nothing_up)
{
    if (k.cache) kit_close(&k);
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const options[] = {"host_size", "8M", "disk_path", dir.path,
                                   "disk_size", "1G", NULL};
    uint32_t *doc = kit_tokens(1, 100);
    kit_open(&k, options);
    CHECK_INT(kit_store_segment(&k, doc, 100), 100);
    kit_close(&k);
    kit_open(&k, options);
    uint64_t seed = tsri_window_seed(k.space->fingerprint, tsri_extra_hash(NULL, 0));
    uint64_t hash = tsri_window_finish(tsri_window_hash(doc + 32), seed);
    uint64_t handle = tsri_handle(0, tsri_word_gen(atomic_load(&k.cache->entries[0].word)));
    const struct {
        struct tsri_window_claim claim;
        uint32_t n_prefetches;
    } cases[] = {{{1, hash ^ (uint64_t)1 << 63}, 0},
                 {{2, hash}, 0},
                 {{3, hash}, 0}, /* it has only three */
                 {{UINT32_MAX, hash}, 0},
                 {{1, hash}, 1}};
    for (uint32_t i = 0; i < TSRI_COUNT(cases); i++) {
        tsri_manager_prefetch_window(k.cache, handle, &cases[i].claim);
        tsri_work_drain(tsri_ops_work(k.cache->ops));
        CHECK_INT(kit_metric(&k, TSRI_M_prefetches), cases[i].n_prefetches);
        CHECK_INT(tsri_word_state(atomic_load(&k.cache->entries[0].word)),
                  cases[i].n_prefetches ? TSRI_HOST : TSRI_COLD);
    }
    CHECK_INT(n_pins(), 0);
    kit_close(&k);
    tmpdir_fini(&dir);
    free(doc);
}

int main(void)
{
    RUN(random_prompts_load_only_right_bytes);
    RUN(loads_are_right_while_others_store_and_evict);
    RUN(text_in_a_lower_tier_is_no_match_now_and_is_on_its_way);
    RUN(text_of_a_reopened_store_is_found_at_any_offset);
    RUN(text_with_frequent_edits_of_a_reopened_store_is_found);
    RUN(the_shortest_run_that_is_promised_is_brought_up_too);
    RUN(a_window_that_the_table_took_for_another_brings_nothing_up);
    if (k.cache) kit_close(&k);
    return test_end();
}
