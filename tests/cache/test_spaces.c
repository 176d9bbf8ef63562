/* test_spaces.c - one slot for one description, as long as it is open or has entries; what a cache
 * cannot hold is refused in words and takes no slot. */
#include "cache/core.h"

#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

TEST(the_same_description_gives_the_same_slot)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc d = kit_desc();
    struct tsr_space *again = kit_space(k.cache, &d);
    CHECK(again == k.space);
    CHECK_INT(k.space->refs, 2);
    CHECK_INT(k.cache->n_spaces, 1);
    d.v_dim = 16; /* what 0 means here */
    d.world = 1;
    struct tsr_space *spelled_out = kit_space(k.cache, &d);
    CHECK(spelled_out == k.space);
    tsr_space_close(spelled_out);
    tsr_space_close(again);
    CHECK_INT(k.space->refs, 1);
    kit_close(&k);
}

TEST(one_field_apart_is_another_slot)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc d[] = {kit_desc(), kit_desc(), kit_desc(), kit_desc(), kit_desc()};
    d[0].model = "another";
    d[1].salt = "tenant";
    d[2].rank = 1;
    d[2].world = 2;
    d[3].dtype = TSR_DTYPE_BF16;
    d[4].block_tokens = 32;
    struct tsr_space *spaces[5];
    for (uint32_t i = 0; i < 5; i++) {
        spaces[i] = kit_space(k.cache, &d[i]);
        CHECK(spaces[i] != k.space);
        CHECK_INT(spaces[i]->id, i + 1);
        for (uint32_t j = 0; j < i; j++) {
            CHECK(spaces[i] != spaces[j]);
            CHECK(memcmp(spaces[i]->fingerprint, spaces[j]->fingerprint, 16) != 0);
        }
    }
    CHECK_INT(spaces[4]->block_tokens, 32);
    CHECK_INT(k.space->block_tokens, 16);
    for (uint32_t i = 0; i < 5; i++)
        tsr_space_close(spaces[i]);
    kit_close(&k);
}

TEST(blocks_are_as_long_as_chunk_size_says_when_nobody_says_more)
{
    struct kit k;
    kit_open(&k, (const char *[]){"chunk_size", "48", NULL});
    struct tsr_space_desc d = kit_desc();
    d.block_tokens = 0;
    struct tsr_space *space = kit_space(k.cache, &d);
    CHECK_INT(space->block_tokens, 48);
    d.block_tokens = 48; /* said or left to the option: the same space */
    struct tsr_space *said = kit_space(k.cache, &d);
    CHECK(said == space);
    tsr_space_close(said);
    tsr_space_close(space);
    kit_close(&k);
}

TEST(entries_outlive_their_space_and_are_found_when_it_is_opened_again)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 40);
    CHECK_INT(kit_store_segment(&k, tokens, 40), 40);
    struct tsr_space *before = k.space;
    tsr_space_close(k.space);
    CHECK_INT(before->refs, 0);
    struct tsr_space_desc d = kit_desc();
    k.space = kit_space(k.cache, &d);
    CHECK(k.space == before);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 40, &range);
    CHECK_INT(kit_load_and_check(&k, &prompt), 40);
    free(tokens);
    kit_close(&k);
}

TEST(so_many_spaces_and_no_more)
{
    struct kit k;
    kit_open(&k, (const char *[]){"spaces_max", "3", NULL});
    struct tsr_space_desc a = kit_desc(), b = kit_desc(), c = kit_desc();
    a.salt = "a";
    b.salt = "b";
    c.salt = "c";
    struct tsr_space *first = kit_space(k.cache, &a), *second = kit_space(k.cache, &b), *third;
    CHECK_INT(tsr_space_open(&third, k.cache, &c), TSR_EAGAIN);
    CHECK(third == NULL);
    CHECK_HAS(tsr_errmsg(), "3 spaces are open or in use, the limit (spaces_max)");
    CHECK_INT(tsr_space_open(&third, k.cache, &b), 0); /* known already */
    CHECK(third == second);
    tsr_space_close(third);
    tsr_space_close(second);
    tsr_space_close(first);
    kit_close(&k);
}

