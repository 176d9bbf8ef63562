/* test_source.c - matched ranges, read where they are: host memory, the device pool, a lower tier
 * or the pages of a server. The bytes are the same from all of them, what is not the text of the
 * prompt is told and counted wherever it is, and nothing stays pinned. */
#include "cache/source.h"
#include "cache/manager.h"
#include "support/fake_tier.h"
#include "support/lock_kit.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <sys/mman.h>

#define N 150u

/* Where the segment is when it is read. */
enum place { IN_HOST, IN_POOL, IN_TIER, AT_SERVER, PLACES };

struct rig {
    enum place place;
    struct kit k;
    struct server_kit server;
    struct fake_tier_plan plan;
    uint32_t *tokens;
    struct tsr_range segment;
    struct tsr_prompt prompt;
    struct kit_hits hits;
    struct tsri_source source;
    struct tsri_source_range ranges[3];
    struct tsri_hot_pin pins[3];
};

static void open_cache(struct rig *x)
{
    const char *const pool[] = {"device", "cpu", "device_pool_size", "1M", NULL};
    fake_tier_plan_init(&x->plan);
    if (x->place == AT_SERVER) {
        server_open_tiers(&x->server, NULL, &x->plan, 1);
        served_kit_open(&x->k, x->server.path, NULL);
    } else {
        kit_open_tiers(&x->k, x->place == IN_POOL ? pool : NULL, &x->plan, 1);
    }
}

/* A cache with a segment that a lookup has found in host memory, and which is where it should be by
 * now. */
static void rig_open(struct rig *x, enum place place)
{
    *x = (struct rig){.place = place};
    open_cache(x);
    x->tokens = kit_tokens(5, N);
    x->prompt = kit_segment_prompt(x->tokens, N, &x->segment);
    CHECK_INT(kit_store_segment(&x->k, x->tokens, N), (int)N);
    CHECK_INT(tsr_cache_flush(x->k.cache), 0);
    CHECK_INT(kit_lookup(&x->k, &x->prompt, 0, &x->hits), (int)N);
    CHECK_INT(x->hits.matches[0].verified, 1);
    if (place == IN_POOL) tsri_manager_drain(x->k.cache);
    if (place == IN_POOL || place == IN_TIER) CHECK_INT(kit_evict_all(&x->k), 1);
}

static void rig_close(struct rig *x)
{
    if (x->place == AT_SERVER) {
        kit_close(&x->k);
        CHECK(server_end(&x->server));
    } else {
        CHECK(kit_end(&x->k));
    }
    fake_tier_plan_fini(&x->plan);
    free(x->tokens);
}

static struct tsri_want want_of(const struct rig *x, uint32_t offset, uint32_t n)
{
    return (struct tsri_want){x->k.space, &x->hits.matches[0], &x->prompt, offset, n};
}

/* Opens a source over tokens [offset, + n) of the match, and the same twice more in pieces. */
static uint32_t begin(struct rig *x, uint32_t offset, uint32_t n)
{
    struct tsri_want wants[3] = {want_of(x, offset, n), want_of(x, offset, 1),
                                 want_of(x, offset + n - 1, 1)};
    for (uint32_t i = 0; i < 3; i++)
        CHECK_INT(tsri_source_want(&x->ranges[i], x->k.cache, &wants[i]), 0);
    x->source = (struct tsri_source){.c = x->k.cache,
                                     .client = x->k.client,
                                     .ranges = x->ranges,
                                     .n = 3,
                                     .pins = x->place == IN_POOL ? x->pins : NULL};
    return tsri_source_open(&x->source);
}

