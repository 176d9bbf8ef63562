/* test_served_store.c - stores through a staging area: small ones, such that go in pieces, prefixes
 * longer than it, layer by layer, in any view; and the ones that do not come to an end. */
#include "served/served.h"

#include "support/lying_server.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const small_staging[] = {"server_staging", "1M", NULL};

/* Rows of 4 KB in 12 layers: 96 KB a token. */
static struct tsr_space_desc wide_desc(void)
{
    struct tsr_space_desc d = kit_desc();
    d.n_layers = 12;
    d.n_heads = 8;
    d.k_dim = 256;
    return d;
}

static void wide_open(struct server_kit *s, struct kit *k)
{
    struct tsr_space_desc desc = wide_desc();
    server_open(s, (const char *const[]){"host_size", "64M", "host_page_size", "256K", NULL});
    served_kit_open(k, s->path, small_staging);
    tsr_space_close(k->space);
    k->space = kit_space(k->cache, &desc);
}

TEST(a_store_larger_than_the_staging_area_goes_in_pieces)
{
    struct server_kit s;
    struct kit k;
    struct tsr_range range;
    wide_open(&s, &k); /* the staging area is rounded up to 2 MB: parts of 512 KB */
    for (uint32_t n = 1; n <= 64; n += 9) {
        uint32_t *tokens = kit_tokens(n, n);
        struct tsr_prompt p = kit_segment_prompt(tokens, n, &range);
        CHECK_INT(kit_store_segment(&k, tokens, n), n);
        CHECK_INT(kit_store_segment(&k, tokens, n), 0);
        CHECK_INT(kit_load_and_check(&k, &p), n);
        free(tokens);
    }
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(a_large_store_that_several_threads_read_is_right)
{
    struct server_kit s;
    struct kit k;
    struct tsr_range range;
    struct tsr_space_desc desc = wide_desc();
    server_open(&s, (const char *const[]){"host_size", "64M", "host_page_size", "256K",
                                          "io_threads", "3", NULL});
    served_kit_open(&k, s.path, NULL);
    tsr_space_close(k.space);
    k.space = kit_space(k.cache, &desc);
    uint32_t *tokens = kit_tokens(7, 200); /* 19 MB */
    struct tsr_prompt p = kit_prefix_prompt(tokens, 200);
    CHECK_INT(kit_store_prefix(&k, tokens, 200), 192);
    CHECK_INT(kit_load_and_check(&k, &p), 192);
    p = kit_segment_prompt(tokens, 100, &range); /* one block */
    CHECK_INT(kit_store_segment(&k, tokens, 100), 100);
    CHECK_INT(kit_load_and_check(&k, &p), 100);
    free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(a_prefix_of_which_no_layer_fits_goes_some_blocks_at_a_time)
{
    struct server_kit s;
    struct kit k;
    wide_open(&s, &k);
    uint32_t *tokens = kit_tokens(7, 203); /* a layer of them: 1.6 MB */
    struct tsr_prompt p = kit_prefix_prompt(tokens, 203);
    CHECK_INT(kit_store_prefix(&k, tokens, 203), 192);
    CHECK_INT(kit_load_and_check(&k, &p), 192);
    /* Behind blocks that are there, from a view of its own. */
    uint32_t *longer = kit_tokens(7, 400);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .kind = TSR_KIND_PREFIX,
                                   .tokens = longer,
                                   .n_tokens = 400,
                                   .from = 192};
    CHECK_INT(kit_store(&k, &store), 208);
    p = kit_prefix_prompt(longer, 400);
    CHECK_INT(kit_load_and_check(&k, &p), 400);
    CHECK_INT(kit_store_segment(&k, longer, 100), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "server_staging");
    free(tokens), free(longer);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(what_a_prefix_cost_is_shared_out_over_its_parts)
{
    struct server_kit s;
    struct kit k;
    wide_open(&s, &k);
    uint32_t *tokens = kit_tokens(7, 192);
    struct tsr_store_desc store = {
        .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 192, .cost_s = 3};
    CHECK_INT(kit_store(&k, &store), 192);
    const struct tsr_cache *c = s.k.cache;
    for (uint32_t id = 0; id < c->ids_fresh; id++) {
        float want = 3.0f * (float)c->entries[id].n_tokens / 192;
        CHECK(c->entries[id].cost_s > 0.99f * want && c->entries[id].cost_s < 1.01f * want);
    }
    CHECK(c->ids_fresh > 2);
    free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(layers_may_be_given_one_by_one)
{
    struct server_kit s;
    struct kit k;
    struct tsr_range range;
    struct tsr_put *put;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(7, 100);
    struct tsr_prompt p = kit_segment_prompt(tokens, 100, &range);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = k.space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = 100};
    struct tsr_view all = kit_store_view(&store), layer = all;
    size_t bytes = all.bytes / 2;
    layer.bytes = bytes;
    CHECK_INT(tsr_put_open(&put, k.client, &store), 0);
    CHECK_INT(tsr_put_layer(put, 7, &layer), TSR_EINVAL);
    for (uint32_t l = 2; l-- > 0;) {
        CHECK_INT(kit_find_segment(&k, tokens, 100), 0);
        layer.data = (uint8_t *)all.data + l * bytes;
        CHECK_INT(tsr_put_layer(put, l, &layer), 0);
    }
    CHECK_INT(tsr_put_commit(put), 100);
    CHECK_INT(kit_load_and_check(&k, &p), 100);
    CHECK_INT(tsr_put_open(&put, k.client, &store), 0); /* there already */
    CHECK_INT(tsr_put_layer(put, 0, &layer), 0);
    CHECK_INT(tsr_put_commit(put), 0);
    uint32_t *other = kit_tokens(8, 100);
    store.tokens = other;
    CHECK_INT(tsr_put_open(&put, k.client, &store), 0);
    CHECK_INT(tsr_put_layer(put, 0, &layer), 0);
    CHECK(tsr_put_commit(put) < 0); /* a layer is missing */
    CHECK_INT(tsr_put_open(&put, k.client, &store), 0);
    tsr_put_abort(put);
    CHECK_INT(tsr_put_open(&put, k.client, &store), 0);
    tsr_server_close(s.server);
    s.server = NULL;
    CHECK(tsr_put_layer(put, 0, &layer) < 0);
    CHECK(tsr_put_commit(put) < 0);
    free(all.data);
    free(tokens), free(other);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(rows_may_stand_anywhere_in_the_callers_memory)
{
    struct server_kit s;
    struct kit k;
    struct tsr_range range;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(7, 50);
    struct tsr_prompt p = kit_segment_prompt(tokens, 50, &range);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = k.space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = 50};
    struct tsr_view packed = kit_store_view(&store);
    size_t stride = 200, plane = 50 * stride, layer = 2 * plane, row = 64;
    uint8_t *data = calloc(2, layer);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t q = 0; q < 2; q++)
            for (uint32_t t = 0; t < 50; t++)
                memcpy(data + l * layer + q * plane + t * stride,
                       (uint8_t *)packed.data + ((l * 2 + q) * 50 + t) * row, row);
    store.view = (struct tsr_view){.data = data,
                                   .bytes = 2 * layer,
                                   .layer_stride = layer,
                                   .plane_stride = plane,
                                   .token_stride = stride};
    CHECK_INT(tsr_client_store(k.client, &store), 50);
    CHECK_INT(kit_load_and_check(&k, &p), 50);
    store.view.bytes = layer;
    CHECK_INT(tsr_client_store(k.client, &store), TSR_ERANGE);
    free(data), free(packed.data), free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(blended_kv_is_found_by_its_recipe_alone)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    struct tsr_range range;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(7, 64);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .kind = TSR_KIND_BLENDED,
                                   .tokens = tokens,
                                   .n_tokens = 64,
                                   .recipe = "query 5%",
                                   .recipe_bytes = 8};
    CHECK_INT(kit_store(&k, &store), 64);
    CHECK_INT(kit_find_segment(&k, tokens, 64), 0);
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    struct tsr_prompt p = kit_segment_prompt(tokens, 64, &range);
    p.flags |= TSR_PROMPT_BLENDED;
    p.recipe = "query 5%";
    p.recipe_bytes = 8;
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 64);
    CHECK_INT(hits.matches[0].kind, TSR_KIND_BLENDED);
    p.recipe = "query 6%";
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 0);
    free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

