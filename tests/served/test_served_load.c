/* test_served_load.c - loads out of a server's memory: parts of matches, single layers, layer by
 * layer in the background, from a tier below the server, and when the lender lets go meanwhile. */
#include "cache/source.h"

#include "support/fake_tier.h"
#include "support/served_kit.h"
#include "support/test.h"

#include <unistd.h>

/* A range of one match into a view of the test's choosing; the result, after every byte was
 * checked.
 */
static int load_range(struct kit *k, const struct tsr_prompt *p, const struct kit_hits *hits,
                      uint32_t row, struct tsr_load_desc part)
{
    const struct tsr_match *m = &hits->matches[row];
    const struct tsri_shape *s = &k->space->shape;
    uint32_t n = part.n_tokens ? part.n_tokens : m->n_tokens - part.offset;
    uint32_t layers = part.n_layers ? part.n_layers : s->n_layers - part.layer_first;
    size_t stride = 96, plane = n * stride, layer = 2 * plane + 64;
    uint8_t *data = malloc(layers * layer);
    part.size = sizeof part;
    part.space = k->space;
    part.match = m;
    part.prompt = p;
    part.view = (struct tsr_view){.data = data,
                                  .bytes = layers * layer,
                                  .layer_stride = layer,
                                  .plane_stride = plane,
                                  .token_stride = stride};
    int loaded = tsr_client_load(k->client, &part, 1);
    if (loaded == 1) {
        uint64_t seen = kit_match_seen(k->space, p, m);
        const uint32_t *tokens = p->tokens + m->prompt_offset;
        seen = kit_seen(seen, tokens, part.offset);
        if (!kit_right(k->space, seen, tokens + part.offset, n, part.layer_first, layers,
                       &part.view))
            abort();
    }
    free(data);
    return loaded == 1 ? 0 : part.result;
}

TEST(any_part_of_a_match_can_be_had)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    struct tsr_range range;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 300);
    struct tsr_prompt p = kit_segment_prompt(tokens, 300, &range);
    CHECK_INT(kit_store_segment(&k, tokens, 300), 300);
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 300);
    for (uint32_t offset = 0; offset < 300; offset += 37)
        for (uint32_t n = 1; n <= 300 - offset; n += 61)
            CHECK_INT(load_range(&k, &p, &hits, 0,
                                 (struct tsr_load_desc){.offset = offset, .n_tokens = n}),
                      0);
    CHECK_INT(load_range(&k, &p, &hits, 0, (struct tsr_load_desc){.offset = 299}), 0);
    CHECK_INT(load_range(&k, &p, &hits, 0, (struct tsr_load_desc){.layer_first = 1}), 0);
    CHECK_INT(load_range(&k, &p, &hits, 0, (struct tsr_load_desc){.n_layers = 1, .offset = 64}), 0);
    CHECK(server_wait_leased(&s, 0));
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

TEST(what_is_gone_is_reported_for_its_range_alone)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 64);
    CHECK_INT(tsr_cache_clear(s.k.cache, NULL), 4);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    for (uint32_t row = 0; row < 4; row++) /* other entries now, if any */
        CHECK_INT(kit_load(&k, &p, &hits, row), TSR_ENOENT);
    struct kit_hits again;
    CHECK_INT(kit_lookup(&k, &p, 0, &again), 48);
    struct tsr_load_desc loads[2];
    size_t bytes = 16 * tsr_space_token_bytes(k.space);
    uint8_t *data = malloc(2 * bytes);
    for (int i = 0; i < 2; i++)
        loads[i] =
            (struct tsr_load_desc){.size = sizeof loads[i],
                                   .space = k.space,
                                   .match = i ? &again.matches[2] : &hits.matches[3],
                                   .view = {.data = data + (size_t)i * bytes, .bytes = bytes}};
    CHECK_INT(tsr_client_load(k.client, loads, 2), 1);
    CHECK_INT(loads[0].result, TSR_ENOENT);
    CHECK_INT(loads[1].result, 0);
    CHECK(server_wait_leased(&s, 0));
    free(data);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