static bool copies_right(const struct rig *x, const struct tsri_source_range *r)
{
    static uint8_t kv[N * 256];
    const struct tsri_shape *shape = &x->k.space->shape;
    struct tsr_view view = {.data = kv, .bytes = sizeof kv};
    memset(kv, 0xee, sizeof kv);
    CHECK_INT(tsri_view_check(shape, &view, r->n_tokens, shape->n_layers), 0);
    tsri_source_copy(r, 0, shape->n_layers, &view);
    return kit_right(x->k.space, kit_seen(kit_seed(x->k.space), x->tokens, r->offset),
                     x->tokens + r->offset, r->n_tokens, 0, shape->n_layers, &view);
}

/* As a device sees it. */
static bool cells_right(const struct rig *x, const struct tsri_source_range *r)
{
    static uint8_t kv[N * 256];
    void *planes[64];
    struct tsr_kv_cells cells;
    const struct tsri_shape *shape = &x->k.space->shape;
    CHECK(tsri_source_n_planes(r) <= TSRI_COUNT(planes));
    CHECK_INT(tsri_source_n_planes(r) == 0, r->where == TSRI_HOT);
    uint32_t offset = tsri_source_cells(r, planes, &cells);
    CHECK(offset + r->n_tokens <= cells.n_tokens && offset % 64 == r->offset % 64);
    CHECK_INT(cells.n_cells, r->where == TSRI_HOT ? 3 : (offset + r->n_tokens + 63) / 64);
    struct tsr_view view = {.data = kv, .bytes = sizeof kv};
    CHECK_INT(tsri_view_check(shape, &view, r->n_tokens, shape->n_layers), 0);
    for (uint32_t l = 0; l < cells.n_layers; l++)
        for (uint32_t p = 0; p < cells.n_planes; p++)
            for (uint32_t t = 0; t < r->n_tokens; t++) {
                const uint8_t *plane =
                    cells.planes[(l * cells.n_planes + p) * cells.n_cells + (offset + t) / 64];
                memcpy(kv + l * view.layer_stride + p * view.plane_stride +
                           (size_t)t * shape->row_bytes[p],
                       plane + (size_t)((offset + t) % 64) * shape->row_bytes[p],
                       shape->row_bytes[p]);
            }
    return kit_right(x->k.space, kit_seen(kit_seed(x->k.space), x->tokens, r->offset),
                     x->tokens + r->offset, r->n_tokens, 0, shape->n_layers, &view);
}

static enum tsri_where where_of(enum place place)
{
    return place == IN_HOST ? TSRI_HERE : place == IN_POOL ? TSRI_HOT : TSRI_BELOW;
}

TEST(the_bytes_are_the_same_wherever_they_are_read)
{
    for (enum place place = 0; place < PLACES; place++) {
        struct rig x;
        rig_open(&x, place);
        uint64_t seed = 7 + place;
        for (int round = 0; round < 40; round++) {
            uint32_t offset = (uint32_t)(test_rand(&seed) % N);
            uint32_t n = 1 + (uint32_t)(test_rand(&seed) % (N - offset));
            if (place == IN_TIER) kit_evict_all(&x.k);
            uint32_t n_below = begin(&x, offset, n);
            CHECK_INT(n_below, where_of(place) == TSRI_BELOW ? 3 : 0);
            CHECK_INT(x.ranges[0].where, where_of(place));
            if (n_below) CHECK_INT(tsri_source_fetch(&x.source, NULL), 0);
            for (uint32_t i = 0; i < 3; i++) {
                CHECK_INT(x.ranges[i].result, 0);
                CHECK_INT(x.ranges[i].base, 0);
                CHECK_INT(x.ranges[i].entry_tokens, N);
                if (place != IN_POOL) CHECK(copies_right(&x, &x.ranges[i]));
                CHECK(cells_right(&x, &x.ranges[i]));
            }
            CHECK(tsri_source_holds(&x.source));
            tsri_source_close(&x.source);
        }
        rig_close(&x);
    }
}

static uint64_t n_collisions(struct rig *x)
{
    return x->place == AT_SERVER ? server_metric(&x->server, TSRI_M_collisions)
                                 : kit_metric(&x->k, TSRI_M_collisions);
}

