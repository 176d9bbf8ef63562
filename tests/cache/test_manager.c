/* The tiers below a cache as a whole: opening several, taking in what they hold from an earlier
 * run, tying chains again, and clearing one tier at a time. The stores of the tiers outlive the
 * cache, as a disk would. */
#include "cache/manager.h"
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/fakegpu.h"
#include "support/lock_kit.h"
#include "support/test.h"
#include "support/tmpdir.h"

enum { TIERS_MAX = 2 };
struct below {
    struct kit k;
    struct fake_tier_plan plans[TIERS_MAX];
    uint32_t n_tiers;
    const char *const *options;
};

static void below_open(struct below *b, const char *const *options, uint32_t n_tiers)
{
    b->n_tiers = n_tiers;
    b->options = options;
    for (uint32_t i = 0; i < TIERS_MAX; i++)
        fake_tier_plan_init(&b->plans[i]);
    kit_open_tiers(&b->k, options, b->plans, n_tiers);
}

static void restart(struct below *b)
{
    kit_close(&b->k);
    kit_open_tiers(&b->k, b->options, b->plans, b->n_tiers);
}

static void below_fini(struct below *b)
{
    for (uint32_t i = 0; i < TIERS_MAX; i++)
        fake_tier_plan_fini(&b->plans[i]);
}

static bool below_end(struct below *b)
{
    bool ended = kit_end(&b->k) && b->plans[0].mem.n_items == 0 && b->plans[1].mem.n_items == 0;
    below_fini(b);
    return ended;
}

static struct tsr_key nth_key(struct below *b, const struct tsr_prompt *prompt, uint32_t nth)
{
    struct tsr_key keys[64];
    CHECK(tsr_space_keys(b->k.space, prompt, keys, 64) > (int)nth);
    return keys[nth];
}

/* ---- restarts ---- */

TEST(what_was_written_is_found_after_a_restart)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 160), *doc = kit_tokens(2, 77), *system = kit_tokens(3, 5);
    uint32_t both[5 + 77];
    memcpy(both, system, 5 * sizeof both[0]);
    memcpy(both + 5, doc, 77 * sizeof both[0]);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 160), 160);
    CHECK_INT(kit_store_segment(&b.k, doc, 77), 77);
    CHECK_INT(kit_store_behind(&b.k, system, 5, doc, 77), 77);
    struct tsr_range range, two[] = {{0, 5}, {5, 77}};
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, 160);
    struct tsr_prompt pure = kit_segment_prompt(doc, 77, &range);
    struct tsr_prompt behind = kit_segment_prompt(both, 82, &range);
    range = (struct tsr_range){0, 77};
    behind.segments = two;
    behind.n_segments = 2;
    behind.flags |= TSR_PROMPT_CONTEXT;
    for (int round = 0; round < 3; round++) {
        restart(&b);
        struct tsr_stats s = kit_stats(&b.k);
        CHECK_INT(s.entries, 12);
        CHECK_INT(s.tier_entries[0], 0);
        CHECK_INT(s.tier_entries[1], 12);
        CHECK(kit_valid(&b.k));
        CHECK_INT(kit_load_and_check(&b.k, &prefix), 160);
        CHECK_INT(kit_load_and_check(&b.k, &pure), 77);
        CHECK_INT(kit_load_and_check(&b.k, &behind), 77);
        /* It is the same entry: stored again it is a duplicate, and goes on from there. */
        CHECK_INT(kit_store_prefix(&b.k, tokens, 160), 0);
        CHECK_INT(kit_stats(&b.k).corrupt, 0);
    }
    free(tokens), free(doc), free(system);
    CHECK(below_end(&b));
}

