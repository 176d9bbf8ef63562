/* Bad input through the public API: NULL, zero, absurd numbers, sizes that are not set, handles of
 * another cache, unknown flags, every limit. Each gets an error and a message, and after each the
 * cache is as it was. */
#include "support/cache_kit.h"
#include "support/test.h"

/* A cache with something in it, and what it looked like. */
struct place {
    struct kit k;
    uint32_t *tokens;
    struct tsr_range range;
    struct tsr_prompt prefix, segment;
    struct tsr_stats before;
};

static void place_open(struct place *p, const char *const *options)
{
    kit_open(&p->k, options);
    p->tokens = kit_tokens(1, 64);
    p->prefix = kit_prefix_prompt(p->tokens, 64);
    p->segment = kit_segment_prompt(p->tokens, 64, &p->range);
    CHECK_INT(kit_store_prefix(&p->k, p->tokens, 64), 64);
    CHECK_INT(kit_store_segment(&p->k, p->tokens, 64), 64);
    p->before = kit_stats(&p->k);
}

/* Nothing but counters of calls may have changed. */
static bool unchanged(struct place *p)
{
    struct tsr_stats s = kit_stats(&p->k);
    return kit_valid(&p->k) && s.entries == p->before.entries && s.pinned == p->before.pinned &&
           s.host_bytes_used == p->before.host_bytes_used && s.evicted == p->before.evicted &&
           s.dropped == p->before.dropped && s.stores_new == p->before.stores_new &&
           s.lookups == p->before.lookups && s.tokens_asked == p->before.tokens_asked &&
           s.loads == p->before.loads;
}

static bool place_end(struct place *p)
{
    bool whole =
        kit_load_and_check(&p->k, &p->prefix) == 64 && kit_load_and_check(&p->k, &p->segment) == 64;
    free(p->tokens);
    return kit_end(&p->k) && whole;
}

/* Refused with this error, and a new message. */
#define REFUSED(call, err) \
    do { \
        (void)tsri_fail(0, "%s", "(nothing said)"); \
        CHECK_INT(call, err); \
        CHECK(strcmp(tsr_errmsg(), "(nothing said)") != 0 && tsr_errmsg()[0]); \
    } while (0)

/* ---- opening ---- */