/* The match was verified once; what is behind it now may have been fetched since. */
TEST(another_text_is_told_and_counted_wherever_it_is)
{
    for (enum place place = 0; place < PLACES; place++)
        for (int verified = 0; verified < 2; verified++) {
            struct rig x;
            rig_open(&x, place);
            x.hits.matches[0].verified = verified != 0;
            x.tokens[120] ^= 1; /* of the prompt, behind the lookup's back */
            uint32_t n_below = begin(&x, 10, N - 10);
            if (n_below) CHECK_INT(tsri_source_fetch(&x.source, NULL), 0);
            for (uint32_t i = 0; i < 3; i++)
                CHECK_INT(x.ranges[i].result, place == IN_TIER ? TSR_ENOENT : TSR_ECORRUPT);
            tsri_source_close(&x.source);
            CHECK_INT(n_collisions(&x), 3);
            x.tokens[120] ^= 1;
            n_below = begin(&x, 10, N - 10);
            if (n_below) CHECK_INT(tsri_source_fetch(&x.source, NULL), 0);
            CHECK_INT(x.ranges[0].result, 0);
            tsri_source_close(&x.source);
            rig_close(&x);
        }
}

/* A reader that compares for others, as a server does, says how much of it. */
TEST(no_more_is_compared_than_the_reader_allows)
{
    struct rig x;
    rig_open(&x, IN_HOST);
    struct tsr_match matches[3] = {x.hits.matches[0], x.hits.matches[0], x.hits.matches[0]};
    matches[2].n_tokens = N - 1;
    for (uint32_t i = 0; i < 3; i++) {
        struct tsri_want want = {x.k.space, &matches[i], &x.prompt, 0, 1};
        CHECK_INT(tsri_source_want(&x.ranges[i], x.k.cache, &want), 0);
    }
    x.source =
        (struct tsri_source){.c = x.k.cache, .ranges = x.ranges, .n = 3, .compare_max = 2 * N - 2};
    CHECK_INT(tsri_source_open(&x.source), 0);
    CHECK_INT(x.ranges[0].result, 0);
    CHECK_INT(x.ranges[1].result, 0); /* the same one: compared already */
    CHECK_INT(x.ranges[2].result, TSR_ERANGE);
    tsri_source_close(&x.source);
    CHECK_INT(kit_metric(&x.k, TSRI_M_collisions), 0);
    rig_close(&x);
}

TEST(what_no_lookup_made_is_refused)
{
    struct rig x;
    rig_open(&x, IN_HOST);
    struct tsr_match odd[4];
    struct tsri_want bad[10];
    struct tsr_prompt unsized = {0}, bare = x.prompt;
    for (size_t i = 0; i < TSRI_COUNT(odd); i++)
        odd[i] = x.hits.matches[0];
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        bad[i] = want_of(&x, 0, 10);
    bad[0].space = NULL;
    bad[1].match = NULL;
    bad[2].offset = N;
    bad[3].offset = 100, bad[3].n_tokens = 51;
    bad[4].offset = 1, bad[4].n_tokens = UINT32_MAX;
    odd[0].n_tokens = 0, bad[5].match = &odd[0];
    odd[1].entry_offset = UINT32_MAX, bad[6].match = &odd[1];
    odd[2].verified = 0, bad[7].match = &odd[2], bad[7].prompt = NULL;
    bad[8].prompt = &unsized;
    bare.tokens = NULL, bad[9].prompt = &bare;
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        CHECK_INT(tsri_source_want(&x.ranges[0], x.k.cache, &bad[i]), i ? TSR_EINVAL : TSR_ESPACE);
    /* What only the entry can tell is a result. */
    odd[3].n_tokens = N + 1;
    struct tsri_want beyond = {x.k.space, &odd[3], NULL, 0, 0};
    CHECK_INT(tsri_source_want(&x.ranges[0], x.k.cache, &beyond), 0);
    x.source = (struct tsri_source){.c = x.k.cache, .ranges = x.ranges, .n = 1};
    CHECK_INT(tsri_source_open(&x.source), 0);
    CHECK_INT(x.ranges[0].result, TSR_ESPACE);
    tsri_source_close(&x.source);
    rig_close(&x);
}