/* By the checkpoint, and by a walk over the records. */
TEST(what_computing_cost_is_known_after_a_restart)
{
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const options[] = {"disk_path", dir.path, "disk_size", "1G", NULL};
    uint32_t *tokens = kit_tokens(1, 64), *doc = kit_tokens(2, 40);
    struct kit k;
    kit_open(&k, options);
    struct tsr_store_desc s = {
        .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 64, .cost_s = 2};
    CHECK_INT(kit_store(&k, &s), 64);
    CHECK_INT(kit_store_segment(&k, doc, 40), 40);
    for (int round = 0; round < 2; round++) {
        CHECK_INT(tsr_cache_flush(k.cache), 0);
        kit_close(&k);
        char path[300];
        snprintf(path, sizeof path, "%s/checkpoint", dir.path);
        if (round) CHECK_INT(unlink(path), 0);
        kit_open(&k, options);
        uint32_t n = 0;
        for (uint32_t id = 0; id < k.cache->ids_fresh; id++) {
            const struct tsri_entry *e = &k.cache->entries[id];
            CHECK(e->cost_s == (e->kind == TSR_KIND_PREFIX ? 0.5f : 0));
            n += e->kind == TSR_KIND_PREFIX;
        }
        CHECK_INT(n, 4);
        struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64);
        CHECK_INT(kit_load_and_check(&k, &prompt), 64);
    }
    kit_close(&k);
    tmpdir_fini(&dir);
    free(tokens), free(doc);
}

TEST(a_chain_grows_behind_blocks_of_an_earlier_run)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 96);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    restart(&b);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 64), 16); /* behind blocks that are not in memory */
    CHECK_INT(kit_store(&b.k,
                        &(struct tsr_store_desc){
                            .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 96, .from = 64}),
              32);
    restart(&b);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 96);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 96);
    /* They are one chain: the first block takes all with it. */
    prompt.n_tokens = 16;
    const struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = b.k.space, .prompt = &prompt, .tier = -1};
    CHECK_INT(tsr_cache_clear(b.k.cache, &clear), 6);
    CHECK_INT(b.plans[0].mem.n_items, 0);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(blocks_whose_parent_is_gone_are_not_listed_at_open)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 96), *other = kit_tokens(2, 20);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 96), 96);
    CHECK_INT(kit_store_segment(&b.k, other, 20), 20);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 96);
    struct tsr_key third = nth_key(&b, &prompt, 2);
    kit_close(&b.k);
    /* The third block is lost behind the cache's back. */
    struct tsr_tier *tier;
    CHECK_INT(mem_tier.open(&tier, &(struct tsr_tier_desc){.arg = &b.plans[0].mem}), 0);
    CHECK_INT(mem_tier.drop(tier, &(struct tsr_tier_ref){.key = third}, 1), 1);
    mem_tier.close(tier);
    kit_open_tiers(&b.k, NULL, b.plans, 1);
    CHECK_INT(kit_stats(&b.k).entries, 3);
    CHECK_INT(kit_stats(&b.k).dropped, 0);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 32);
    CHECK_INT(kit_find_segment(&b.k, other, 20), 20);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(b.plans[0].mem.n_items, 3); /* this tier cannot unlist */
    CHECK_INT(kit_store_prefix(&b.k, tokens, 96), 64);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 96);
    free(tokens), free(other);
    CHECK(below_end(&b));
}

/* A link in the place of a segment is not a file of the store; what was there is moved aside. */
static void hide_segment(const struct tmpdir *dir, uint32_t id, bool hide)
{
    char path[300], aside[300];
    snprintf(path, sizeof path, "%s/%016x.seg", dir->path, id);
    snprintf(aside, sizeof aside, "%s/aside", dir->path);
    if (!hide) CHECK_INT(unlink(path), 0);
    CHECK_INT(hide ? rename(path, aside) : rename(aside, path), 0);
    if (hide) CHECK_INT(symlink("aside", path), 0);
}

/* What was acknowledged in other segments is still there when the one left out is back, whatever
 * was stored meanwhile. */
TEST(a_segment_left_out_once_costs_no_blocks_in_others)
{
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    enum { N = 16 * 400 };
    const char *const options[] = {"disk_path", dir.path, "disk_size",         "64M",
                                   "host_size", "16M",    "disk_segment_size", "1M",
                                   NULL};
    uint32_t *chain = kit_tokens(1, N), *other = kit_tokens(2, 64);
    struct tsr_prompt prompt = kit_prefix_prompt(chain, N), second = kit_prefix_prompt(other, 64);
    struct kit k;
    kit_open(&k, options);
    CHECK_INT(kit_store_prefix(&k, chain, N), N);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    kit_close(&k);
    for (int round = 0; round < 3; round++) {
        hide_segment(&dir, 1, true);
        kit_open(&k, options);
        CHECK_INT(kit_find_prefix(&k, chain, N), 0);
        CHECK_INT(kit_stats(&k).dropped, 0);
        if (round == 1) CHECK_INT(kit_store_prefix(&k, other, 64), 64);
        if (round == 2) CHECK_INT(kit_store_prefix(&k, chain, 64), 64);
        CHECK_INT(tsr_cache_flush(k.cache), 0);
        kit_close(&k);
        hide_segment(&dir, 1, false);
        kit_open(&k, options);
        CHECK_INT(kit_load_and_check(&k, &prompt), N);
        if (round) CHECK_INT(kit_load_and_check(&k, &second), 64);
        kit_close(&k);
    }
    free(chain), free(other);
    tmpdir_fini(&dir);
}