/* NOLINTNEXTLINE(readability-function-size): a list of all entry points */
TEST(null_handles_are_refused)
{
    struct place p;
    place_open(&p, NULL);
    struct tsr_cache *c = p.k.cache;
    struct tsr_space *space;
    struct tsr_client *client;
    struct tsr_put *put;
    struct tsr_op *op;
    struct tsr_space_desc desc = kit_desc();
    struct tsr_lookup_desc io = {.size = sizeof io, .spaces = &p.k.space, .n_spaces = 1};
    struct tsr_store_desc store = {.size = sizeof store};
    struct tsr_stats stats = {.size = sizeof stats};
    struct tsr_key key;
    struct tsr_range range;
    struct tsr_event event;
    int8_t tier;
    char text[8];
    REFUSED(tsr_cache_open(NULL, NULL), TSR_EINVAL);
    REFUSED(tsr_space_open(NULL, c, &desc), TSR_EINVAL);
    REFUSED(tsr_space_open(&space, NULL, &desc), TSR_EINVAL);
    REFUSED(tsr_space_open(&space, c, NULL), TSR_EINVAL);
    REFUSED(tsr_client_open(NULL, c), TSR_EINVAL);
    REFUSED(tsr_client_open(&client, NULL), TSR_EINVAL);
    REFUSED(tsr_client_release(NULL, 1), TSR_EINVAL);
    REFUSED(tsr_separators_set(NULL, p.tokens, p.tokens, 1), TSR_EINVAL);
    REFUSED(tsr_space_split(NULL, p.tokens, 1, &range, 1), TSR_EINVAL);
    REFUSED(tsr_space_split(p.k.space, NULL, 1, &range, 1), TSR_EINVAL);
    REFUSED(tsr_space_split(p.k.space, p.tokens, 1, NULL, 1), TSR_EINVAL);
    REFUSED(tsr_space_split(p.k.space, p.tokens, 64, &range, 1), TSR_EINVAL); /* no separators */
    REFUSED(tsr_client_lookup(NULL, &p.prefix, &io), TSR_EINVAL);
    REFUSED(tsr_client_lookup(p.k.client, NULL, &io), TSR_EINVAL);
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, NULL), TSR_EINVAL);
    REFUSED(tsr_space_keys(NULL, &p.prefix, &key, 1), TSR_EINVAL);
    REFUSED(tsr_space_keys(p.k.space, NULL, &key, 1), TSR_EINVAL);
    REFUSED(tsr_space_keys(p.k.space, &p.prefix, NULL, 1), TSR_EINVAL);
    REFUSED(tsr_cache_contains(NULL, &key, 1, &tier), TSR_EINVAL);
    REFUSED(tsr_cache_contains(c, NULL, 1, &tier), TSR_EINVAL);
    REFUSED(tsr_cache_contains(c, &key, 1, NULL), TSR_EINVAL);
    REFUSED(tsr_client_load(NULL, NULL, 0), TSR_EINVAL);
    REFUSED(tsr_client_load(p.k.client, NULL, 1), TSR_EINVAL);
    REFUSED(tsr_client_store(NULL, &store), TSR_EINVAL);
    REFUSED(tsr_client_store(p.k.client, NULL), TSR_EINVAL);
    REFUSED(tsr_put_open(NULL, p.k.client, &store), TSR_EINVAL);
    REFUSED(tsr_put_open(&put, NULL, &store), TSR_EINVAL);
    REFUSED(tsr_put_layer(NULL, 0, &store.view), TSR_EINVAL);
    REFUSED(tsr_put_commit(NULL), TSR_EINVAL);
    REFUSED(tsr_client_store_start(NULL, p.k.client, &store, NULL, NULL), TSR_EINVAL);
    REFUSED(tsr_client_store_start(&op, p.k.client, NULL, NULL, NULL), TSR_EINVAL);
    REFUSED(tsr_client_prefetch(NULL, p.k.space, &p.prefix), TSR_EINVAL);
    REFUSED(tsr_client_prefetch(p.k.client, NULL, &p.prefix), TSR_EINVAL);
    REFUSED(tsr_client_prefetch(p.k.client, p.k.space, NULL), TSR_EINVAL);
    REFUSED(tsr_cache_flush(NULL), TSR_EINVAL);
    REFUSED(tsr_space_pin(NULL, &p.prefix), TSR_EINVAL);
    REFUSED(tsr_space_pin(p.k.space, NULL), TSR_EINVAL);
    REFUSED(tsr_space_unpin(NULL, &p.prefix), TSR_EINVAL);
    REFUSED(tsr_space_touch(p.k.space, NULL), TSR_EINVAL);
    REFUSED(tsr_cache_evict(NULL, 1), TSR_EINVAL);
    REFUSED(tsr_cache_evict_keys(NULL, 1, NULL, 1), TSR_EINVAL);
    REFUSED(tsr_cache_list(NULL, NULL, 0), TSR_EINVAL);
    REFUSED(tsr_cache_clear(NULL, NULL), TSR_EINVAL);
    REFUSED(tsr_cache_stats(NULL, &stats), TSR_EINVAL);
    REFUSED(tsr_cache_stats(c, NULL), TSR_EINVAL);
    REFUSED(tsr_cache_stats_text(NULL, "json", text, 8), TSR_EINVAL);
    REFUSED(tsr_cache_stats_text(c, NULL, text, 8), TSR_EINVAL);
    REFUSED(tsr_cache_stats_text(c, "json", NULL, 8), TSR_EINVAL);
    REFUSED(tsr_cache_stats_text(c, "xml", text, 8), TSR_EINVAL);
    REFUSED(tsr_cache_events(NULL, &event, 1), TSR_EINVAL);
    REFUSED(tsr_cache_events(c, NULL, 1), TSR_EINVAL);
    tsr_cache_close(NULL);
    tsr_space_close(NULL);
    tsr_client_close(NULL);
    tsr_put_abort(NULL);
    tsr_cache_freeze(NULL, 1);
    CHECK_INT(tsr_space_token_bytes(NULL), 0);
    uint8_t fingerprint[16];
    tsr_space_fingerprint(NULL, fingerprint);
    tsr_space_fingerprint(p.k.space, NULL);
    CHECK(unchanged(&p));
    CHECK(place_end(&p));
}

