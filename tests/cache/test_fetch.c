/* What comes up from a tier: entries that were written, evicted from host memory and are loaded
 * again, with every byte checked; and a tier that is slow, failing, empty or shut while
 * somebody waits for it. A tier below costs misses, never a wrong byte, a hang or a slow lookup. */
#include "cache/manager.h"
#include "cache/ops.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#include <pthread.h>
#include <sched.h>

/* A cache over one tier in memory that can be made to misbehave. */
struct below {
    struct kit k;
    struct fake_tier_plan plan;
};

static void below_open(struct below *b, const char *const *options)
{
    fake_tier_plan_init(&b->plan);
    kit_open_tiers(&b->k, options, &b->plan, 1);
}

/* True when nothing is left anywhere. */
static bool below_end(struct below *b)
{
    bool ended = kit_end(&b->k) && b->plan.mem.n_items == 0;
    fake_tier_plan_fini(&b->plan);
    return ended;
}

/* Everything that is stored is below only. */
static void sink(struct below *b)
{
    CHECK_INT(tsr_cache_flush(b->k.cache), 0);
    CHECK(kit_evict_all(&b->k) > 0);
    CHECK_INT(kit_stats(&b->k).tier_entries[0], 0);
}

static uint64_t counter(const struct below *b, enum tsri_metric m)
{
    return tsri_stats_read(b->k.cache->stats, m);
}

/* ---- there and back ---- */

TEST(every_kind_of_entry_comes_back_from_a_tier)
{
    struct below b;
    below_open(&b, (const char *const[]){"save_partial", "true", NULL});
    struct kit *k = &b.k;
    uint32_t *tokens = kit_tokens(1, 150), *system = kit_tokens(2, 9);
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .bytes = 4, .data = "salt"};
    struct tsr_store_desc salted = {.kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 40};
    salted.extra = &salt;
    salted.n_extra = 1;
    struct tsr_store_desc blended = {.kind = TSR_KIND_BLENDED,
                                     .tokens = tokens,
                                     .n_tokens = 33,
                                     .recipe = "r",
                                     .recipe_bytes = 1};
    uint32_t both[9 + 70];
    memcpy(both, system, sizeof both[0] * 9);
    memcpy(both + 9, tokens, sizeof both[0] * 70);
    CHECK_INT(kit_store_prefix(k, tokens, 150), 150);
    CHECK_INT(kit_store_segment(k, tokens, 130), 130);
    CHECK_INT(kit_store_behind(k, system, 9, tokens, 70), 70);
    CHECK_INT(kit_store(k, &salted), 40);
    CHECK_INT(kit_store(k, &blended), 33);

    struct tsr_range whole, part = {0, 33}, two[] = {{0, 9}, {9, 70}};
    struct tsr_prompt prompts[] = {
        kit_prefix_prompt(tokens, 150), kit_segment_prompt(tokens, 130, &whole),
        kit_segment_prompt(both, 79, &whole), kit_prefix_prompt(tokens, 40),
        kit_segment_prompt(tokens, 33, &part)};
    whole = (struct tsr_range){0, 130};
    prompts[2].segments = two;
    prompts[2].n_segments = 2;
    prompts[2].flags |= TSR_PROMPT_CONTEXT;
    prompts[3].extra = &salt;
    prompts[3].n_extra = 1;
    prompts[4].flags |= TSR_PROMPT_BLENDED;
    prompts[4].recipe = "r";
    prompts[4].recipe_bytes = 1;
    const int want[] = {150, 130, 70, 40, 33};
    for (int round = 0; round < 3; round++) {
        sink(&b);
        for (size_t i = 0; i < TSRI_COUNT(prompts); i++) {
            struct kit_hits hits;
            CHECK_INT(kit_lookup(k, &prompts[i], 0, &hits), want[i]);
            for (uint32_t row = 0; row < hits.io.n_matches; row++) {
                CHECK_INT(hits.matches[row].verified, 0);
                CHECK_INT(hits.matches[row].tier, 1);
            }
            CHECK_INT(kit_load_and_check(k, &prompts[i]), want[i]);
            CHECK_INT(kit_load_and_check(k, &prompts[i]), want[i]); /* from host memory now */
        }
    }
    CHECK_INT(counter(&b, TSRI_M_corrupt), 0);
    CHECK_INT(counter(&b, TSRI_M_collisions), 0);
    CHECK_INT(counter(&b, TSRI_M_tier_errors), 0);
    CHECK_INT(counter(&b, TSRI_M_promotions), counter(&b, TSRI_M_demotions));
    free(tokens), free(system);
    CHECK(below_end(&b));
}