TEST(entries_of_a_space_that_is_not_open_wait_for_it)
{
    struct below b;
    below_open(&b, NULL, 1);
    struct tsr_space_desc desc = kit_desc();
    desc.model = "another";
    desc.n_layers = 3;
    struct tsr_space *other = kit_space(b.k.cache, &desc);
    uint32_t *tokens = kit_tokens(1, 48);
    struct tsr_store_desc s = {
        .space = other, .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 48};
    CHECK_INT(kit_store(&b.k, &s), 48);
    tsr_space_close(other);
    restart(&b);
    CHECK_INT(kit_find_prefix(&b.k, tokens, 48), 0);
    CHECK_INT(kit_stats(&b.k).entries, 3);
    struct tsr_space *own = b.k.space;
    b.k.space = kit_space(b.k.cache, &desc);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 48);
    tsr_space_close(b.k.space);
    b.k.space = own;
    free(tokens);
    CHECK(below_end(&b));
}

TEST(a_smaller_index_takes_in_what_fits)
{
    struct below b;
    below_open(&b, NULL, 1);
    for (uint64_t i = 0; i < 50; i++) {
        uint32_t *tokens = kit_tokens(i, 20);
        CHECK_INT(kit_store_segment(&b.k, tokens, 20), 20);
        free(tokens);
    }
    b.options = (const char *const[]){"entries_max", "16", NULL};
    restart(&b);
    CHECK_INT(kit_stats(&b.k).entries, 16);
    int found = 0;
    for (uint64_t i = 0; i < 50; i++) {
        uint32_t *tokens = kit_tokens(i, 20);
        struct tsr_range range;
        struct tsr_prompt prompt = kit_segment_prompt(tokens, 20, &range);
        found += kit_load_and_check(&b.k, &prompt);
        free(tokens);
    }
    CHECK_INT(found, 16 * 20);
    CHECK(kit_end(&b.k));
    /* What did not fit was not this cache's to delete. */
    CHECK_INT(b.plans[0].mem.n_items, 34);
    below_fini(&b);
}

/* Ways to open a store with less room in memory than was there when it was written. Nothing of it
 * is lost, however often that is done and whatever is stored meanwhile. */
TEST(what_memory_cannot_hold_stays_on_disk)
{
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    enum { CHAINS = 6, BLOCKS = 20, DOCS = 80 };
    const char *const full[] = {"disk_path", dir.path,    "disk_size", "1G", "entries_max",
                                "4096",      "host_size", "8M",        NULL};
    const char *const few[] = {"disk_path", dir.path, "disk_size", "1G", "entries_max", "40", NULL};
    const char *const one_space[] = {"disk_path",  dir.path, "disk_size", "1G",
                                     "spaces_max", "1",      NULL};
    const char *const pages[] = {"disk_path", dir.path,         "disk_size", "1G", "host_size",
                                 "1M",        "host_page_size", "256K",      NULL};
    const char *const *const ways[] = {few, one_space, pages, few};
    uint32_t *chains[CHAINS], *docs[DOCS];
    struct kit k;
    kit_open(&k, full);
    for (uint64_t i = 0; i < CHAINS; i++) {
        chains[i] = kit_tokens(i, 16 * BLOCKS);
        CHECK_INT(kit_store_prefix(&k, chains[i], 16 * BLOCKS), 16 * BLOCKS);
    }
    for (uint64_t i = 0; i < DOCS; i++) {
        docs[i] = kit_tokens(100 + i, 40);
        CHECK_INT(kit_store_segment(&k, docs[i], 40), 40);
    }
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(kit_stats(&k).tier_entries[1], CHAINS * BLOCKS + DOCS);
    kit_close(&k);
    uint32_t n_more = 0;
    for (size_t way = 0; way < TSRI_COUNT(ways); way++) {
        kit_open(&k, ways[way]);
        CHECK(kit_valid(&k));
        for (int i = 0; i < 30; i++) {
            uint32_t *more = kit_tokens(1000 + n_more++, 32);
            CHECK_INT(kit_store_segment(&k, more, 32), 32);
            CHECK_INT(tsr_cache_flush(k.cache), 0);
            free(more);
            if (i % 8 == 7) kit_evict_all(&k);
        }
        kit_close(&k);
    }
    kit_open(&k, full);
    CHECK_INT(kit_stats(&k).tier_entries[1], CHAINS * BLOCKS + DOCS + n_more);
    for (uint64_t i = 0; i < CHAINS; i++) {
        struct tsr_prompt prompt = kit_prefix_prompt(chains[i], 16 * BLOCKS);
        CHECK_INT(kit_load_and_check(&k, &prompt), 16 * BLOCKS);
        free(chains[i]);
    }
    for (uint64_t i = 0; i < DOCS; i++) {
        CHECK_INT(kit_find_segment(&k, docs[i], 40), 40);
        free(docs[i]);
    }
    CHECK_INT(kit_stats(&k).corrupt, 0);
    kit_close(&k);
    tmpdir_fini(&dir);
}