TEST(a_fetch_that_is_stopped_or_fails_says_so_of_each_range)
{
    struct rig x;
    atomic_bool stop = true;
    rig_open(&x, IN_TIER);
    CHECK_INT(begin(&x, 0, N), 3);
    CHECK_INT(tsri_source_fetch(&x.source, &stop), 0);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(x.ranges[i].result == TSR_EAGAIN && x.ranges[i].where == TSRI_GONE);
    tsri_source_close(&x.source);
    fake_tier_fail(&x.plan, FAKE_GET, 1, 1000, TSR_EIO);
    CHECK_INT(begin(&x, 0, N), 3);
    CHECK_INT(tsri_source_fetch(&x.source, NULL), 0);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(x.ranges[i].result < 0 && x.ranges[i].where == TSRI_GONE);
    tsri_source_close(&x.source);
    rig_close(&x);
}

TEST(what_a_server_lends_is_worth_nothing_once_it_has_gone)
{
    struct rig x;
    rig_open(&x, AT_SERVER);
    CHECK_INT(begin(&x, 0, N), 3);
    CHECK_INT(tsri_source_fetch(&x.source, NULL), 0);
    CHECK(tsri_source_holds(&x.source));
    tsr_server_close(x.server.server);
    x.server.server = NULL;
    CHECK(!tsri_source_holds(&x.source));
    tsri_source_close(&x.source);
    CHECK_INT(begin(&x, 0, N), 3); /* and one that is not there is a miss */
    CHECK_INT(tsri_source_fetch(&x.source, NULL), 0);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(x.ranges[i].result == TSR_ENOENT && x.ranges[i].where == TSRI_GONE);
    tsri_source_close(&x.source);
    rig_close(&x);
}

/* Page numbers alone: nothing is read. */
TEST(a_range_is_locked_when_all_of_its_pages_are)
{
    struct tsri_device device = {.ops = &lock_ops};
    struct tsri_locking *locking;
    size_t bytes = 3 * LOCK_PIECE;
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    lock_kit_reset(LOCK_CALLS, 2); /* the third piece stays as it is */
    CHECK_INT(tsri_locking_open(&locking, &device, memory, bytes, 1 << 20), 0);
    CHECK(!tsri_locking_wait(locking, bytes, tsri_now_ns() + LOCK_SOON_NS));
    struct tsri_shape shape = {.page_bytes = 1 << 20};
    uint32_t below[] = {255, 0, 17}, above[] = {0, 256, 17};
    struct tsri_source source = {.locking = locking};
    struct tsri_source_range r = {
        .source = &source, .where = TSRI_HERE, .shape = &shape, .pages = below, .n_pages = 3};
    CHECK(tsri_source_is_locked(&r));
    r.pages = above;
    CHECK(!tsri_source_is_locked(&r));
    r.n_pages = 1;
    CHECK(tsri_source_is_locked(&r));
    source.locking = NULL;
    CHECK(!tsri_source_is_locked(&r));
    r.where = TSRI_HOT; /* memory of the device */
    CHECK(tsri_source_is_locked(&r));
    tsri_locking_close(locking);
    munmap(memory, bytes);
}

int main(void)
{
    RUN(a_range_is_locked_when_all_of_its_pages_are);
    RUN(the_bytes_are_the_same_wherever_they_are_read);
    RUN(another_text_is_told_and_counted_wherever_it_is);
    RUN(no_more_is_compared_than_the_reader_allows);
    RUN(what_no_lookup_made_is_refused);
    RUN(a_fetch_that_is_stopped_or_fails_says_so_of_each_range);
    RUN(what_a_server_lends_is_worth_nothing_once_it_has_gone);
    return test_end();
}