TEST(structs_without_their_size_are_refused)
{
    struct place p;
    place_open(&p, NULL);
    struct tsr_space *space;
    struct tsr_space_desc desc = kit_desc();
    desc.size = 0;
    REFUSED(tsr_space_open(&space, p.k.cache, &desc), TSR_EINVAL);
    CHECK(space == NULL);
    struct tsr_prompt prompt = p.prefix;
    prompt.size = 0;
    struct tsr_match m;
    struct tsr_lookup_desc io = {
        .size = sizeof io, .spaces = &p.k.space, .n_spaces = 1, .matches = &m, .matches_max = 1};
    struct tsr_key key;
    REFUSED(tsr_client_lookup(p.k.client, &prompt, &io), TSR_EINVAL);
    REFUSED(tsr_space_keys(p.k.space, &prompt, &key, 1), TSR_EINVAL);
    REFUSED(tsr_space_pin(p.k.space, &prompt), TSR_EINVAL);
    io.size = 0;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_EINVAL);
    struct tsr_store_desc store = {.space = p.k.space, .kind = TSR_KIND_SEGMENT};
    REFUSED(tsr_client_store(p.k.client, &store), TSR_EINVAL);
    struct tsr_load_desc load = {.space = p.k.space, .match = &m};
    REFUSED(tsr_client_load(p.k.client, &load, 1), TSR_EINVAL);
    struct tsr_clear_desc clear = {.tier = -1};
    REFUSED(tsr_cache_clear(p.k.cache, &clear), TSR_EINVAL);
    struct tsr_stats stats = {.size = 0};
    REFUSED(tsr_cache_stats(p.k.cache, &stats), TSR_EINVAL);
    stats.size = SIZE_MAX; /* never set, and not 0 either */
    REFUSED(tsr_cache_stats(p.k.cache, &stats), TSR_EINVAL);
    CHECK(unchanged(&p));
    CHECK(place_end(&p));
}

/* An older program's structs are shorter; what it does not have is 0. */
TEST(shorter_structs_of_an_older_program_work)
{
    struct place p;
    place_open(&p, NULL);
    struct tsr_space_desc desc = kit_desc();
    memset(&desc.rank, 0xEE, sizeof desc - offsetof(struct tsr_space_desc, rank));
    desc.size = offsetof(struct tsr_space_desc, rank);
    struct tsr_space *space;
    CHECK_INT(tsr_space_open(&space, p.k.cache, &desc), 0);
    CHECK(space != p.k.space); /* blocks of chunk_size, not of 16 */
    tsr_space_close(space);
    struct tsr_prompt prompt = p.prefix;
    memset(&prompt.segments, 0xEE, sizeof prompt - offsetof(struct tsr_prompt, segments));
    prompt.size = offsetof(struct tsr_prompt, segments);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&p.k, &prompt, 0, &hits), 64);
    struct {
        size_t size;
        uint64_t lookups, tokens_asked, canary;
    } stats = {.size = 24, .canary = 0xEE};
    CHECK_INT(tsr_cache_stats(p.k.cache, (struct tsr_stats *)(void *)&stats), 0);
    CHECK_INT(stats.lookups, 1);
    CHECK_INT(stats.tokens_asked, 64);
    CHECK_INT(stats.canary, 0xEE);
    CHECK_INT(stats.size, 24);
    CHECK(place_end(&p));
}