/* The index has room for the last two of four chains, and takes them whole. */
TEST(a_small_index_takes_what_was_used_last_from_the_front)
{
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const full[] = {"disk_path", dir.path, "disk_size", "1G", NULL};
    const char *const few[] = {"disk_path", dir.path, "disk_size", "1G", "entries_max", "16", NULL};
    uint32_t *chains[4];
    struct kit k;
    kit_open(&k, full);
    for (uint64_t i = 0; i < 4; i++) {
        chains[i] = kit_tokens(i, 160);
        CHECK_INT(kit_store_prefix(&k, chains[i], 160), 160);
    }
    kit_close(&k);
    kit_open(&k, few);
    CHECK_INT(kit_find_prefix(&k, chains[3], 160), 160);
    CHECK_INT(kit_find_prefix(&k, chains[2], 160), 96);
    CHECK_INT(kit_find_prefix(&k, chains[1], 160), 0);
    (void)kit_stats(&k);
    CHECK_INT(kit_metric(&k, TSRI_M_disk_entries), 40);
    CHECK_INT(kit_metric(&k, TSRI_M_disk_unlisted_entries), 24);
    CHECK_INT(kit_metric(&k, TSRI_M_disk_bytes), 1 << 30);
    CHECK(kit_metric(&k, TSRI_M_disk_used_bytes) > 0);
    CHECK_INT(kit_metric(&k, TSRI_M_disk2_entries), 0);
    /* What the index does not know is cleared too: of a prompt, and all. */
    struct tsr_prompt oldest = kit_prefix_prompt(chains[0], 160);
    struct tsr_clear_desc of_prompt = {
        .size = sizeof of_prompt, .space = k.space, .tier = -1, .prompt = &oldest};
    CHECK_INT(tsr_cache_clear(k.cache, &of_prompt), 10);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 30);
    kit_close(&k);
    kit_open(&k, full);
    CHECK_INT(kit_stats(&k).entries, 0);
    kit_close(&k);
    for (int i = 0; i < 4; i++)
        free(chains[i]);
    tmpdir_fini(&dir);
}

/* A disk of so many entries, filled, closed and opened: what goes next is what was used longest
 * ago, as it would have been without the restart. */
TEST(after_a_restart_a_full_disk_gives_up_what_was_used_longest_ago)
{
    struct tmpdir dir;
    tmpdir_init_fast(&dir);
    const char *const options[] = {
        "disk_path",  dir.path, "disk_size",         "64M", "host_size",      "32M",
        "io_threads", "1",      "disk_segment_size", "1M",  "host_page_size", "256K",
        NULL};
    struct tsr_space_desc wide = kit_desc();
    wide.n_layers = 16;
    wide.k_dim = 256; /* 1 MiB an entry of 32 tokens */
    struct kit k;
    uint32_t n = 0;
    for (int round = 0; round < 3; round++) {
        kit_open(&k, options);
        struct tsr_space *own = k.space;
        k.space = kit_space(k.cache, &wide);
        uint32_t until = round ? n + 10 : 60; /* the first round is more than fits */
        for (; n < until; n++) {
            uint32_t *tokens = kit_tokens(n, 32);
            CHECK_INT(kit_store_segment(&k, tokens, 32), 32);
            CHECK_INT(tsr_cache_flush(k.cache), 0);
            free(tokens);
        }
        kit_evict_all(&k);
        /* Those that are left are the last ones. */
        uint64_t left = kit_stats(&k).tier_entries[1];
        CHECK(left > 20 && left < n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t *tokens = kit_tokens(i, 32);
            CHECK_INT(kit_find_segment(&k, tokens, 32), i >= n - left ? 32 : 0);
            free(tokens);
        }
        tsr_space_close(k.space);
        k.space = own;
        kit_close(&k);
    }
    tmpdir_fini(&dir);
}