TEST(what_a_store_cost_reaches_the_policy_of_the_server)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_store_desc store = {
        .kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 64, .cost_s = 2.5f};
    CHECK_INT(kit_store(&k, &store), 64);
    CHECK(s.k.cache->entries[0].cost_s == 2.5f);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

TEST(a_store_may_run_in_the_background)
{
    struct server_kit s;
    struct kit k;
    struct tsr_range range;
    struct tsr_op *op;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(7, 64);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = k.space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = 64};
    store.view = kit_store_view(&store);
    CHECK_INT(tsr_client_store_start(&op, k.client, &store, NULL, NULL), 0);
    CHECK_INT(tsr_op_wait(op, 10000), 64);
    tsr_op_close(op);
    struct tsr_prompt p = kit_segment_prompt(tokens, 64, &range);
    CHECK_INT(kit_load_and_check(&k, &p), 64);
    free(store.view.data), free(tokens);
    kit_close(&k);
    CHECK(server_end(&s));
}

/* Waits until a lookup finds the segment; false after five seconds. */
static bool comes_up(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    for (int i = 0; i < 500; i++) {
        if (kit_find_segment(k, tokens, n) > 0) return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

/* The server copies when it goes on: what stands in the staging area then must still be the rows of
 * the store that it was told of. */
TEST(rows_of_a_store_that_timed_out_are_not_overwritten_by_the_next)
{
    if (TEST_TSAN) SKIP("the thread sanitizer starts no threads in a forked process");
    enum { N = 64 };
    struct served s = {.pid = 0};
    struct kit k;
    struct tsr_range range;
    served_start(&s, NULL);
    served_kit_open(&k, s.path, (const char *const[]){"server_patience", "300", NULL});
    uint32_t *first = kit_tokens(1, N), *late = kit_tokens(2, N), *next = kit_tokens(3, N);
    struct tsr_prompt p = kit_segment_prompt(late, N, &range);
    int n = TSR_EAGAIN; /* a busy machine may need more than the patience */
    for (int i = 0; i < 1000 && n < 0; i++) {
        n = kit_store_segment(&k, first, N);
        if (n < 0) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    CHECK(n >= 0);
    kill(s.pid, SIGSTOP);
    CHECK(waitpid(s.pid, NULL, WUNTRACED) == s.pid);
    CHECK(kit_store_segment(&k, late, N) < 0);
    CHECK(kit_store_segment(&k, next, N) < 0);
    kill(s.pid, SIGCONT);
    if (comes_up(&k, late, N)) CHECK_INT(kit_load_and_check(&k, &p), N);
    kit_close(&k);
    served_stop(&s, SIGTERM);
    free(first), free(late), free(next);
    served_end(&s);
}

/* A server that takes its time to open a put. */
static void answer_late(struct lying_server *s, struct tsri_reply *r)
{
    struct kit *k = s->arg;
    if (r->type == TSRI_WIRE_PUT_OPEN) {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        r->n_blocks = 1;
    } else if (r->type == TSRI_WIRE_SPACE_OPEN) {
        const struct tsri_shape *shape = &k->space->shape;
        r->space = (struct tsri_wire_space){.n_layers = shape->n_layers,
                                            .n_planes = shape->n_planes,
                                            .row_bytes = {shape->row_bytes[0], shape->row_bytes[1]},
                                            .cell_tokens = shape->cell_tokens,
                                            .page_bytes = 1 << 16};
        memcpy(r->space.fingerprint, k->space->fingerprint, 16);
    }
}

/* Its number comes too late for anybody to abort it, and it would hold pages of the server as long
 * as the session lasts. */
TEST(a_put_that_was_opened_too_late_ends_with_its_session)
{
    struct kit k;
    struct lying_server s = {.answer = answer_late, .arg = &k};
    lying_server_open(&s);
    served_kit_open(&k, s.path, (const char *const[]){"server_patience", "100", NULL});
    struct tsri_link *link = tsri_client_seat(k.client)->link;
    uint64_t session = tsri_link_session(link);
    uint32_t *tokens = kit_tokens(1, 16);
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = k.space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = 16};
    struct tsr_put *put;
    CHECK(session != 0);
    CHECK_INT(tsr_put_open(&put, k.client, &store), TSR_ETIME);
    CHECK_INT(tsri_link_await(link, tsri_now_ns() + 5000000000u), 0);
    CHECK(tsri_link_session(link) != session);
    free(tokens);
    kit_close(&k);
    lying_server_close(&s);
}

int main(void)
{
    RUN(a_store_larger_than_the_staging_area_goes_in_pieces);
    RUN(a_large_store_that_several_threads_read_is_right);
    RUN(a_prefix_of_which_no_layer_fits_goes_some_blocks_at_a_time);
    RUN(what_a_prefix_cost_is_shared_out_over_its_parts);
    RUN(layers_may_be_given_one_by_one);
    RUN(rows_may_stand_anywhere_in_the_callers_memory);
    RUN(blended_kv_is_found_by_its_recipe_alone);
    RUN(what_a_store_cost_reaches_the_policy_of_the_server);
    RUN(a_store_may_run_in_the_background);
    RUN(rows_of_a_store_that_timed_out_are_not_overwritten_by_the_next);
    RUN(a_put_that_was_opened_too_late_ends_with_its_session);
    return test_end();
}