TEST(spaces_that_cannot_be_are_refused)
{
    struct place p;
    place_open(&p, (const char *const[]){"spaces_max", "2", NULL});
    char *long_text = malloc(10000);
    memset(long_text, 'x', 9999);
    long_text[9999] = 0;
    struct tsr_space_desc d[20];
    for (size_t i = 0; i < TSRI_COUNT(d); i++)
        d[i] = kit_desc();
    d[0].model = NULL;
    d[1].model = "";
    d[2].model = long_text;
    d[3].dtype = 0;
    d[4].dtype = 99;
    d[5].layout = 99;
    d[6].n_layers = 0;
    d[7].n_layers = UINT32_MAX;
    d[8].n_heads = 0;
    d[9].n_heads = UINT32_MAX;
    d[10].k_dim = 0;
    d[11].k_dim = UINT32_MAX;
    d[12].v_dim = UINT32_MAX;
    d[13].rank = 1;
    d[14].world = 2, d[14].rank = 2;
    d[15].block_tokens = UINT32_MAX;
    d[16].weights = long_text; /* no length */
    d[17].weights_bytes = 4;   /* no bytes */
    d[18].salt = long_text;
    d[19].n_heads = 4096, d[19].k_dim = 1 << 20; /* a row of 8 GiB */
    struct tsr_space *space;
    for (size_t i = 0; i < TSRI_COUNT(d); i++) {
        int e = tsr_space_open(&space, p.k.cache, &d[i]);
        CHECK(e == TSR_EINVAL || e == TSR_ERANGE);
        CHECK(space == NULL);
    }
    /* A plane that no page can hold says which option would help. */
    struct tsr_space_desc wide = kit_desc();
    wide.k_dim = 512;
    REFUSED(tsr_space_open(&space, p.k.cache, &wide), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "host_page_size");
    wide = kit_desc();
    wide.model = "second";
    struct tsr_space *second;
    CHECK_INT(tsr_space_open(&second, p.k.cache, &wide), 0);
    wide.model = "third";
    REFUSED(tsr_space_open(&space, p.k.cache, &wide), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), "spaces_max");
    tsr_space_close(second);
    CHECK(unchanged(&p));
    free(long_text);
    CHECK(place_end(&p));
}

TEST(no_more_clients_than_clients_max)
{
    struct place p;
    place_open(&p, (const char *const[]){"clients_max", "3", NULL});
    struct tsr_client *a = kit_client(p.k.cache), *b = kit_client(p.k.cache), *c;
    REFUSED(tsr_client_open(&c, p.k.cache), TSR_EAGAIN);
    CHECK(c == NULL);
    tsr_client_close(a);
    CHECK_INT(tsr_client_open(&c, p.k.cache), 0);
    tsr_client_close(b);
    tsr_client_close(c);
    CHECK(place_end(&p));
}

/* ---- prompts ---- */

TEST(prompts_that_make_no_sense_are_refused_by_every_call)
{
    struct place p;
    place_open(&p, (const char *const[]){"segments_max", "3", NULL});
    struct tsr_range backwards[] = {{20, 10}, {10, 5}}, overlapping[] = {{0, 10}, {9, 5}};
    struct tsr_range beyond = {60, 5}, empty = {5, 0}, wraps = {UINT32_MAX, UINT32_MAX};
    struct tsr_range four[] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}};
    uint8_t big[5000] = {0};
    struct tsr_extra unknown = {99, 0, 0, 1, "x"}, no_data = {TSR_EXTRA_SALT, 0, 0, 4, NULL};
    struct tsr_extra media_beyond = {TSR_EXTRA_MEDIA, 60, 5, 1, "x"};
    struct tsr_extra media_empty = {TSR_EXTRA_MEDIA, 5, 0, 1, "x"};
    struct tsr_extra too_big = {TSR_EXTRA_SALT, 0, 0, 5000, big};
    struct tsr_extra absurd = {TSR_EXTRA_SALT, 0, 0, UINT32_MAX, big};
    struct tsr_prompt bad[20];
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        bad[i] = p.segment;
    bad[0].tokens = NULL;
    bad[1].n_tokens = 0;
    bad[2].n_tokens = UINT32_MAX;
    bad[3].flags = 64;
    bad[4].flags = UINT32_MAX;
    bad[5].segments = NULL; /* no separators either */
    bad[6].segments = backwards, bad[6].n_segments = 2;
    bad[7].segments = overlapping, bad[7].n_segments = 2;
    bad[8].segments = &beyond;
    bad[9].segments = &empty;
    bad[10].segments = &wraps;
    bad[11].segments = four, bad[11].n_segments = 4;
    bad[12].flags |= TSR_PROMPT_BLENDED; /* no recipe */
    bad[13].n_extra = 1;                 /* NULL */
    bad[14].extra = &unknown, bad[14].n_extra = 1;
    bad[15].extra = &no_data, bad[15].n_extra = 1;
    bad[16].extra = &media_beyond, bad[16].n_extra = 1;
    bad[17].extra = &media_empty, bad[17].n_extra = 1;
    bad[18].extra = &too_big, bad[18].n_extra = 1;
    bad[19].extra = &absurd, bad[19].n_extra = 1;
    struct kit_hits hits;
    struct tsr_key key;
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        int e = kit_lookup(&p.k, &bad[i], 0, &hits);
        CHECK(e == TSR_EINVAL || e == TSR_ERANGE || e == TSR_EPROMPT);
        CHECK(tsr_errmsg()[0]);
        CHECK_INT(hits.io.n_matches, 0);
        CHECK(kit_lookup(&p.k, &bad[i], 5, &hits) < 0);
        CHECK(tsr_space_keys(p.k.space, &bad[i], &key, 1) < 0);
        CHECK(tsr_space_pin(p.k.space, &bad[i]) < 0);
        CHECK(tsr_space_unpin(p.k.space, &bad[i]) < 0);
        CHECK(tsr_space_touch(p.k.space, &bad[i]) < 0);
        CHECK(tsr_client_prefetch(p.k.client, p.k.space, &bad[i]) < 0);
        const struct tsr_clear_desc clear = {
            .size = sizeof clear, .space = p.k.space, .prompt = &bad[i], .tier = -1};
        CHECK(tsr_cache_clear(p.k.cache, &clear) < 0);
        CHECK(unchanged(&p));
    }
    CHECK(place_end(&p));
}