TEST(a_scan_that_fails_is_a_cache_without_a_past)
{
    struct below b;
    below_open(&b, NULL, 1);
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    kit_close(&b.k);
    fake_tier_fail(&b.plans[0], FAKE_SCAN, 1, 0, TSR_EIO);
    kit_open_tiers(&b.k, NULL, b.plans, 1);
    CHECK_INT(kit_find_prefix(&b.k, tokens, 48), 0);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    restart(&b);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 48);
    free(tokens);
    CHECK(below_end(&b));
}

/* ---- heads that nobody should have written ---- */

static struct tsr_entry_head heads[8];
static uint32_t n_heads;

static int odd_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    (void)tier;
    for (uint32_t i = 0; i < n_heads; i++)
        if (fn(arg, &heads[i], i + 1, 100) < 0) return TSR_EIO;
    return 0;
}

static struct tsr_entry_head odd_head(uint8_t name, uint8_t parent, uint32_t kind)
{
    struct tsr_entry_head h = {.kind = kind, .n_tokens = 16, .cell_tokens = 64, .n_layers = 2};
    h.n_planes = 2;
    h.row_bytes[0] = h.row_bytes[1] = 64;
    memset(h.key.bytes, name, sizeof h.key.bytes);
    memset(h.parent.bytes, parent, sizeof h.parent.bytes);
    return h;
}

/* Blocks that are each other's parents, their own parent, or behind a segment. A cache that follows
 * them walks for ever. */
TEST(chains_that_bite_their_tails_are_dropped_at_open)
{
    struct tsr_tier_ops odd_tier = mem_tier;
    odd_tier.scan = odd_scan;
    heads[0] = odd_head(1, 2, TSR_KIND_PREFIX);
    heads[1] = odd_head(2, 3, TSR_KIND_PREFIX);
    heads[2] = odd_head(3, 1, TSR_KIND_PREFIX);
    heads[3] = odd_head(4, 4, TSR_KIND_PREFIX);
    heads[4] = odd_head(5, 1, TSR_KIND_PREFIX); /* hangs on the circle */
    heads[5] = odd_head(6, 0, TSR_KIND_PREFIX); /* the only honest one */
    heads[6] = odd_head(7, 6, TSR_KIND_PREFIX); /* and its child */
    heads[7] = odd_head(8, 7, TSR_KIND_SEGMENT);
    n_heads = 8;
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_tier_attach(cfg, &odd_tier, NULL), 0);
    struct kit k;
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    CHECK_INT(kit_stats(&k).entries, 2);
    CHECK_INT(kit_stats(&k).dropped, 6);
    CHECK(kit_valid(&k));
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 2);
    CHECK(kit_end(&k));
}

TEST(heads_of_no_possible_entry_are_passed_over)
{
    struct tsr_tier_ops odd_tier = mem_tier;
    odd_tier.scan = odd_scan;
    for (uint32_t i = 0; i < 8; i++)
        heads[i] = odd_head((uint8_t)(i + 1), 0, TSR_KIND_SEGMENT);
    heads[0].n_tokens = 0;
    heads[1].n_tokens = UINT32_MAX;
    heads[2].cell_tokens = 0;
    heads[3].n_layers = UINT32_MAX;
    heads[4].row_bytes[0] = UINT32_MAX;
    heads[5].extra_bytes = UINT32_MAX;
    heads[6].kind = 99;
    n_heads = 8;
    struct tsr_config *cfg = kit_config(NULL);
    CHECK_INT(tsr_tier_attach(cfg, &odd_tier, NULL), 0);
    struct kit k;
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    CHECK_INT(kit_stats(&k).entries, 1);
    CHECK(kit_end(&k));
}