TEST(base_and_frequency_set_come_back_too)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 20);
    struct tsr_store_desc s = {.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 20};
    s.base = 77;
    s.freq_set = 3;
    CHECK_INT(kit_store(&b.k, &s), 20);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 20, &range);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 20);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 20);
    CHECK_INT(hits.matches[0].verified, 1);
    CHECK_INT(hits.matches[0].base, 77);
    CHECK_INT(hits.matches[0].freq_set, 3);
    free(tokens);
    CHECK(below_end(&b));
}

/* K is turned by the base of its match: one that nobody has read must not look like position 0. */
TEST(a_match_that_is_only_nominated_has_the_right_base_or_none)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 48);
    struct tsr_store_desc s = {.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 48};
    s.base = 77;
    s.freq_set = 3;
    CHECK_INT(kit_store(&b.k, &s), 48);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt segment = kit_segment_prompt(tokens, 48, &range);
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, 48);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b.k, &prefix, 0, &hits), 48);
    for (uint32_t i = 0; i < 3; i++) { /* a block stands where it stands */
        CHECK_INT(hits.matches[i].verified, 0);
        CHECK_INT(hits.matches[i].base, 16 * i);
        CHECK_INT(hits.matches[i].freq_set, TSR_BASE_UNKNOWN);
    }
    CHECK_INT(kit_lookup(&b.k, &segment, 0, &hits), 48);
    CHECK_INT(hits.matches[0].verified, 0);
    CHECK_INT(hits.matches[0].base, TSR_BASE_UNKNOWN);
    CHECK_INT(hits.matches[0].freq_set, TSR_BASE_UNKNOWN);
    /* From the tier, and then from memory with the same match: the load knows. */
    uint8_t kv[10 * 256];
    for (int i = 0; i < 2; i++) {
        struct tsr_load_desc load = {.size = sizeof load,
                                     .space = b.k.space,
                                     .match = &hits.matches[0],
                                     .prompt = &segment,
                                     .offset = 20,
                                     .n_tokens = 10,
                                     .view = {.data = kv, .bytes = sizeof kv}};
        CHECK_INT(tsr_client_load(b.k.client, &load, 1), 1);
        CHECK_INT(load.base, 77);
        CHECK_INT(load.freq_set, 3);
    }
    CHECK_INT(kit_lookup(&b.k, &segment, 0, &hits), 48);
    CHECK_INT(hits.matches[0].base, 77);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(a_part_of_an_entry_is_loaded_from_a_tier)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 150);
    CHECK_INT(kit_store_segment(&b.k, tokens, 150), 150);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 150, &range);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 150);
    uint8_t kv[50 * 128];
    memset(kv, 0xA5, sizeof kv);
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = b.k.space,
                                 .match = &hits.matches[0],
                                 .prompt = &prompt,
                                 .offset = 60,
                                 .n_tokens = 50,
                                 .layer_first = 1,
                                 .n_layers = 1,
                                 .view = {.data = kv, .bytes = sizeof kv}};
    CHECK_INT(tsr_client_load(b.k.client, &load, 1), 1);
    CHECK(kit_right(b.k.space, kit_seen(kit_seed(b.k.space), tokens, 60), tokens + 60, 50, 1, 1,
                    &load.view));
    free(tokens);
    CHECK(below_end(&b));
}