/* The leases a request has are not given up for a lookup that was refused. */
TEST(a_refused_lookup_keeps_the_leases_of_its_request)
{
    struct place p;
    place_open(&p, NULL);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&p.k, &p.prefix, 7, &hits), 64);
    struct tsr_prompt bad = p.prefix;
    bad.n_tokens = 0;
    CHECK_INT(kit_lookup(&p.k, &bad, 7, &hits), TSR_EINVAL);
    CHECK_INT(tsr_client_release(p.k.client, 7), 4);
    CHECK(place_end(&p));
}

TEST(lookups_that_make_no_sense_are_refused)
{
    struct place p;
    place_open(&p, NULL);
    struct kit other;
    kit_open(&other, NULL);
    struct tsr_space_desc desc = kit_desc();
    desc.block_tokens = 32;
    struct tsr_space *blocks = kit_space(p.k.cache, &desc);
    struct tsr_space *spaces[65], *mixed[] = {p.k.space, other.space}, *holes[] = {p.k.space, NULL};
    struct tsr_space *uneven[] = {p.k.space, blocks};
    for (size_t i = 0; i < TSRI_COUNT(spaces); i++)
        spaces[i] = p.k.space;
    static struct tsr_match m[65 * 8];
    const struct tsr_lookup_desc good = {
        .size = sizeof good, .spaces = spaces, .n_spaces = 1, .matches = m, .matches_max = 8};
    struct tsr_lookup_desc io = good;
    io.n_spaces = 0;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_EINVAL);
    io.n_spaces = 65;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_EINVAL);
    io.n_spaces = UINT32_MAX;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_EINVAL);
    io = good;
    io.spaces = NULL;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_EINVAL);
    io = good;
    io.matches = NULL;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_EINVAL);
    io = good;
    io.n_spaces = 2;
    io.spaces = mixed;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_ESPACE);
    io.spaces = holes;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_ESPACE);
    io.spaces = uneven;
    REFUSED(tsr_client_lookup(p.k.client, &p.prefix, &io), TSR_ESPACE);
    CHECK_INT(tsr_cache_contains(p.k.cache, NULL, 0, NULL), 0);
    CHECK(unchanged(&p));
    io = good;
    io.n_spaces = 64; /* as many as there may be */
    CHECK_INT(tsr_client_lookup(p.k.client, &p.prefix, &io), 64);
    tsr_space_close(blocks);
    CHECK(kit_end(&other));
    CHECK(place_end(&p));
}

