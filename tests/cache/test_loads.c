/* Loading through the public API: whole matches, ranges, layers, into memory of any strides,
 * several at once of which some are gone. What is refused is refused before a byte of the caller's
 * memory changes, which canaries show. */
#include "support/cache_kit.h"
#include "support/test.h"

enum { ROW = 64, LAYER = 2 * ROW, TOKEN = 2 * LAYER, CANARY = 0xA5 };

/* A text of 150 tokens as one segment, looked up. */
struct found {
    struct kit k;
    uint32_t *tokens;
    struct tsr_range range;
    struct tsr_prompt prompt;
    struct kit_hits hits;
};

static void found_open(struct found *f)
{
    kit_open(&f->k, NULL);
    f->tokens = kit_tokens(1, 150);
    CHECK_INT(kit_store_segment(&f->k, f->tokens, 150), 150);
    f->prompt = kit_segment_prompt(f->tokens, 150, &f->range);
    CHECK_INT(kit_lookup(&f->k, &f->prompt, 0, &f->hits), 150);
}

static bool found_end(struct found *f)
{
    free(f->tokens);
    return kit_end(&f->k);
}

static struct tsr_load_desc load_of(const struct found *f, void *data, size_t bytes)
{
    return (struct tsr_load_desc){.size = sizeof(struct tsr_load_desc),
                                  .space = f->k.space,
                                  .match = &f->hits.matches[0],
                                  .view = {.data = data, .bytes = bytes}};
}

static bool all_canaries(const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != CANARY) return false;
    return true;
}

TEST(any_range_of_tokens_and_layers_is_loaded_exactly)
{
    struct found f;
    found_open(&f);
    static uint8_t kv[150 * TOKEN + 64];
    uint64_t seed = 5;
    for (int round = 0; round < 300; round++) {
        uint32_t offset = (uint32_t)(test_rand(&seed) % 150);
        uint32_t n = 1 + (uint32_t)(test_rand(&seed) % (150 - offset));
        uint32_t layer = (uint32_t)(test_rand(&seed) % 2);
        uint32_t n_layers = 1 + (uint32_t)(test_rand(&seed) % (2 - layer));
        size_t bytes = (size_t)n * n_layers * LAYER;
        memset(kv, CANARY, sizeof kv);
        struct tsr_load_desc load = load_of(&f, kv, bytes);
        load.offset = offset;
        load.n_tokens = offset + n == 150 && round % 2 ? 0 : n; /* 0: to the end */
        load.layer_first = layer;
        load.n_layers = layer + n_layers == 2 && round % 3 ? 0 : n_layers;
        CHECK_INT(tsr_client_load(f.k.client, &load, 1), 1);
        CHECK_INT(load.result, 0);
        CHECK(kit_right(f.k.space, kit_seen(kit_seed(f.k.space), f.tokens, offset),
                        f.tokens + offset, n, layer, n_layers, &load.view));
        CHECK(all_canaries(kv + bytes, sizeof kv - bytes));
    }
    CHECK(found_end(&f));
}

TEST(strided_memory_gets_its_rows_and_keeps_its_gaps)
{
    struct found f;
    found_open(&f);
    const size_t strides[][3] = {/* layer, plane, token: gaps between rows, and planes first */
                                 {LAYER, ROW, TOKEN},
                                 {LAYER + 40, ROW + 8, 400},
                                 {150 * ROW, 300 * ROW + 5, 0}};
    for (size_t i = 0; i < TSRI_COUNT(strides); i++) {
        size_t token = strides[i][2] ? strides[i][2] : ROW;
        size_t bytes = strides[i][0] + strides[i][1] + 149 * token + ROW;
        uint8_t *data = malloc(bytes + 1);
        memset(data, CANARY, bytes + 1);
        struct tsr_load_desc load = load_of(&f, data, bytes - 1);
        load.view.layer_stride = strides[i][0];
        load.view.plane_stride = strides[i][1];
        load.view.token_stride = strides[i][2];
        CHECK_INT(tsr_client_load(f.k.client, &load, 1), TSR_ERANGE);
        CHECK_HAS(tsr_errmsg(), "load 0");
        CHECK(all_canaries(data, bytes + 1));
        load.view.bytes = bytes;
        CHECK_INT(tsr_client_load(f.k.client, &load, 1), 1);
        CHECK(kit_right(f.k.space, kit_seed(f.k.space), f.tokens, 150, 0, 2, &load.view));
        size_t n_written = 0;
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t p = 0; p < 2; p++)
                for (uint32_t t = 0; t < 150; t++) {
                    memset(data + l * strides[i][0] + p * strides[i][1] + t * token, CANARY, ROW);
                    n_written += ROW;
                }
        CHECK_INT(n_written, 150 * TOKEN);
        CHECK(all_canaries(data, bytes + 1)); /* nothing else was touched */
        free(data);
    }
    CHECK(found_end(&f));
}