TEST(tenants_come_and_go_in_few_slots)
{
    struct kit k;
    kit_open(&k, (const char *[]){"spaces_max", "3", NULL});
    uint32_t *tokens = kit_tokens(1, 40);
    struct tsr_space_desc d = kit_desc();
    d.salt = "stays";
    struct kit stays = {.cache = k.cache, .client = k.client, .space = kit_space(k.cache, &d)};
    CHECK_INT(kit_store_segment(&stays, tokens, 40), 40);
    char salt[32];
    d.salt = salt;
    struct tsr_prompt prompt;
    struct tsr_range range;
    for (uint32_t i = 0; i < 50; i++) {
        snprintf(salt, sizeof salt, "tenant %u", i);
        d.n_heads = 1 + i % 3; /* of another shape than who was there before */
        struct kit t = {.cache = k.cache, .client = k.client, .space = kit_space(k.cache, &d)};
        CHECK_INT(t.space->id, 2);
        CHECK_INT(t.space->shape.row_bytes[0], 32 * d.n_heads);
        CHECK_INT(kit_find_segment(&t, tokens, 40), 0);
        CHECK_INT(kit_store_segment(&t, tokens, 40), 40);
        prompt = kit_segment_prompt(tokens, 40, &range);
        CHECK_INT(kit_load_and_check(&t, &prompt), 40);
        /* As long as an entry names it the slot is taken, dying ones too. */
        struct kit_hits hits;
        CHECK_INT(kit_lookup(&t, &prompt, 0, &hits), 40);
        uint32_t id = tsri_handle_id(hits.matches[0].entry);
        CHECK_INT(tsri_pin(k.cache, id), TSRI_HOST);
        tsr_space_close(t.space);
        pthread_mutex_lock(&k.cache->lock);
        CHECK_INT(tsri_entry_drop(k.cache, id, TSR_EVENT_DROPPED), 1);
        pthread_mutex_unlock(&k.cache->lock);
        struct tsr_space *space;
        snprintf(salt, sizeof salt, "another %u", i);
        CHECK_INT(tsr_space_open(&space, k.cache, &d), TSR_EAGAIN);
        tsri_unpin(k.cache, id);
        CHECK(kit_valid(&k));
    }
    CHECK_INT(kit_load_and_check(&stays, &prompt), 40);
    tsr_space_close(stays.space);
    free(tokens);
    kit_close(&k);
}

/* A space of its own for each name. */
static struct kit named(const struct kit *k, const char *salt)
{
    struct tsr_space_desc d = kit_desc();
    d.salt = salt;
    return (struct kit){.cache = k->cache, .client = k->client, .space = kit_space(k->cache, &d)};
}

/* Opens, stores or finds, and closes again. */
static int visit(const struct kit *k, const char *salt, const uint32_t *tokens, bool store)
{
    struct kit as = named(k, salt);
    int n = store ? kit_store_prefix(&as, tokens, 48) : kit_find_prefix(&as, tokens, 48);
    tsr_space_close(as.space);
    return n;
}