/* ---- stores, and the rest ---- */

TEST(stores_that_make_no_sense_are_refused)
{
    struct place p;
    place_open(&p, NULL);
    struct kit other;
    kit_open(&other, NULL);
    static uint8_t kv[64 * 256];
    struct tsr_extra media = {TSR_EXTRA_MEDIA, 1, 1, 1, "x"}, unknown = {99, 0, 0, 1, "x"};
    struct tsr_store_desc s[25];
    for (size_t i = 0; i < TSRI_COUNT(s); i++)
        s[i] = (struct tsr_store_desc){.size = sizeof s[i],
                                       .space = p.k.space,
                                       .kind = TSR_KIND_SEGMENT,
                                       .tokens = p.tokens,
                                       .n_tokens = 50,
                                       .view = {.data = kv, .bytes = sizeof kv}};
    s[0].space = NULL;
    s[1].space = other.space;
    s[2].kind = 0;
    s[3].kind = 4;
    s[4].kind = UINT32_MAX;
    s[5].tokens = NULL;
    s[6].n_tokens = 0;
    s[7].n_tokens = UINT32_MAX;
    s[8].from = 16;
    s[9].kind = TSR_KIND_PREFIX, s[9].from = 5;
    s[10].kind = TSR_KIND_PREFIX, s[10].from = 64;
    s[11].kind = TSR_KIND_PREFIX, s[11].base = 3;
    s[12].kind = TSR_KIND_PREFIX, s[12].n_context = 3, s[12].context = p.tokens;
    s[13].n_context = 3;
    s[14].kind = TSR_KIND_BLENDED;
    s[15].recipe = "x", s[15].recipe_bytes = 1;
    s[16].kind = TSR_KIND_BLENDED, s[16].recipe = "x";
    s[17].n_extra = 1;
    s[18].extra = &unknown, s[18].n_extra = 1;
    s[19].extra = &media, s[19].n_extra = 1;
    s[20].view.data = NULL;
    s[21].view.bytes = 50 * 256 - 1;
    s[22].view.token_stride = 1;
    s[23].view.layer_stride = SIZE_MAX / 2, s[23].view.plane_stride = SIZE_MAX / 2 + 2;
    s[24].kind = TSR_KIND_PREFIX, s[24].n_tokens = INT32_MAX; /* all that can be said */
    struct tsr_put *put;
    struct tsr_op *op;
    for (size_t i = 0; i < TSRI_COUNT(s); i++) {
        int e = tsr_client_store(p.k.client, &s[i]);
        CHECK(e == TSR_EINVAL || e == TSR_ERANGE || e == TSR_ESPACE);
        CHECK(tsr_errmsg()[0]);
        if (i < 20) {
            CHECK_INT(tsr_put_open(&put, p.k.client, &s[i]), e);
            CHECK(put == NULL);
        }
        int started = tsr_client_store_start(&op, p.k.client, &s[i], NULL, NULL);
        if (started == 0) {
            CHECK_INT(tsr_op_wait(op, -1), e);
            tsr_op_close(op);
        } else {
            CHECK_INT(started, e);
        }
        CHECK(unchanged(&p));
    }
    CHECK(kit_end(&other));
    CHECK(place_end(&p));
}

TEST(clears_that_make_no_sense_are_refused)
{
    struct place p;
    place_open(&p, NULL);
    struct kit other;
    kit_open(&other, NULL);
    struct tsr_clear_desc clear = {.size = sizeof clear, .tier = TSR_CLEAR_OWN - 1};
    REFUSED(tsr_cache_clear(p.k.cache, &clear), TSR_EINVAL);
    clear.tier = 8;
    REFUSED(tsr_cache_clear(p.k.cache, &clear), TSR_EINVAL);
    clear.tier = TSR_CLEAR_ALL;
    clear.prompt = &p.prefix;
    REFUSED(tsr_cache_clear(p.k.cache, &clear), TSR_EINVAL);
    clear.prompt = NULL;
    clear.space = other.space;
    REFUSED(tsr_cache_clear(p.k.cache, &clear), TSR_ESPACE);
    clear.space = NULL;
    clear.tier = 3; /* there is none: nothing to clear */
    CHECK_INT(tsr_cache_clear(p.k.cache, &clear), 0);
    CHECK(unchanged(&p));
    CHECK(kit_end(&other));
    CHECK(place_end(&p));
}