/* LMCache's KV_2LTD: all layers of K, then all layers of V. */
TEST(kv_in_the_order_2ltd_is_stored_and_loaded_by_strides)
{
    struct found f;
    found_open(&f);
    enum { N = 90 };
    static uint8_t in[N * TOKEN], out[N * TOKEN];
    uint32_t *tokens = kit_tokens(7, N);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, N, &range);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * 31 + i / 251);
    struct tsr_view view = {.data = in,
                            .bytes = sizeof in,
                            .layer_stride = N * ROW,
                            .plane_stride = (size_t)f.k.space->shape.n_layers * N * ROW};
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = f.k.space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = N,
                                   .view = view};
    CHECK_INT(tsr_client_store(f.k.client, &store), N);
    CHECK_INT(kit_lookup(&f.k, &prompt, 0, &f.hits), N);
    struct tsr_load_desc load = load_of(&f, out, sizeof out);
    load.view.layer_stride = view.layer_stride;
    load.view.plane_stride = view.plane_stride;
    CHECK_INT(tsr_client_load(f.k.client, &load, 1), 1);
    CHECK(memcmp(in, out, sizeof in) == 0);
    /* The same entry, packed: layer 0 of K is where it was, V of layer 0 comes next. */
    static uint8_t packed[N * TOKEN];
    load = load_of(&f, packed, sizeof packed);
    CHECK_INT(tsr_client_load(f.k.client, &load, 1), 1);
    CHECK(memcmp(packed, in, N * ROW) == 0);
    CHECK(memcmp(packed + N * ROW, in + view.plane_stride, N * ROW) == 0);
    free(tokens);
    CHECK(found_end(&f));
}

TEST(a_load_that_cannot_be_right_is_refused_before_a_byte_moves)
{
    struct found f;
    found_open(&f);
    struct tsr_space_desc desc = kit_desc();
    desc.n_layers = 3;
    struct tsr_space *wider = kit_space(f.k.cache, &desc);
    static uint8_t kv[150 * TOKEN * 2];
    memset(kv, CANARY, sizeof kv);
    const struct tsr_load_desc good = load_of(&f, kv, sizeof kv);
    struct tsr_match odd = f.hits.matches[0];
    struct tsr_load_desc bad[18];
    for (size_t i = 0; i < TSRI_COUNT(bad); i++)
        bad[i] = good;
    bad[0].size = 0;
    bad[1].space = NULL;
    bad[2].match = NULL;
    bad[3].offset = 150;
    bad[4].n_tokens = 151;
    bad[5].offset = UINT32_MAX;
    bad[6].offset = 1, bad[6].n_tokens = UINT32_MAX;
    bad[7].layer_first = 2;
    bad[8].n_layers = 3;
    bad[9].layer_first = 1, bad[9].n_layers = UINT32_MAX;
    bad[10].view.data = NULL;
    bad[11].view.bytes = 150 * TOKEN - 1;
    bad[12].view.bytes = 0;
    bad[13].view.token_stride = ROW - 1, bad[13].view.plane_stride = 1;
    bad[14].view.token_stride = ROW; /* K and V in the same place */
    bad[15].view.layer_stride = SIZE_MAX, bad[15].view.plane_stride = 150 * ROW;
    bad[16].view.layer_stride = 150 * LAYER, bad[16].view.plane_stride = SIZE_MAX - ROW + 1;
    bad[17].view.token_stride = SIZE_MAX / 100, bad[17].view.plane_stride = ROW;
    for (size_t i = 0; i < TSRI_COUNT(bad); i++) {
        /* Second of two: the first, which is fine, is not loaded either. */
        struct tsr_load_desc loads[2] = {good, bad[i]};
        CHECK(tsr_client_load(f.k.client, loads, 2) < 0);
        CHECK_HAS(tsr_errmsg(), "load 1");
        CHECK(all_canaries(kv, sizeof kv));
    }
    /* What only the entry can tell is told of its range alone. */
    struct tsr_load_desc other = good;
    other.space = wider;
    other.n_tokens = 10;
    CHECK_INT(tsr_client_load(f.k.client, &other, 1), 0);
    CHECK_INT(other.result, TSR_ESPACE);
    CHECK(all_canaries(kv, sizeof kv));
    /* Matches that no lookup made. */
    other = good;
    other.match = &odd;
    odd.n_tokens = 151;
    CHECK_INT(tsr_client_load(f.k.client, &other, 1), 0);
    odd.n_tokens = 10, odd.entry_offset = 141;
    CHECK_INT(tsr_client_load(f.k.client, &other, 1), 0);
    odd.entry_offset = UINT32_MAX;
    CHECK(tsr_client_load(f.k.client, &other, 1) <= 0);
    odd = f.hits.matches[0];
    for (int bit = 0; bit < 64; bit++) {
        odd.entry = f.hits.matches[0].entry ^ (uint64_t)1 << bit;
        CHECK_INT(tsr_client_load(f.k.client, &other, 1), 0);
        CHECK_INT(other.result, TSR_ENOENT);
    }
    CHECK(all_canaries(kv, sizeof kv));
    CHECK_INT(tsr_client_load(f.k.client, NULL, 0), 0);
    tsr_space_close(wider);
    CHECK(found_end(&f));
}