/* A match that was verified in host memory needs no prompt, wherever the entry is by now. */
TEST(a_verified_match_is_loaded_without_a_prompt_after_its_entry_went_down)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 32);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 32), 32);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 32);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 32);
    CHECK_INT(hits.matches[1].verified, 1);
    sink(&b);
    uint8_t kv[16 * 256];
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = b.k.space,
                                 .match = &hits.matches[1],
                                 .view = {.data = kv, .bytes = sizeof kv}};
    CHECK_INT(tsr_client_load(b.k.client, &load, 1), 1);
    CHECK(kit_right(b.k.space, kit_match_seen(b.k.space, &prompt, &hits.matches[1]), tokens + 16,
                    16, 0, 2, &load.view));
    free(tokens);
    CHECK(below_end(&b));
}

TEST(a_match_that_is_not_verified_is_compared_by_load)
{
    struct below b;
    below_open(&b, NULL);
    b.k.cache->key_mask = 0;
    uint32_t *tokens = kit_tokens(1, 20), *others = kit_tokens(2, 20);
    CHECK_INT(kit_store_segment(&b.k, tokens, 20), 20);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt wrong = kit_segment_prompt(others, 20, &range);
    struct tsr_prompt right = kit_segment_prompt(tokens, 20, &range);
    struct kit_hits hits;
    /* Same key, same length: only the tokens below can tell. */
    CHECK_INT(kit_lookup(&b.k, &wrong, 0, &hits), 20);
    CHECK_INT(hits.matches[0].verified, 0);
    CHECK(kit_load(&b.k, &wrong, &hits, 0) < 0);
    CHECK_INT(counter(&b, TSRI_M_collisions), 1);
    CHECK_INT(counter(&b, TSRI_M_corrupt), 0);
    /* It was the wrong question, not a wrong entry. */
    CHECK_INT(kit_load_and_check(&b.k, &right), 20);
    /* Nominated while below, and in host memory when it is loaded. */
    CHECK(kit_load(&b.k, &wrong, &hits, 0) < 0);
    CHECK_INT(counter(&b, TSRI_M_collisions), 2);
    /* Without the prompt there is nothing to compare with. */
    uint8_t kv[20 * 256];
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = b.k.space,
                                 .match = &hits.matches[0],
                                 .view = {.data = kv, .bytes = sizeof kv}};
    CHECK_INT(tsr_client_load(b.k.client, &load, 1), TSR_EINVAL);
    free(tokens), free(others);
    CHECK(below_end(&b));
}

/* ---- many at once ---- */

enum { N_LOADERS = 8 };
struct loader {
    struct below *b;
    const struct tsr_prompt *prompt;
    int loaded;
    pthread_t thread;
};

static void *load_all(void *arg)
{
    struct loader *l = arg;
    l->loaded = kit_load_and_check(&l->b->k, l->prompt);
    return NULL;
}

TEST(one_get_serves_all_who_want_the_entry)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_segment(&b.k, tokens, 64), 64);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
    struct loader loaders[N_LOADERS];
    fake_tier_gate(&b.plan, FAKE_GET);
    for (size_t i = 0; i < N_LOADERS; i++) {
        loaders[i] = (struct loader){.b = &b, .prompt = &prompt};
        pthread_create(&loaders[i].thread, NULL, load_all, &loaders[i]);
    }
    fake_tier_gate_wait(&b.plan, 1);
    /* The others are on their way to wait for the first. */
    while (counter(&b, TSRI_M_lookups) < N_LOADERS)
        sched_yield();
    fake_tier_gate(&b.plan, 0);
    for (size_t i = 0; i < N_LOADERS; i++) {
        pthread_join(loaders[i].thread, NULL);
        CHECK_INT(loaders[i].loaded, 64);
    }
    CHECK_INT(b.plan.n_gets, 1);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(one_load_may_name_an_entry_several_times)
{
    struct below b;
    below_open(&b, (const char *const[]){"host_size", "4M", NULL});
    uint32_t *tokens = kit_tokens(1, 100 * 16);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 100 * 16), 100 * 16);
    sink(&b);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 100 * 16);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 100 * 16);
    /* Blocks 0, 1, .., 99, and each of them again in reverse. */
    enum { N = 200 };
    struct tsr_load_desc loads[N];
    uint8_t *kv = malloc(N * 16 * 256);
    for (uint32_t i = 0; i < N; i++)
        loads[i] = (struct tsr_load_desc){.size = sizeof loads[i],
                                          .space = b.k.space,
                                          .match = &hits.matches[i < 100 ? i : 199 - i],
                                          .prompt = &prompt,
                                          .view = {.data = kv + i * 16 * 256, .bytes = 16 * 256}};
    CHECK_INT(tsr_client_load(b.k.client, loads, N), N);
    for (uint32_t i = 0; i < N; i++) {
        const struct tsr_match *m = loads[i].match;
        CHECK_INT(loads[i].result, 0);
        CHECK(kit_right(b.k.space, kit_match_seen(b.k.space, &prompt, m), tokens + m->prompt_offset,
                        16, 0, 2, &loads[i].view));
    }
    CHECK_INT(b.plan.n_gets, 100);
    free(kv), free(tokens);
    CHECK(below_end(&b));
}