TEST(layers_arrive_one_by_one_in_the_background)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    struct tsr_range range;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 200);
    struct tsr_prompt p = kit_segment_prompt(tokens, 200, &range);
    CHECK_INT(kit_store_segment(&k, tokens, 200), 200);
    CHECK_INT(kit_lookup(&k, &p, 1, &hits), 200);
    size_t bytes = 200 * tsr_space_token_bytes(k.space);
    struct tsr_view view = {.data = malloc(bytes), .bytes = bytes};
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = k.space,
                                 .match = &hits.matches[0],
                                 .prompt = &p,
                                 .view = view};
    struct tsr_op *op;
    CHECK_INT(tsr_client_load_start(&op, k.client, &load, 1, NULL, NULL), 0);
    for (uint32_t l = 0; l < 2; l++) {
        CHECK_INT(tsr_op_wait_layer(op, l, 10000), 0);
        CHECK_INT(load.result, 0);
    }
    CHECK_INT(tsr_op_wait(op, 10000), 1);
    tsr_op_close(op);
    CHECK_INT(tsri_view_check(&k.space->shape, &view, 200, 2), 0);
    CHECK(kit_right(k.space, kit_seed(k.space), tokens, 200, 0, 2, &view));
    free(view.data);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

TEST(what_only_a_tier_of_the_server_has_is_fetched_and_verified)
{
    struct fake_tier_plan plan;
    struct server_kit s;
    struct kit k;
    fake_tier_plan_init(&plan);
    server_open_tiers(&s, NULL, &plan, 1);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 200);
    struct tsr_range range;
    struct tsr_prompt prefix = kit_prefix_prompt(tokens, 200);
    struct tsr_prompt segment = kit_segment_prompt(tokens, 200, &range);
    CHECK_INT(kit_store_prefix(&k, tokens, 200), 192);
    CHECK_INT(kit_store_segment(&k, tokens, 200), 200);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    for (int i = 0; i < 3; i++) {
        CHECK(kit_evict_all(&k) >= 1);
        CHECK_INT(kit_load_and_check(&k, &prefix), 192);
        CHECK_INT(kit_load_and_check(&k, &segment), 200);
    }
    /* One that was turned somewhere says where when it is loaded, and not before. */
    struct kit_hits hits;
    struct tsr_prompt part = kit_segment_prompt(tokens, 100, &range);
    struct tsr_store_desc moved = {
        .kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 100, .base = 77};
    CHECK_INT(kit_store(&k, &moved), 100);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK(kit_evict_all(&k) >= 1);
    CHECK_INT(kit_lookup(&k, &part, 0, &hits), 100);
    CHECK_INT(hits.matches[0].verified, 0);
    CHECK_INT(hits.matches[0].base, TSR_BASE_UNKNOWN);
    static uint8_t kv[40 * 256];
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = k.space,
                                 .match = &hits.matches[0],
                                 .prompt = &part,
                                 .offset = 60,
                                 .view = {.data = kv, .bytes = sizeof kv}};
    CHECK_INT(tsr_client_load(k.client, &load, 1), 1);
    CHECK(load.base == 77 && load.freq_set == 0);
    CHECK(server_wait_leased(&s, 0));
    kit_close(&k);
    CHECK(server_end(&s));
    fake_tier_plan_fini(&plan);
    free(tokens);
}

/* ---- the lender lets go ---- */

struct closing {
    struct server_kit *s;
    struct tsri_loader loader;
    uint32_t n_layers;
};

static void end_server(struct tsri_loader *loader, uint32_t layer)
{
    struct closing *x = loader->arg;
    x->n_layers++;
    if (layer == 0) {
        tsr_server_close(x->s->server);
        x->s->server = NULL;
    }
}

TEST(a_layer_copied_after_the_end_of_the_session_is_not_handed_on)
{
    struct server_kit s;
    struct kit k;
    struct kit_hits hits;
    struct tsr_range range;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, NULL);
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_segment_prompt(tokens, 64, &range);
    CHECK_INT(kit_store_segment(&k, tokens, 64), 64);
    CHECK_INT(kit_lookup(&k, &p, 0, &hits), 64);
    size_t bytes = 64 * tsr_space_token_bytes(k.space);
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = k.space,
                                 .match = &hits.matches[0],
                                 .prompt = &p,
                                 .view = {.data = malloc(bytes), .bytes = bytes}};
    struct closing x = {
        .s = &s,
        .loader = {
            .client = k.client, .loads = &load, .n = 1, .layer_done = end_server, .arg = &x}};
    CHECK_INT(tsri_loader_run(&x.loader), 0);
    CHECK_INT(x.n_layers, 1);
    CHECK_INT(load.result, TSR_ENOENT);
    free(load.view.data);
    kit_close(&k);
    CHECK(server_end(&s));
    free(tokens);
}

int main(void)
{
    RUN(any_part_of_a_match_can_be_had);
    RUN(what_is_gone_is_reported_for_its_range_alone);
    RUN(layers_arrive_one_by_one_in_the_background);
    RUN(what_only_a_tier_of_the_server_has_is_fetched_and_verified);
    RUN(a_layer_copied_after_the_end_of_the_session_is_not_handed_on);
    return test_end();
}