TEST(of_several_ranges_those_that_are_gone_say_so_and_the_others_are_right)
{
    enum { N = 40 };
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, N * 10);
    struct tsr_range ranges[N];
    for (uint32_t i = 0; i < N; i++) {
        ranges[i] = (struct tsr_range){i * 10, 10};
        CHECK_INT(kit_store_segment(&k, tokens + i * 10, 10), 10);
    }
    struct tsr_range one;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, N * 10, &one);
    prompt.segments = ranges;
    prompt.n_segments = N;
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), N * 10);
    for (uint32_t i = 0; i < N; i += 3) {
        struct tsr_prompt part = kit_segment_prompt(tokens + i * 10, 10, &one);
        const struct tsr_clear_desc clear = {
            .size = sizeof clear, .space = k.space, .prompt = &part, .tier = -1};
        CHECK_INT(tsr_cache_clear(k.cache, &clear), 1);
    }
    static uint8_t kv[N][10 * TOKEN];
    memset(kv, CANARY, sizeof kv);
    struct tsr_load_desc loads[N];
    for (uint32_t i = 0; i < N; i++)
        loads[i] = (struct tsr_load_desc){.size = sizeof loads[i],
                                          .space = k.space,
                                          .match = &hits.matches[i],
                                          .view = {.data = kv[i], .bytes = sizeof kv[i]}};
    CHECK_INT(tsr_client_load(k.client, loads, N), N - (N + 2) / 3);
    for (uint32_t i = 0; i < N; i++) {
        CHECK_INT(loads[i].result, i % 3 ? 0 : TSR_ENOENT);
        if (i % 3)
            CHECK(kit_right(k.space, kit_seed(k.space), tokens + i * 10, 10, 0, 2, &loads[i].view));
        else
            CHECK(all_canaries(kv[i], sizeof kv[i]));
    }
    struct tsr_stats s = kit_stats(&k);
    CHECK_INT(s.loads, N);
    CHECK_INT(s.load_misses, (N + 2) / 3);
    CHECK_INT(s.load_bytes, (N - (N + 2) / 3) * 10 * TOKEN);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_stale_match_is_a_miss_however_its_entry_went)
{
    struct found f;
    found_open(&f);
    static uint8_t kv[150 * TOKEN];
    memset(kv, CANARY, sizeof kv);
    struct tsr_load_desc load = load_of(&f, kv, sizeof kv);
    for (int way = 0; way < 3; way++) {
        CHECK_INT(kit_lookup(&f.k, &f.prompt, 0, &f.hits), 150);
        if (way == 0) CHECK_INT(kit_evict_all(&f.k), 1);
        if (way == 1) CHECK_INT(tsr_cache_clear(f.k.cache, NULL), 1);
        /* Driven out by others, which have its id and its pages now. */
        for (uint64_t i = 0; way == 2 && i < 200; i++) {
            uint32_t *others = kit_tokens(100 + i, 150);
            CHECK_INT(kit_store_segment(&f.k, others, 150), 150);
            free(others);
        }
        CHECK_INT(tsr_client_load(f.k.client, &load, 1), 0);
        CHECK_INT(load.result, TSR_ENOENT);
        /* Stored again it is another entry, though it has the same id. */
        CHECK_INT(kit_store_segment(&f.k, f.tokens, 150), 150);
        CHECK_INT(tsr_client_load(f.k.client, &load, 1), 0);
        CHECK_INT(load.result, TSR_ENOENT);
    }
    CHECK(all_canaries(kv, sizeof kv));
    CHECK(found_end(&f));
}