TEST(separators_that_make_no_sense_are_refused_and_the_old_ones_stay)
{
    struct place p;
    place_open(&p, NULL);
    const uint32_t one = 1, zero = 0, huge = UINT32_MAX;
    const uint32_t text[] = {7, 9, 5};
    struct tsr_range ranges[4];
    const uint32_t nine = 9;
    CHECK_INT(tsr_separators_set(p.k.space, &nine, &one, 1), 0);
    REFUSED(tsr_separators_set(p.k.space, NULL, &one, 1), TSR_EINVAL);
    REFUSED(tsr_separators_set(p.k.space, &one, NULL, 1), TSR_EINVAL);
    REFUSED(tsr_separators_set(p.k.space, &one, &zero, 1), TSR_EINVAL);
    REFUSED(tsr_separators_set(p.k.space, &one, &huge, 1), TSR_EINVAL);
    REFUSED(tsr_separators_set(p.k.space, &one, &one, UINT32_MAX), TSR_EINVAL);
    CHECK_INT(tsr_space_split(p.k.space, text, 3, ranges, 4), 2);
    CHECK(tsr_space_split(p.k.space, text, 0, ranges, 4) < 0);
    CHECK(tsr_space_split(p.k.space, text, 3, ranges, 0) < 0);
    CHECK(place_end(&p));
}

TEST(an_option_that_cannot_be_is_no_cache)
{
    static const char *const bad[][5] = {
        {"host_size", "1M", "host_page_size", "2M", NULL},
        {"host_size", "16T", "host_page_size", "4K", NULL},
    };
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        struct tsr_config *cfg = kit_config(bad[i]);
        struct tsr_cache *c;
        REFUSED(tsr_cache_open(&c, cfg) < 0, 1);
        CHECK(c == NULL);
        tsr_config_close(cfg);
    }
}

/* ---- numbers and events ---- */

TEST(events_tell_what_happened_and_the_oldest_are_dropped)
{
    struct kit k;
    kit_open(&k, (const char *const[]){"events_max", "4", NULL});
    uint32_t *tokens = kit_tokens(1, 48);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    struct tsr_key keys[3];
    struct tsr_event events[8];
    CHECK_INT(tsr_space_keys(k.space, &prompt, keys, 3), 3);
    CHECK_INT(tsr_space_keys(k.space, &prompt, NULL, 0), 3); /* how many there are */
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    CHECK_INT(tsr_cache_events(k.cache, events, 2), 2);
    CHECK_INT(tsr_cache_events(k.cache, events + 2, 8), 1);
    uint8_t fingerprint[16];
    tsr_space_fingerprint(k.space, fingerprint);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(events[i].kind, TSR_EVENT_STORED);
        CHECK_INT(events[i].entry_kind, TSR_KIND_PREFIX);
        CHECK_INT(events[i].n_tokens, 16);
        CHECK(memcmp(&events[i].key, &keys[i], sizeof keys[i]) == 0);
        CHECK(memcmp(events[i].space, fingerprint, 16) == 0);
    }
    CHECK_INT(tsr_cache_evict(k.cache, (1 << 20) - (2 << 14)), 1);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 2);
    CHECK_INT(tsr_cache_events(k.cache, events, 8), 3);
    CHECK_INT(events[0].kind, TSR_EVENT_EVICTED);
    CHECK(memcmp(&events[0].key, &keys[2], sizeof keys[2]) == 0);
    CHECK_INT(events[2].kind, TSR_EVENT_DROPPED);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 3);
    CHECK_INT(tsr_cache_events(k.cache, events, 8), 4);
    CHECK_INT(events[0].kind, TSR_EVENT_STORED);
    CHECK_INT(tsri_stats_read(k.cache->stats, TSRI_M_events_dropped), 2);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(stats_text_is_cut_like_snprintf)
{
    struct kit k;
    kit_open(&k, NULL);
    for (int i = 0; i < 2; i++) {
        const char *format = i ? "prometheus" : "json";
        int n = tsr_cache_stats_text(k.cache, format, NULL, 0);
        CHECK(n > 500);
        char *text = malloc((size_t)n + 1);
        CHECK_INT(tsr_cache_stats_text(k.cache, format, text, (size_t)n + 1), n);
        CHECK_INT(strlen(text), n);
        memset(text, 'x', (size_t)n + 1);
        CHECK_INT(tsr_cache_stats_text(k.cache, format, text, 10), n);
        CHECK_INT(strlen(text), 9);
        CHECK_INT(text[10], 'x');
        free(text);
    }
    CHECK(kit_end(&k));
}