TEST(a_slow_tier_does_not_hold_up_lookups_stores_or_loads_from_memory)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *cold = kit_tokens(1, 64), *warm = kit_tokens(2, 64);
    CHECK_INT(kit_store_segment(&b.k, cold, 64), 64);
    sink(&b);
    CHECK_INT(kit_store_segment(&b.k, warm, 64), 64);
    struct tsr_range range;
    struct tsr_prompt pc = kit_segment_prompt(cold, 64, &range);
    struct tsr_prompt pw = kit_segment_prompt(warm, 64, &range);
    struct loader slow = {.b = &b, .prompt = &pc};
    fake_tier_gate(&b.plan, FAKE_ALL);
    pthread_create(&slow.thread, NULL, load_all, &slow);
    fake_tier_gate_wait(&b.plan, 1);
    for (int i = 0; i < 100; i++) {
        CHECK_INT(kit_find_segment(&b.k, cold, 64), 64);
        CHECK_INT(kit_load_and_check(&b.k, &pw), 64);
    }
    uint32_t *fresh = kit_tokens(3, 64);
    CHECK_INT(kit_store_segment(&b.k, fresh, 64), 64);
    CHECK_INT(kit_find_segment(&b.k, fresh, 64), 64);
    fake_tier_gate(&b.plan, 0);
    pthread_join(slow.thread, NULL);
    CHECK_INT(slow.loaded, 64);
    free(cold), free(warm), free(fresh);
    CHECK(below_end(&b));
}

/* ---- misbehaving tiers ---- */

TEST(a_failed_get_is_a_miss_now_and_a_hit_later)
{
    static const int errors[] = {TSR_EIO, TSR_ETIME, TSR_EAGAIN, TSR_ENOMEM};
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    for (size_t i = 0; i < TSRI_COUNT(errors); i++) {
        sink(&b);
        fake_tier_fail(&b.plan, FAKE_GET, 1, 0, errors[i]);
        struct kit_hits hits;
        CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 48);
        CHECK_INT(kit_load(&b.k, &prompt, &hits, 0), errors[i]);
        CHECK_INT(kit_load_and_check(&b.k, &prompt), 48);
    }
    CHECK_INT(kit_stats(&b.k).load_misses, TSRI_COUNT(errors));
    CHECK_INT(kit_stats(&b.k).corrupt, 0);
    free(tokens);
    CHECK(below_end(&b));
}

/* ---- deadlines ---- */

TEST(a_load_that_comes_too_late_is_a_miss_and_counted)
{
    struct below b;
    below_open(&b, (const char *const[]){"tier_load_ms", "10", NULL});
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_segment(&b.k, tokens, 48), 48);
    struct tsr_range whole = {0, 48};
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 48, &whole);
    struct kit_hits hits;
    sink(&b);
    atomic_store(&b.plan.delay_calls, FAKE_GET);
    atomic_store(&b.plan.delay_us, 30000);
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 48);
    CHECK_INT(kit_load(&b.k, &prompt, &hits, 0), TSR_ETIME);
    CHECK_INT(counter(&b, TSRI_M_tier_timeouts), 1);
    CHECK_INT(counter(&b, TSRI_M_tier_errors), 0);
    CHECK_INT(kit_stats(&b.k).load_misses, 1);
    atomic_store(&b.plan.delay_us, 0);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 48); /* it was not dropped for that */
    free(tokens);
    CHECK(below_end(&b));
}