TEST(a_new_space_takes_over_the_one_that_was_closed_longest_ago)
{
    struct kit k;
    kit_open(&k, (const char *[]){"spaces_max", "4", NULL});
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48); /* open: is never taken over */
    CHECK_INT(visit(&k, "a", tokens, true), 48);
    CHECK_INT(visit(&k, "b", tokens, true), 48);
    CHECK_INT(visit(&k, "c", tokens, true), 48);
    CHECK_INT(visit(&k, "a", tokens, false), 48); /* was used since */
    CHECK_INT(visit(&k, "d", tokens, true), 48);
    CHECK_INT(kit_stats(&k).evicted, 3);
    CHECK_INT(visit(&k, "a", tokens, false), 48);
    CHECK_INT(visit(&k, "c", tokens, false), 48);
    CHECK_INT(visit(&k, "d", tokens, false), 48);
    CHECK_INT(visit(&k, "b", tokens, false), 0); /* and is back, in the place of a */
    CHECK_INT(visit(&k, "a", tokens, false), 0);
    CHECK_INT(kit_find_prefix(&k, tokens, 48), 48);
    CHECK(kit_valid(&k));
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_space_with_entries_in_use_is_passed_over)
{
    struct kit k;
    kit_open(&k, (const char *[]){"spaces_max", "3", NULL});
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(visit(&k, "leased", tokens, true), 48);
    struct kit leased = named(&k, "leased");
    struct kit_hits hits;
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    CHECK_INT(kit_lookup(&leased, &prompt, 7, &hits), 48);
    tsr_space_close(leased.space);
    CHECK_INT(visit(&k, "idle", tokens, true), 48);
    CHECK_INT(visit(&k, "new", tokens, true), 48);
    CHECK_INT(visit(&k, "newer", tokens, true), 48);
    CHECK_INT(visit(&k, "leased", tokens, false), 48);
    struct kit newest = named(&k, "newest"); /* the only place that is left */
    struct tsr_space *space;
    struct tsr_space_desc d = kit_desc();
    d.salt = "one too many";
    CHECK_INT(tsr_space_open(&space, k.cache, &d), TSR_EAGAIN);
    CHECK_INT(tsr_client_release(k.client, 7), 3);
    CHECK_INT(tsr_space_open(&space, k.cache, &d), 0);
    tsr_space_close(space);
    tsr_space_close(newest.space);
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- above tiers ---- */

static int keep_unlisted(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n)
{
    (void)tier, (void)refs;
    return (int)n;
}

struct above {
    struct kit k;
    struct fake_tier_plan plan;
};

/* Above a tier that keeps what is unlisted, as a disk does. */
static void above_open(struct above *a, const char *spaces_max)
{
    static struct tsr_tier_ops ops;
    ops = fake_tier;
    ops.unlist = keep_unlisted;
    struct tsr_config *cfg = kit_config((const char *[]){"spaces_max", spaces_max, NULL});
    CHECK_INT(tsr_tier_attach(cfg, &ops, &a->plan), 0);
    kit_open_config(&a->k, cfg);
    tsr_config_close(cfg);
}

static void above_init(struct above *a, const char *spaces_max)
{
    fake_tier_plan_init(&a->plan);
    above_open(a, spaces_max);
}

static void above_end(struct above *a)
{
    kit_close(&a->k);
    fake_tier_plan_fini(&a->plan);
}

static void *open_new(void *arg)
{
    struct tsr_space_desc d = kit_desc();
    struct tsr_space *space;
    d.salt = "new";
    int e = tsr_space_open(&space, ((struct above *)arg)->k.cache, &d);
    if (e == 0) tsr_space_close(space);
    return e == 0 ? arg : NULL;
}

/* Nothing of it is lost without a word: it is written first. */
TEST(a_space_whose_entries_wait_to_be_written_is_taken_over_when_they_are)
{
    struct above a;
    above_init(&a, "2");
    uint32_t *tokens = kit_tokens(1, 48);
    fake_tier_gate(&a.plan, FAKE_PUT);
    CHECK_INT(visit(&a.k, "old", tokens, true), 48);
    fake_tier_gate_wait(&a.plan, 1);
    struct tsr_space *space;
    struct tsr_space_desc d = kit_desc();
    d.salt = "now";
    CHECK_INT(tsri_space_open_now(&space, a.k.cache, &d), TSR_EAGAIN);
    pthread_t thread;
    void *opened = NULL;
    CHECK_INT(pthread_create(&thread, NULL, open_new, &a), 0);
    fake_tier_gate(&a.plan, 0);
    pthread_join(thread, &opened);
    CHECK(opened != NULL);
    CHECK_INT(tsr_cache_flush(a.k.cache), 0);
    CHECK_INT(a.plan.mem.n_items, 3);
    CHECK_INT(kit_stats(&a.k).entries, 0);
    free(tokens);
    above_end(&a);
}

TEST(of_spaces_that_were_never_opened_any_may_be_taken_over)
{
    struct above a;
    above_init(&a, "3");
    uint32_t *tokens = kit_tokens(1, 48);
    CHECK_INT(visit(&a.k, "a", tokens, true), 48);
    CHECK_INT(visit(&a.k, "b", tokens, true), 48);
    kit_close(&a.k);
    above_open(&a, "3");
    struct tsr_cache *c = a.k.cache;
    CHECK_INT(kit_stats(&a.k).entries, 6);
    /* One in the first of the two is in use. */
    uint32_t id = 0, first = UINT32_MAX;
    for (uint32_t i = 0; i < c->n_spaces; i++)
        if (c->spaces[i].refs == 0 && first == UINT32_MAX) first = i;
    while (c->entries[id].space != first)
        id++;
    CHECK_INT(tsri_pin(c, id), TSRI_COLD);
    CHECK(open_new(&a) != NULL);
    tsri_unpin(c, id);
    CHECK_INT(kit_stats(&a.k).entries, 3);
    CHECK_INT(a.plan.mem.n_items, 6);
    free(tokens);
    above_end(&a);
}

TEST(shapes_that_do_not_fit_a_page_are_refused_and_take_no_slot)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc d = kit_desc();
    struct tsr_space *space;
    d.n_heads = 8; /* 64 tokens of 256 bytes are a page of 16 KiB */
    struct tsr_space *fits = kit_space(k.cache, &d);
    tsr_space_close(fits);
    d.n_heads = 9;
    CHECK_INT(tsr_space_open(&space, k.cache, &d), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "64 tokens of 288 bytes does not fit into a page: raise host_page_size "
                            "above 16384");
    d = kit_desc();
    d.v_dim = 200; /* V alone */
    CHECK_INT(tsr_space_open(&space, k.cache, &d), TSR_ERANGE);
    d = kit_desc();
    d.n_heads = 4096;
    d.k_dim = 1024;
    CHECK_INT(tsr_space_open(&space, k.cache, &d), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "exceed the limit");
    d = kit_desc();
    d.model = NULL;
    CHECK_INT(tsr_space_open(&space, k.cache, &d), TSR_EINVAL);
    CHECK(space == NULL);
    CHECK_INT(k.cache->n_spaces, 2);
    kit_close(&k);
}