TEST(a_text_is_stored_and_loaded_in_one_call_each)
{
    enum { N = 40 };
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(3, N);
    size_t bytes = N * tsr_space_token_bytes(k.space);
    uint8_t *kv = malloc(bytes), *back = malloc(bytes);
    kit_fill(k.space, kit_seed(k.space), tokens, N, kv);
    CHECK_INT(tsr_text_load(k.client, k.space, tokens, N, back, bytes), 0);
    CHECK_INT(tsr_text_store(k.client, k.space, tokens, N, kv, bytes - 1), TSR_ERANGE);
    CHECK_INT(tsr_text_store(k.client, k.space, tokens, N, kv, bytes), N);
    CHECK_INT(tsr_text_store(k.client, k.space, tokens, N, kv, bytes), 0);
    CHECK_INT(tsr_text_load(k.client, k.space, tokens, N, back, bytes), N);
    CHECK(memcmp(kv, back, bytes) == 0);
    CHECK_INT(tsr_text_load(k.client, k.space, tokens, N - 1, back, bytes), 0); /* another text */
    CHECK_INT(tsr_text_load(k.client, k.space, tokens, N, back, bytes - 1), TSR_ERANGE);
    CHECK_INT(tsr_text_load(NULL, k.space, tokens, N, back, bytes), TSR_EINVAL);
    CHECK_INT(tsr_text_store(k.client, NULL, tokens, N, kv, bytes), TSR_ESPACE);
    CHECK_INT(tsr_text_load(k.client, k.space, NULL, N, back, bytes), TSR_EINVAL);
    free(kv);
    free(back);
    free(tokens);
    CHECK(kit_end(&k));
}

/* Its K is rotated for that position, and the call cannot tell which that is. */
TEST(a_text_that_was_computed_at_another_position_is_not_loaded_in_one_call)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t *tokens = kit_tokens(4 + i, 20);
        struct tsr_store_desc s = {.kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 20};
        if (i)
            s.freq_set = 3;
        else
            s.base = 77;
        CHECK_INT(kit_store(&k, &s), 20);
        uint8_t back[20 * 256];
        CHECK_INT(20 * tsr_space_token_bytes(k.space), sizeof back);
        CHECK_INT(tsr_text_load(k.client, k.space, tokens, 20, back, sizeof back), 0);
        free(tokens);
    }
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(null_handles_are_refused);
    RUN(structs_without_their_size_are_refused);
    RUN(shorter_structs_of_an_older_program_work);
    RUN(spaces_that_cannot_be_are_refused);
    RUN(no_more_clients_than_clients_max);
    RUN(prompts_that_make_no_sense_are_refused_by_every_call);
    RUN(a_refused_lookup_keeps_the_leases_of_its_request);
    RUN(lookups_that_make_no_sense_are_refused);
    RUN(stores_that_make_no_sense_are_refused);
    RUN(clears_that_make_no_sense_are_refused);
    RUN(separators_that_make_no_sense_are_refused_and_the_old_ones_stay);
    RUN(an_option_that_cannot_be_is_no_cache);
    RUN(events_tell_what_happened_and_the_oldest_are_dropped);
    RUN(stats_text_is_cut_like_snprintf);
    RUN(a_text_is_stored_and_loaded_in_one_call_each);
    RUN(a_text_that_was_computed_at_another_position_is_not_loaded_in_one_call);
    return test_end();
}