/* A generation has 36 bits; a handle carries all of them. */
TEST(a_match_of_an_id_used_many_times_is_still_told_apart)
{
    struct kit k;
    kit_open(&k, (const char *const[]){"entries_max", "16", NULL});
    uint32_t *tokens = kit_tokens(1, 16);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 16, &range);
    uint64_t seen[300];
    for (uint32_t i = 0; i < 300; i++) {
        struct kit_hits hits;
        CHECK_INT(kit_store_segment(&k, tokens, 16), 16);
        CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 16);
        seen[i] = hits.matches[0].entry;
        for (uint32_t j = 0; j < i; j++)
            CHECK(seen[j] != seen[i]);
        CHECK_INT(tsr_cache_clear(k.cache, NULL), 1);
    }
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_clipped_match_loads_its_own_part)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    CHECK_INT(kit_store_prefix(&k, tokens, 32), 32);
    CHECK_INT(kit_store_segment(&k, tokens + 10, 90), 90);
    struct tsr_range range = {10, 90};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = tokens,
                                .n_tokens = 100,
                                .flags = TSR_PROMPT_PREFIX | TSR_PROMPT_SEGMENTS,
                                .segments = &range,
                                .n_segments = 1};
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&k, &prompt, 0, &hits), 100);
    CHECK_INT(hits.matches[2].entry_offset, 22);
    CHECK_INT(kit_load(&k, &prompt, &hits, 2), 0);
    /* And a part of that part. */
    uint8_t kv[5 * TOKEN];
    struct tsr_load_desc load = {.size = sizeof load,
                                 .space = k.space,
                                 .match = &hits.matches[2],
                                 .offset = 40,
                                 .n_tokens = 5,
                                 .view = {.data = kv, .bytes = sizeof kv}};
    CHECK_INT(tsr_client_load(k.client, &load, 1), 1);
    CHECK(kit_right(k.space, kit_seen(kit_seed(k.space), tokens + 10, 62), tokens + 72, 5, 0, 2,
                    &load.view));
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(an_entry_may_be_loaded_while_it_is_dropped)
{
    struct found f;
    found_open(&f);
    /* A lease keeps the bytes, though the entry is no longer found. */
    CHECK_INT(kit_lookup(&f.k, &f.prompt, 9, &f.hits), 150);
    uint32_t id = tsri_handle_id(f.hits.matches[0].entry);
    pthread_mutex_lock(&f.k.cache->lock);
    tsri_entry_drop(f.k.cache, id, TSR_EVENT_DROPPED);
    pthread_mutex_unlock(&f.k.cache->lock);
    CHECK_INT(kit_find_segment(&f.k, f.tokens, 150), 0);
    CHECK_INT(kit_load(&f.k, &f.prompt, &f.hits, 0), 0);
    CHECK_INT(kit_stats(&f.k).host_bytes_used, 3 << 14);
    CHECK_INT(tsr_client_release(f.k.client, 9), 1);
    CHECK_INT(kit_stats(&f.k).host_bytes_used, 0);
    CHECK(found_end(&f));
}

int main(void)
{
    RUN(any_range_of_tokens_and_layers_is_loaded_exactly);
    RUN(strided_memory_gets_its_rows_and_keeps_its_gaps);
    RUN(kv_in_the_order_2ltd_is_stored_and_loaded_by_strides);
    RUN(a_load_that_cannot_be_right_is_refused_before_a_byte_moves);
    RUN(of_several_ranges_those_that_are_gone_say_so_and_the_others_are_right);
    RUN(a_stale_match_is_a_miss_however_its_entry_went);
    RUN(a_match_of_an_id_used_many_times_is_still_told_apart);
    RUN(a_clipped_match_loads_its_own_part);
    RUN(an_entry_may_be_loaded_while_it_is_dropped);
    return test_end();
}