TEST(a_description_of_an_older_caller_is_completed_with_defaults)
{
    struct kit k;
    kit_open(&k, (const char *[]){"chunk_size", "16", NULL});
    struct tsr_space_desc d = kit_desc();
    d.size = offsetof(struct tsr_space_desc, rank);
    d.rank = 77; /* beyond its size: not looked at */
    d.block_tokens = 99;
    struct tsr_space *space = kit_space(k.cache, &d);
    CHECK(space == k.space);
    tsr_space_close(space);
    kit_close(&k);
}

TEST(a_slot_seen_in_a_tier_gets_its_shape_when_it_is_opened)
{
    struct kit k;
    kit_open(&k, (const char *[]){"spaces_max", "2", NULL});
    struct tsr_space_desc d = kit_desc();
    d.salt = "seen";
    uint8_t fingerprint[16], other[16] = {1};
    struct tsr_space_desc complete = d;
    tsri_space_fingerprint(&complete, fingerprint);
    pthread_mutex_lock(&k.cache->lock);
    struct tsr_space *slot = tsri_space_slot(k.cache, fingerprint);
    CHECK(slot && !slot->shaped && slot->refs == 0);
    CHECK(tsri_space_slot(k.cache, fingerprint) == slot);
    slot->n_entries = 1;                            /* as a scan leaves it */
    CHECK(tsri_space_slot(k.cache, other) == NULL); /* spaces_max */
    slot->n_entries = 0;
    pthread_mutex_unlock(&k.cache->lock);
    struct tsr_space *space = kit_space(k.cache, &d);
    CHECK(space == slot);
    CHECK(space->shaped);
    CHECK_INT(space->shape.n_layers, 2);
    CHECK_INT(space->block_tokens, 16);
    tsr_space_close(space);
    kit_close(&k);
}

TEST(separators_go_with_the_last_who_had_the_space_open)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc d = kit_desc();
    d.salt = "s";
    struct tsr_space *a = kit_space(k.cache, &d), *b = kit_space(k.cache, &d);
    uint32_t separator = 5, length = 1, tokens[] = {1, 2, 5, 3};
    struct tsr_range ranges[4];
    CHECK_INT(tsr_separators_set(a, &separator, &length, 1), 0);
    tsr_space_close(a);
    CHECK_INT(tsr_space_split(b, tokens, 4, ranges, 4), 2);
    tsr_space_close(b);
    b = kit_space(k.cache, &d);
    CHECK_INT(tsr_space_split(b, tokens, 4, ranges, 4), TSR_EINVAL);
    tsr_space_close(b);
    kit_close(&k);
}

/* ---- from many threads ---- */

struct opener {
    struct kit *k;
    bool right;
};

static void *open_again(void *arg)
{
    struct opener *o = arg;
    o->right = true;
    for (uint32_t i = 0; i < 2000; i++) {
        struct tsr_space_desc d = kit_desc();
        struct tsr_space *space;
        o->right &= tsr_space_open(&space, o->k->cache, &d) == 0 && space == o->k->space;
        tsr_space_close(space);
    }
    return NULL;
}

TEST(a_space_that_is_in_use_may_be_opened_again)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 40);
    CHECK_INT(kit_store_segment(&k, tokens, 40), 40);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 40, &range);
    struct opener o = {.k = &k};
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, open_again, &o), 0);
    bool all = true;
    for (uint32_t i = 0; i < 300; i++)
        all &= kit_load_and_check(&k, &prompt) == 40;
    pthread_join(thread, NULL);
    CHECK(all && o.right);
    CHECK_INT(k.space->refs, 1);
    free(tokens);
    kit_close(&k);
}

int main(void)
{
    RUN(the_same_description_gives_the_same_slot);
    RUN(one_field_apart_is_another_slot);
    RUN(blocks_are_as_long_as_chunk_size_says_when_nobody_says_more);
    RUN(entries_outlive_their_space_and_are_found_when_it_is_opened_again);
    RUN(so_many_spaces_and_no_more);
    RUN(tenants_come_and_go_in_few_slots);
    RUN(a_new_space_takes_over_the_one_that_was_closed_longest_ago);
    RUN(a_space_with_entries_in_use_is_passed_over);
    RUN(a_space_whose_entries_wait_to_be_written_is_taken_over_when_they_are);
    RUN(of_spaces_that_were_never_opened_any_may_be_taken_over);
    RUN(shapes_that_do_not_fit_a_page_are_refused_and_take_no_slot);
    RUN(a_description_of_an_older_caller_is_completed_with_defaults);
    RUN(a_slot_seen_in_a_tier_gets_its_shape_when_it_is_opened);
    RUN(separators_go_with_the_last_who_had_the_space_open);
    RUN(a_space_that_is_in_use_may_be_opened_again);
    return test_end();
}