/* The tier ignores its deadlines: it sits on a call for as long as the gate is shut. */
TEST(a_tier_that_does_not_answer_holds_up_one_thread_only)
{
    struct below b;
    below_open(&b, (const char *const[]){"tier_load_ms", "20", NULL});
    uint32_t *one = kit_tokens(1, 64), *two = kit_tokens(2, 64);
    CHECK_INT(kit_store_segment(&b.k, one, 64), 64);
    CHECK_INT(kit_store_segment(&b.k, two, 64), 64);
    struct tsr_range whole = {0, 64};
    struct tsr_prompt p1 = kit_segment_prompt(one, 64, &whole);
    struct tsr_prompt p2 = kit_segment_prompt(two, 64, &whole);
    struct kit_hits hits;
    sink(&b);
    struct loader stuck = {.b = &b, .prompt = &p1};
    fake_tier_gate(&b.plan, FAKE_GET);
    pthread_create(&stuck.thread, NULL, load_all, &stuck);
    fake_tier_gate_wait(&b.plan, 1);
    /* Who wants the same entry waits for that flight until its own deadline. */
    CHECK_INT(kit_lookup(&b.k, &p1, 0, &hits), 64);
    CHECK_INT(kit_load(&b.k, &p1, &hits, 0), TSR_ETIME);
    CHECK_INT(counter(&b, TSRI_M_tier_timeouts), 1);
    /* Who wants another does not even ask. */
    CHECK_INT(kit_lookup(&b.k, &p2, 0, &hits), 64);
    CHECK_INT(kit_load(&b.k, &p2, &hits, 0), TSR_EAGAIN);
    CHECK_INT(counter(&b, TSRI_M_tier_refused), 1);
    CHECK_INT(b.plan.n_now_max, 1);
    fake_tier_gate(&b.plan, 0);
    pthread_join(stuck.thread, NULL);
    CHECK(stuck.loaded <= 0); /* the tier found it late */
    CHECK_INT(kit_load_and_check(&b.k, &p1), 64);
    CHECK_INT(kit_load_and_check(&b.k, &p2), 64);
    free(one), free(two);
    CHECK(below_end(&b));
}

TEST(what_a_tier_has_lost_is_forgotten_with_what_stands_behind_it)
{
    static const int errors[] = {TSR_ENOENT, TSR_ECORRUPT};
    for (size_t i = 0; i < TSRI_COUNT(errors); i++) {
        struct below b;
        below_open(&b, NULL);
        uint32_t *tokens = kit_tokens(1, 64);
        CHECK_INT(kit_store_prefix(&b.k, tokens, 64), 64);
        sink(&b);
        struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
        struct kit_hits hits;
        CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 64);
        fake_tier_fail(&b.plan, FAKE_GET, 1, 0, errors[i]);
        CHECK_INT(kit_load(&b.k, &prompt, &hits, 1), errors[i]);
        CHECK_INT(kit_load(&b.k, &prompt, &hits, 2), TSR_ENOENT);
        CHECK_INT(kit_load(&b.k, &prompt, &hits, 1), TSR_ENOENT);
        CHECK_INT(kit_find_prefix(&b.k, tokens, 64), 16);
        CHECK_INT(kit_stats(&b.k).corrupt, errors[i] == TSR_ECORRUPT);
        CHECK_INT(kit_stats(&b.k).dropped, 3);
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        CHECK_INT(b.plan.mem.n_items, 1);
        /* The place is free to be filled again. */
        CHECK_INT(kit_store_prefix(&b.k, tokens, 64), 48);
        CHECK_INT(kit_load_and_check(&b.k, &prompt), 64);
        free(tokens);
        CHECK(below_end(&b));
    }
}