/* ---- several tiers ---- */

TEST(a_tier_opened_later_with_the_same_entries_is_a_second_copy)
{
    struct below b;
    below_open(&b, NULL, 2);
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    restart(&b);
    struct tsr_stats s = kit_stats(&b.k);
    CHECK_INT(s.entries, 3);
    CHECK_INT(s.tier_entries[1], 3);
    CHECK_INT(s.tier_entries[2], 3);
    CHECK_INT(s.tokens_cached, 48); /* once, although two tiers have it */
    CHECK_INT(s.tier_tokens[0], 0);
    CHECK_INT(s.tier_tokens[1], 48);
    CHECK_INT(s.tier_tokens[2], 48);
    struct kit_hits hits;
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    CHECK_INT(kit_lookup(&b.k, &prompt, 0, &hits), 48);
    CHECK_INT(hits.matches[0].tier, 1); /* the fastest that has it */
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 48);
    CHECK_INT(b.plans[0].n_gets, 3);
    CHECK_INT(b.plans[1].n_gets, 0);
    free(tokens);
    CHECK(below_end(&b));
}

static int clear_tier(struct below *b, int32_t tier)
{
    return tsr_cache_clear(
        b->k.cache, &(struct tsr_clear_desc){.size = sizeof(struct tsr_clear_desc), .tier = tier});
}

TEST(clear_takes_one_tier_at_a_time)
{
    struct below b;
    below_open(&b, NULL, 2);
    uint32_t *tokens = kit_tokens(1, 48);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    struct tsr_key keys[3];
    int8_t tiers[3];
    CHECK_INT(tsr_space_keys(b.k.space, &prompt, keys, 3), 3);
    CHECK_INT(tsr_cache_contains(b.k.cache, keys, 3, tiers), 0);
    CHECK_INT(tiers[0], -1);
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    CHECK_INT(tsr_cache_flush(b.k.cache), 0);
    CHECK_INT(tsr_cache_contains(b.k.cache, keys, 3, tiers), 3);
    CHECK_INT(tiers[0], 0);

    CHECK_INT(clear_tier(&b, 0), 3);
    CHECK_INT(kit_stats(&b.k).host_bytes_used, 0);
    CHECK_INT(tsr_cache_contains(b.k.cache, keys, 3, tiers), 3);
    CHECK_INT(tiers[1], 1);
    CHECK_INT(clear_tier(&b, 0), 0);
    CHECK_INT(clear_tier(&b, 1), 3);
    CHECK_INT(b.plans[0].mem.n_items, 0);
    CHECK_INT(tsr_cache_contains(b.k.cache, keys, 3, tiers), 3);
    CHECK_INT(tiers[2], 2);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 48);
    CHECK_INT(clear_tier(&b, 1), 0);
    CHECK_INT(clear_tier(&b, 3), 0); /* there is no such tier here */
    CHECK_INT(clear_tier(&b, 2), 3);
    CHECK_INT(b.plans[1].mem.n_items, 0);
    CHECK_INT(kit_load_and_check(&b.k, &prompt), 48); /* still in host memory */
    CHECK_INT(clear_tier(&b, -1), 3);
    CHECK_INT(kit_find_prefix(&b.k, tokens, 48), 0);
    CHECK_INT(tsr_cache_contains(b.k.cache, keys, 3, tiers), 0);
    /* The last copy takes the entry with it, and what stands behind it. */
    CHECK_INT(kit_store_prefix(&b.k, tokens, 48), 48);
    CHECK_INT(clear_tier(&b, 2), 3);
    CHECK_INT(clear_tier(&b, 0), 3);
    CHECK_INT(clear_tier(&b, 1), 3);
    CHECK_INT(kit_stats(&b.k).entries, 0);
    free(tokens);
    CHECK(below_end(&b));
}