TEST(damaged_kv_is_dropped_and_never_returned)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 40);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 40, &range);
    struct tsr_key key;
    CHECK_INT(tsr_space_keys(b.k.space, &prompt, &key, 1), 1);
    for (uint64_t bit = 0; bit < 40 * 256 * 8; bit += 12345) {
        CHECK_INT(kit_store_segment(&b.k, tokens, 40), 40);
        sink(&b);
        CHECK(mem_tier_store_damage(&b.plan.mem, &key, bit));
        CHECK_INT(kit_load_and_check(&b.k, &prompt), 0);
        CHECK_INT(kit_find_segment(&b.k, tokens, 40), 0);
        CHECK_INT(tsr_cache_flush(b.k.cache), 0);
        CHECK_INT(b.plan.mem.n_items, 0);
    }
    CHECK(kit_stats(&b.k).corrupt > 5);
    free(tokens);
    CHECK(below_end(&b));
}

/* ---- dropped, cleared or full on the way ---- */

TEST(an_entry_on_its_way_up_is_not_cleared)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_segment(&b.k, tokens, 64), 64);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 64, &range);
    struct loader loader = {.b = &b, .prompt = &prompt};
    fake_tier_gate(&b.plan, FAKE_GET);
    pthread_create(&loader.thread, NULL, load_all, &loader);
    fake_tier_gate_wait(&b.plan, 1);
    /* The reader has it pinned: clear leaves it alone, and the reader gets it. */
    CHECK_INT(tsr_cache_clear(b.k.cache, NULL), 0);
    fake_tier_gate(&b.plan, 0);
    pthread_join(loader.thread, NULL);
    CHECK_INT(loader.loaded, 64);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(a_load_from_below_needs_room_in_host_memory_and_says_so)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *cold = kit_tokens(1, 64);
    CHECK_INT(kit_store_segment(&b.k, cold, 64), 64);
    sink(&b);
    struct tsr_range range;
    struct tsr_prompt prompt;
    for (uint64_t i = 0; i < 64; i++) { /* every page pinned */
        uint32_t *tokens = kit_tokens(100 + i, 64);
        CHECK_INT(kit_store_segment(&b.k, tokens, 64), 64);
        prompt = kit_segment_prompt(tokens, 64, &range);
        CHECK_INT(tsr_space_pin(b.k.space, &prompt), 1);
        free(tokens);
    }
    struct kit_hits hits;
    prompt = kit_segment_prompt(cold, 64, &range);
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 64);
    CHECK_INT(kit_load(&b.k, &prompt, &hits, 0), TSR_EFULL);
    for (uint64_t i = 0; i < 64; i++) {
        uint32_t *tokens = kit_tokens(100 + i, 64);
        prompt = kit_segment_prompt(tokens, 64, &range);
        CHECK_INT(tsr_space_unpin(b.k.space, &prompt), 1);
        free(tokens);
    }
    CHECK_INT(tsr_cache_flush(b.k.cache), 0); /* what waits to be written is pinned too */
    prompt = kit_segment_prompt(cold, 64, &range);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 64);
    free(cold);
    CHECK(below_end(&b));
}

/* ---- prefetch ---- */

TEST(prefetch_brings_up_what_is_below_and_counts_it)
{
    struct below b;
    below_open(&b, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 96), 96);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 100);
    CHECK_INT(tsr_client_prefetch(b.k.client, b.k.space, &prompt), 0);
    sink(&b);
    CHECK_INT(tsr_client_prefetch(b.k.client, b.k.space, &prompt), 6);
    tsri_work_drain(tsri_ops_work(b.k.cache->ops));
    CHECK_INT(kit_stats(&b.k).tier_entries[0], 6);
    CHECK_INT(b.plan.n_gets, 6);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 96);
    CHECK_INT(b.plan.n_gets, 6);
    CHECK_INT(tsr_client_prefetch(b.k.client, b.k.space, &prompt), 0);
    /* Closing in the middle of one is fine too. */
    sink(&b);
    CHECK_INT(tsr_client_prefetch(b.k.client, b.k.space, &prompt), 6);
    kit_close(&b.k);
    fake_tier_plan_fini(&b.plan);
    free(tokens);
}

/* ---- two tiers ---- */

struct two {
    struct kit k;
    struct fake_tier_plan plans[2];
};

static void two_open(struct two *t, const struct tsr_tier_ops *first)
{
    fake_tier_plan_init_over(&t->plans[0], first, &t->plans[0].mem);
    fake_tier_plan_init(&t->plans[1]);
    kit_open_tiers(&t->k, NULL, t->plans, 2);
}

static bool two_end(struct two *t)
{
    bool ended = kit_end(&t->k) && t->plans[0].mem.n_items == 0 && t->plans[1].mem.n_items == 0;
    for (int i = 0; i < 2; i++)
        fake_tier_plan_fini(&t->plans[i]);
    return ended;
}

TEST(the_second_tier_serves_what_the_first_cannot)
{
    static const int errors[] = {TSR_EIO, TSR_ENOENT, TSR_ECORRUPT};
    for (size_t i = 0; i < TSRI_COUNT(errors); i++) {
        struct two t;
        two_open(&t, &mem_tier);
        uint32_t *tokens = kit_tokens(1, 48);
        CHECK_INT(kit_store_prefix(&t.k, tokens, 48), 48);
        CHECK_INT(tsr_cache_flush(t.k.cache), 0);
        CHECK_INT(kit_evict_all(&t.k), 3);
        struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
        fake_tier_fail(&t.plans[0], FAKE_GET, 1, 100, errors[i]);
        CHECK_INT(kit_load_and_check(&t.k, &prompt), 48);
        CHECK_INT(t.plans[1].n_gets, 3);
        CHECK_INT(tsr_cache_flush(t.k.cache), 0);
        CHECK_INT(t.plans[0].mem.n_items, errors[i] == TSR_EIO ? 3 : 0);
        CHECK_INT(t.plans[1].mem.n_items, 3);
        free(tokens);
        CHECK(two_end(&t));
    }
}

struct two_loader {
    struct two *t;
    const struct tsr_prompt *prompt;
    int loaded;
};

static void *load_two(void *arg)
{
    struct two_loader *l = arg;
    l->loaded = kit_load_and_check(&l->t->k, l->prompt);
    return NULL;
}

/* A get that has read everything and takes its time to return. */
static atomic_bool late_read, late_go;
static int late_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    int r = mem_tier.get(tier, io, n);
    atomic_store(&late_read, true);
    while (!atomic_load(&late_go))
        sched_yield();
    return r;
}

/* The first tier's copy goes while it is being read; the tier's order must survive that. */
TEST(a_copy_may_be_cleared_while_it_is_read)
{
    struct tsr_tier_ops late_tier = mem_tier;
    late_tier.get = late_get;
    struct two t;
    two_open(&t, &late_tier);
    uint32_t *tokens[4];
    struct tsr_range range;
    for (uint64_t i = 0; i < 4; i++) {
        tokens[i] = kit_tokens(1 + i, 32);
        CHECK_INT(kit_store_segment(&t.k, tokens[i], 32), 32);
    }
    CHECK_INT(tsr_cache_flush(t.k.cache), 0);
    CHECK_INT(kit_evict_all(&t.k), 4);
    struct tsr_prompt prompt = kit_segment_prompt(tokens[1], 32, &range);
    struct two_loader loader = {.t = &t, .prompt = &prompt};
    pthread_t thread;
    pthread_create(&thread, NULL, load_two, &loader);
    while (!atomic_load(&late_read))
        sched_yield();
    const struct tsr_clear_desc first = {.size = sizeof first, .tier = 1};
    CHECK_INT(tsr_cache_clear(t.k.cache, &first), 4);
    atomic_store(&late_go, true);
    pthread_join(thread, NULL);
    CHECK_INT(loader.loaded, 32);
    CHECK_INT(kit_stats(&t.k).tier_entries[1], 0);
    uint32_t order[8];
    struct tsri_policy *policy = t.k.cache->manager->lower[1].policy;
    CHECK_INT(policy->ops->order(policy, order, 8), 0);
    for (int i = 0; i < 4; i++) {
        prompt = kit_segment_prompt(tokens[i], 32, &range);
        CHECK_INT(kit_load_and_check(&t.k, &prompt), 32);
        free(tokens[i]);
    }
    CHECK(two_end(&t));
}

/* A get that fails after its first layer, whose copy was computed elsewhere in a prompt. */
static uint32_t half_moved;
static void (*half_layer_done)(struct tsr_tier_io *io, uint32_t layer);
static int (*half_head_done)(struct tsr_tier_io *io);