TEST(no_more_tiers_than_the_limit)
{
    struct fake_tier_plan plans[TSR_TIERS_MAX];
    struct tsr_config *cfg = kit_config(NULL);
    for (uint32_t i = 0; i < TSR_TIERS_MAX; i++) {
        fake_tier_plan_init_over(&plans[i], &mem_tier, NULL);
        CHECK_INT(tsr_tier_attach(cfg, &fake_tier, &plans[i]), 0);
    }
    struct tsr_cache *cache;
    CHECK_INT(tsr_cache_open(&cache, cfg), TSR_ERANGE);
    CHECK(cache == NULL);
    tsr_config_close(cfg);
    for (uint32_t i = 0; i < TSR_TIERS_MAX; i++)
        fake_tier_plan_fini(&plans[i]);
}

static int open_fails(struct tsr_tier **out, const struct tsr_tier_desc *desc)
{
    (void)out, (void)desc;
    return TSR_EPERM;
}

TEST(a_tier_that_does_not_open_is_no_cache_and_no_leak)
{
    struct tsr_tier_ops broken = mem_tier, old = mem_tier;
    broken.open = open_fails;
    old.abi = 99;
    const struct tsr_tier_ops *bad[] = {&broken, &old};
    const int errors[] = {TSR_EPERM, TSR_EVERSION};
    for (int i = 0; i < 2; i++) {
        struct tsr_config *cfg = kit_config(NULL);
        struct tsr_cache *cache;
        CHECK_INT(tsr_tier_attach(cfg, &mem_tier, NULL), 0);
        int e = tsr_tier_attach(cfg, bad[i], NULL);
        CHECK_INT(e ? e : tsr_cache_open(&cache, cfg), errors[i]);
        tsr_config_close(cfg);
    }
}

/* ---- the device ---- */

static const char *const on_gpu[] = {"device", "fakegpu", NULL};

static bool wait_locked(struct kit *k)
{
    return tsri_locking_wait(k->cache->locking, SIZE_MAX, tsri_now_ns() + LOCK_SOON_NS);
}

TEST(host_memory_is_locked_for_the_device_until_close)
{
    struct kit k;
    const struct fakegpu_control *gpu = fakegpu_load();
    kit_open(&k, on_gpu);
    CHECK(wait_locked(&k));
    struct tsri_cache_memory memory = tsri_cache_memory(k.cache);
    CHECK_INT(gpu->registered_bytes(), (uint64_t)memory.n_pages * memory.page_bytes);
    kit_stats(&k);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_host_locked_bytes), gpu->registered_bytes());
    kit_close(&k);
    CHECK_INT(gpu->registered_bytes(), 0);
}

TEST(memory_that_cannot_be_locked_is_a_cache_all_the_same)
{
    struct kit k;
    const struct fakegpu_control *gpu = fakegpu_load();
    gpu->register_max(0);
    kit_open(&k, on_gpu);
    CHECK(!wait_locked(&k));
    uint32_t *tokens = kit_tokens(1, 100);
    struct tsr_range segment;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 100, &segment);
    CHECK_INT(kit_store_segment(&k, tokens, 100), 100);
    CHECK_INT(kit_load_and_check(&k, &prompt), 100);
    kit_close(&k);
    free(tokens);
    gpu->reset();
}

int main(void)
{
    RUN(host_memory_is_locked_for_the_device_until_close);
    RUN(memory_that_cannot_be_locked_is_a_cache_all_the_same);
    RUN(what_was_written_is_found_after_a_restart);
    RUN(what_computing_cost_is_known_after_a_restart);
    RUN(a_chain_grows_behind_blocks_of_an_earlier_run);
    RUN(blocks_whose_parent_is_gone_are_not_listed_at_open);
    RUN(a_segment_left_out_once_costs_no_blocks_in_others);
    RUN(entries_of_a_space_that_is_not_open_wait_for_it);
    RUN(a_smaller_index_takes_in_what_fits);
    RUN(what_memory_cannot_hold_stays_on_disk);
    RUN(a_small_index_takes_what_was_used_last_from_the_front);
    RUN(after_a_restart_a_full_disk_gives_up_what_was_used_longest_ago);
    RUN(a_scan_that_fails_is_a_cache_without_a_past);
    RUN(chains_that_bite_their_tails_are_dropped_at_open);
    RUN(heads_of_no_possible_entry_are_passed_over);
    RUN(a_tier_opened_later_with_the_same_entries_is_a_second_copy);
    RUN(clear_takes_one_tier_at_a_time);
    RUN(no_more_tiers_than_the_limit);
    RUN(a_tier_that_does_not_open_is_no_cache_and_no_leak);
    return test_end();
}