static int half_head(struct tsr_tier_io *io)
{
    io->head.base += half_moved;
    return half_head_done(io);
}

static void half_layer(struct tsr_tier_io *io, uint32_t layer)
{
    if (layer == 0) half_layer_done(io, layer);
}

static int half_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    half_head_done = io->head_done;
    half_layer_done = io->layer_done;
    io->head_done = half_head;
    io->layer_done = half_layer;
    int r = mem_tier.get(tier, io, n);
    io->result = TSR_EIO;
    return r < 0 ? r : 0;
}

/* Which base each layer that was handed on had. */
struct layers {
    uint32_t n, bases[2];
};

static void note_layer(struct tsri_fetch *f, struct tsri_meta *meta, uint32_t layer)
{
    struct layers *l = f->arg;
    l->bases[layer] = meta->base;
    l->n++;
}

/* Whoever rotates K layer by layer has one base for all of them. */
TEST(layers_of_two_tiers_are_not_mixed_unless_they_have_the_same_base)
{
    struct tsr_tier_ops half_tier = mem_tier;
    half_tier.get = half_get;
    for (half_moved = 0; half_moved < 2; half_moved++) {
        struct two t;
        two_open(&t, &half_tier);
        uint32_t *tokens = kit_tokens(1, 32);
        CHECK_INT(kit_store_segment(&t.k, tokens, 32), 32);
        CHECK_INT(tsr_cache_flush(t.k.cache), 0);
        CHECK_INT(kit_evict_all(&t.k), 1);
        struct tsr_range range;
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 32, &range);
        struct kit_hits hits;
        CHECK_INT(kit_lookup(&t.k, &prompt, 0, &hits), 32);
        struct layers layers = {0};
        struct tsri_fetch f = {.layer_done = note_layer, .arg = &layers};
        CHECK(tsri_pin_match(t.k.cache, &hits.matches[0], &f.id) != TSRI_FREE);
        tsri_manager_fetch(t.k.cache, &f, 1);
        tsri_unpin(t.k.cache, f.id);
        CHECK_INT(f.result, half_moved ? TSR_ENOENT : 0);
        CHECK_INT(layers.n, half_moved ? 1 : 2);
        CHECK(half_moved || layers.bases[1] == layers.bases[0]);
        CHECK_INT(kit_stats(&t.k).tier_entries[1], 1); /* no copy is dropped for it */
        CHECK_INT(kit_stats(&t.k).tier_entries[2], 1);
        CHECK_INT(kit_metric(&t.k, TSRI_M_collisions), 0);
        free(tokens);
        CHECK(two_end(&t));
    }
}

int main(void)
{
    RUN(every_kind_of_entry_comes_back_from_a_tier);
    RUN(base_and_frequency_set_come_back_too);
    RUN(a_match_that_is_only_nominated_has_the_right_base_or_none);
    RUN(a_part_of_an_entry_is_loaded_from_a_tier);
    RUN(a_verified_match_is_loaded_without_a_prompt_after_its_entry_went_down);
    RUN(a_match_that_is_not_verified_is_compared_by_load);
    RUN(one_get_serves_all_who_want_the_entry);
    RUN(one_load_may_name_an_entry_several_times);
    RUN(a_slow_tier_does_not_hold_up_lookups_stores_or_loads_from_memory);
    RUN(a_failed_get_is_a_miss_now_and_a_hit_later);
    RUN(a_load_that_comes_too_late_is_a_miss_and_counted);
    RUN(a_tier_that_does_not_answer_holds_up_one_thread_only);
    RUN(what_a_tier_has_lost_is_forgotten_with_what_stands_behind_it);
    RUN(damaged_kv_is_dropped_and_never_returned);
    RUN(an_entry_on_its_way_up_is_not_cleared);
    RUN(a_load_from_below_needs_room_in_host_memory_and_says_so);
    RUN(prefetch_brings_up_what_is_below_and_counts_it);
    RUN(the_second_tier_serves_what_the_first_cannot);
    RUN(a_copy_may_be_cleared_while_it_is_read);
    RUN(layers_of_two_tiers_are_not_mixed_unless_they_have_the_same_base);
    return test_end();
}
