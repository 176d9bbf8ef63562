/* Storing through the public API: whole and layer by layer, prefixes and segments, what is refused
 * and that a refusal changes nothing. After every test all pages and all metadata have come back.
 */
#include "support/cache_kit.h"
#include "support/test.h"

#include <math.h>

enum { ROW = 64, LAYER = 2 * ROW, TOKEN = 2 * LAYER };

static int load_prefix(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, n);
    return kit_load_and_check(k, &prompt);
}

static int load_segment(struct kit *k, const uint32_t *tokens, uint32_t n)
{
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, n, &range);
    return kit_load_and_check(k, &prompt);
}

/* ---- whole ---- */

TEST(a_store_returns_how_many_tokens_are_new)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 100);
    CHECK_INT(kit_store_prefix(&k, tokens, 15), 0); /* no whole block */
    CHECK_INT(kit_store_prefix(&k, tokens, 40), 32);
    CHECK_INT(kit_store_prefix(&k, tokens, 40), 0);
    CHECK_INT(kit_store_prefix(&k, tokens, 100), 64);
    CHECK_INT(kit_store_segment(&k, tokens, 100), 100);
    CHECK_INT(kit_store_segment(&k, tokens, 100), 0);
    CHECK_INT(load_prefix(&k, tokens, 100), 96);
    CHECK_INT(load_segment(&k, tokens, 100), 100);
    struct tsr_stats s = kit_stats(&k);
    CHECK_INT(s.stores, 6);
    CHECK_INT(s.stores_new, 7);
    CHECK_INT(s.store_bytes, 196 * TOKEN);
    CHECK_INT(s.stores_refused, 0);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(segments_of_any_length_come_back)
{
    struct kit k;
    kit_open(&k, NULL);
    for (uint32_t n = 1; n < 300; n += n < 70 ? 1 : 37) {
        uint32_t *tokens = kit_tokens(n, n);
        CHECK_INT(kit_store_segment(&k, tokens, n), n);
        CHECK_INT(load_segment(&k, tokens, n), n);
        free(tokens);
    }
    CHECK(kit_end(&k));
}

TEST(every_layout_and_dtype_comes_back)
{
    const struct {
        uint32_t dtype, layout, n_layers, n_heads, k_dim, v_dim;
    } shapes[] = {
        {TSR_DTYPE_F32, TSR_LAYOUT_STANDARD, 3, 2, 8, 0},
        {TSR_DTYPE_BF16, TSR_LAYOUT_STANDARD, 1, 1, 1, 0},    /* rows of 2 bytes */
        {TSR_DTYPE_INT8, TSR_LAYOUT_STANDARD, 5, 3, 7, 11},   /* V wider than K */
        {TSR_DTYPE_F16, TSR_LAYOUT_STANDARD, 2, 4, 64, 8},    /* and narrower */
        {TSR_DTYPE_F16, TSR_LAYOUT_MLA, 4, 1, 36, 0},         /* one plane */
        {TSR_DTYPE_OPAQUE, TSR_LAYOUT_OPAQUE, 65, 1, 129, 0}, /* more layers than a word of bits */
    };
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        struct kit k;
        kit_open(&k, (const char *const[]){"host_size", "4M", "host_page_size", "64K", NULL});
        struct tsr_space_desc d = kit_desc();
        d.dtype = shapes[i].dtype;
        d.layout = shapes[i].layout;
        d.n_layers = shapes[i].n_layers;
        d.n_heads = shapes[i].n_heads;
        d.k_dim = shapes[i].k_dim;
        d.v_dim = shapes[i].v_dim;
        tsr_space_close(k.space);
        k.space = kit_space(k.cache, &d);
        uint32_t *tokens = kit_tokens(i, 150);
        CHECK_INT(kit_store_prefix(&k, tokens, 150), 144);
        CHECK_INT(kit_store_segment(&k, tokens, 150), 150);
        CHECK_INT(load_prefix(&k, tokens, 150), 144);
        CHECK_INT(load_segment(&k, tokens, 150), 150);
        free(tokens);
        CHECK(kit_end(&k));
    }
}

TEST(a_last_partial_block_is_kept_when_asked_for)
{
    struct kit k;
    kit_open(&k, (const char *const[]){"save_partial", "true", NULL});
    uint32_t *tokens = kit_tokens(1, 100);
    CHECK_INT(kit_store_prefix(&k, tokens, 40), 40);
    CHECK_INT(load_prefix(&k, tokens, 40), 40);
    /* A partial block is found by the prompt that ends there, and is no block to build upon. */
    CHECK_INT(kit_find_prefix(&k, tokens, 41), 32);
    CHECK_INT(kit_find_prefix(&k, tokens, 39), 32);
    CHECK_INT(kit_store_prefix(&k, tokens, 100), 68);
    CHECK_INT(load_prefix(&k, tokens, 100), 100);
    CHECK_INT(load_prefix(&k, tokens, 40), 40);
    CHECK_INT(kit_store_prefix(&k, tokens, 5), 5);
    CHECK_INT(load_prefix(&k, tokens, 5), 5);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_prefix_goes_on_behind_blocks_that_are_there)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 128);
    struct tsr_store_desc s = {
        .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 96, .from = 32};
    CHECK_INT(kit_store(&k, &s), TSR_ENOENT);
    CHECK_HAS(tsr_errmsg(), "token 32");
    CHECK_INT(kit_stats(&k).entries, 0);
    CHECK_INT(kit_store_prefix(&k, tokens, 16), 16);
    CHECK_INT(kit_store(&k, &s), TSR_ENOENT); /* block 1 is missing still */
    CHECK_INT(kit_store_prefix(&k, tokens, 32), 16);
    CHECK_INT(kit_store(&k, &s), 64);
    CHECK_INT(load_prefix(&k, tokens, 96), 96);
    s.n_tokens = 128;
    CHECK_INT(kit_store(&k, &s), 32); /* the first blocks of it are there */
    CHECK_INT(load_prefix(&k, tokens, 128), 128);
    s.from = 17;
    CHECK_INT(kit_store(&k, &s), TSR_EINVAL);
    s.from = 128;
    CHECK_INT(kit_store(&k, &s), TSR_EINVAL);
    /* Nothing before token 16 is needed when `from` is 0. */
    s = (struct tsr_store_desc){.kind = TSR_KIND_PREFIX, .tokens = tokens + 1, .n_tokens = 40};
    CHECK_INT(kit_store(&k, &s), 32);
    free(tokens);
    CHECK(kit_end(&k));
}

static float cost_of(const struct tsr_cache *c, uint32_t n_tokens, uint32_t *n)
{
    float sum = 0;
    *n = 0;
    for (uint32_t id = 0; id < c->ids_max; id++) {
        const struct tsri_entry *e = &c->entries[id];
        if (tsri_word_state(atomic_load(&e->word)) != TSRI_HOST || e->n_tokens != n_tokens)
            continue;
        sum += e->cost_s;
        ++*n;
    }
    return sum;
}

TEST(what_computing_cost_is_shared_out_by_tokens)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t n, *tokens = kit_tokens(1, 104);
    struct tsr_store_desc s = {
        .kind = TSR_KIND_PREFIX, .tokens = tokens, .n_tokens = 64, .cost_s = 2};
    CHECK_INT(kit_store(&k, &s), 64);
    CHECK(cost_of(k.cache, 16, &n) == 2);
    CHECK_INT(n, 4);
    /* Only what was computed: 40 tokens for another second, of which 32 are stored. */
    s.from = 64;
    s.n_tokens = 104;
    s.cost_s = 1;
    CHECK_INT(kit_store(&k, &s), 32);
    float cost = cost_of(k.cache, 16, &n);
    CHECK(cost > 2.79f && cost < 2.81f);
    CHECK_INT(n, 6);
    s = (struct tsr_store_desc){
        .kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 33, .cost_s = 0.5f};
    CHECK_INT(kit_store(&k, &s), 33);
    CHECK(cost_of(k.cache, 33, &n) == 0.5f);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_cost_that_is_no_time_is_refused)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 16);
    const float costs[] = {-1, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < TSRI_COUNT(costs); i++) {
        struct tsr_store_desc s = {
            .kind = TSR_KIND_SEGMENT, .tokens = tokens, .n_tokens = 16, .cost_s = costs[i]};
        CHECK_INT(kit_store(&k, &s), TSR_EINVAL);
        CHECK_HAS(tsr_errmsg(), "seconds");
    }
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(kv_is_taken_from_any_strides)
{
    struct kit k;
    kit_open(&k, NULL);
    enum { N = 70 };
    uint32_t *tokens = kit_tokens(1, N);
    uint8_t packed[N * TOKEN];
    kit_fill(k.space, kit_seed(k.space), tokens, N, packed);
    /* [token][layer][plane], with gaps of all kinds; and planes before layers. */
    const size_t strides[][3] = {/* layer, plane, token */
                                 {LAYER, ROW, TOKEN},
                                 {LAYER + 40, ROW + 8, 400},
                                 {N * ROW, 2 * N * ROW, 0},
                                 {N * ROW, 2 * N * ROW + 13, ROW}};
    for (size_t i = 0; i < TSRI_COUNT(strides); i++) {
        const size_t *st = strides[i];
        size_t token = st[2] ? st[2] : ROW;
        size_t bytes = st[0] + st[1] + (N - 1) * token + ROW;
        uint8_t *data = malloc(bytes);
        memset(data, 0xEE, bytes);
        for (uint32_t l = 0; l < 2; l++)
            for (uint32_t p = 0; p < 2; p++)
                for (uint32_t t = 0; t < N; t++)
                    memcpy(data + l * st[0] + p * st[1] + t * token,
                           packed + (l * 2 + p) * N * ROW + t * ROW, ROW);
        struct tsr_store_desc s = {.size = sizeof s,
                                   .space = k.space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = N,
                                   .view = {data, bytes - 1, st[0], st[1], st[2]}};
        CHECK_INT(tsr_client_store(k.client, &s), TSR_ERANGE); /* one byte too few */
        s.view.bytes = bytes;
        CHECK_INT(tsr_client_store(k.client, &s), N);
        CHECK_INT(load_segment(&k, tokens, N), N);
        s.kind = TSR_KIND_PREFIX;
        CHECK_INT(tsr_client_store(k.client, &s), 64);
        CHECK_INT(load_prefix(&k, tokens, N), 64);
        CHECK_INT(tsr_cache_clear(k.cache, NULL), 5);
        free(data);
    }
    free(tokens);
    CHECK(kit_end(&k));
}

/* ---- layer by layer ---- */

static struct tsr_store_desc put_store(struct kit *k, uint32_t kind, const uint32_t *tokens,
                                       uint32_t n)
{
    return (struct tsr_store_desc){.size = sizeof(struct tsr_store_desc),
                                   .space = k->space,
                                   .kind = kind,
                                   .tokens = tokens,
                                   .n_tokens = n};
}

TEST(layers_come_in_any_order_and_nothing_is_seen_before_commit)
{
    struct kit k;
    kit_open(&k, NULL);
    struct tsr_space_desc d = kit_desc();
    d.n_layers = 7;
    tsr_space_close(k.space);
    k.space = kit_space(k.cache, &d);
    uint32_t *tokens = kit_tokens(1, 70);
    const uint32_t kinds[] = {TSR_KIND_PREFIX, TSR_KIND_SEGMENT};
    for (int i = 0; i < 2; i++) {
        struct tsr_store_desc s = put_store(&k, kinds[i], tokens, 70);
        struct tsr_view all = kit_store_view(&s);
        struct tsr_put *put;
        CHECK_INT(tsr_put_open(&put, k.client, &s), 0);
        const uint32_t order[] = {3, 0, 6, 1, 5, 2, 4};
        for (int l = 0; l < 7; l++) {
            struct tsr_view one = {.data = (uint8_t *)all.data + order[l] * 70 * LAYER,
                                   .bytes = 70 * LAYER};
            CHECK_INT(tsr_put_layer(put, order[l], &one), 0);
            CHECK_INT(load_prefix(&k, tokens, 70), i ? 64 : 0);
            CHECK_INT(load_segment(&k, tokens, 70), 0);
        }
        CHECK_INT(tsr_put_commit(put), i ? 70 : 64);
        free(all.data);
    }
    CHECK_INT(load_prefix(&k, tokens, 70), 64);
    CHECK_INT(load_segment(&k, tokens, 70), 70);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_put_without_all_layers_keeps_nothing)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    struct tsr_store_desc s = put_store(&k, TSR_KIND_PREFIX, tokens, 64);
    struct tsr_view all = kit_store_view(&s), one = {.data = all.data, .bytes = 64 * LAYER};
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, k.client, &s), 0);
    CHECK_INT(tsr_put_commit(put), TSR_EINVAL);
    CHECK_INT(tsr_put_open(&put, k.client, &s), 0);
    CHECK_INT(tsr_put_layer(put, 1, &one), 0);
    CHECK_INT(tsr_put_layer(put, 1, &one), 0);
    CHECK_INT(tsr_put_layer(put, 2, &one), TSR_EINVAL); /* there are two */
    CHECK_INT(tsr_put_layer(put, UINT32_MAX, &one), TSR_EINVAL);
    one.bytes--;
    CHECK_INT(tsr_put_layer(put, 0, &one), TSR_ERANGE);
    CHECK_INT(tsr_put_commit(put), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "layer");
    CHECK_INT(kit_stats(&k).host_bytes_used, 0);
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    free(all.data), free(tokens);
    CHECK(kit_end(&k));
}

TEST(abort_gives_everything_back_at_any_point)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 16), 16);
    struct tsr_store_desc s = put_store(&k, TSR_KIND_PREFIX, tokens, 64);
    struct tsr_view all = kit_store_view(&s), one = {.data = all.data, .bytes = 64 * LAYER};
    for (uint32_t n = 0; n <= 2; n++) {
        struct tsr_put *put;
        CHECK_INT(tsr_put_open(&put, k.client, &s), 0);
        CHECK_INT(kit_stats(&k).host_bytes_used, 4 << 14);
        for (uint32_t l = 0; l < n; l++)
            CHECK_INT(tsr_put_layer(put, l, &one), 0);
        tsr_put_abort(put);
        CHECK_INT(kit_stats(&k).host_bytes_used, 1 << 14);
        CHECK_INT(kit_find_prefix(&k, tokens, 64), 16);
    }
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 1); /* its pin on the block before is gone too */
    tsr_put_abort(NULL);
    free(all.data), free(tokens);
    CHECK(kit_end(&k));
}

static int put_all(struct kit *k, struct tsr_put *put, const struct tsr_view *all)
{
    uint32_t n_layers = k->space->shape.n_layers;
    for (uint32_t l = 0; l < n_layers; l++) {
        struct tsr_view one = {.data = (uint8_t *)all->data + l * (all->bytes / n_layers),
                               .bytes = all->bytes / n_layers};
        CHECK_INT(tsr_put_layer(put, l, &one), 0);
    }
    return tsr_put_commit(put);
}

/* The chain is of what was stored last; a store that goes back, or on from elsewhere, is as right. */
TEST(stores_that_go_on_need_not_hash_what_is_before_them)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 160);
    static const uint32_t parts[][2] = {{0, 32}, {32, 64},  {64, 80},
                                        {0, 48}, {80, 144}, {144, 160}};
    struct tsri_chain chain = {0};
    for (size_t i = 0; i < TSRI_COUNT(parts); i++) {
        struct tsr_store_desc s = put_store(&k, TSR_KIND_PREFIX, tokens, parts[i][1]);
        s.from = parts[i][0];
        struct tsr_view all = kit_store_view(&s);
        struct tsr_put *put;
        CHECK_INT(tsri_cache_put_open(&put, k.client, &s, &chain), 0);
        CHECK_INT(chain.n_tokens, parts[i][1] - 16);
        CHECK_INT(put_all(&k, put, &all), i == 3 ? 0 : parts[i][1] - parts[i][0]);
        free(all.data);
    }
    CHECK_INT(load_prefix(&k, tokens, 160), 160);
    struct tsr_store_desc s = put_store(&k, TSR_KIND_PREFIX, tokens + 1, 64); /* another text */
    struct tsr_put *put;
    s.from = 48;
    chain = (struct tsri_chain){0};
    CHECK_INT(tsri_cache_put_open(&put, k.client, &s, &chain), TSR_ENOENT);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(of_two_puts_of_the_same_text_the_first_to_commit_stays)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    struct tsr_store_desc shorter = put_store(&k, TSR_KIND_PREFIX, tokens, 32);
    struct tsr_store_desc longer = put_store(&k, TSR_KIND_PREFIX, tokens, 64);
    struct tsr_view few = kit_store_view(&shorter), all = kit_store_view(&longer);
    struct tsr_put *a, *b, *c;
    CHECK_INT(tsr_put_open(&a, k.client, &longer), 0);
    CHECK_INT(tsr_put_open(&b, k.client, &shorter), 0);
    CHECK_INT(tsr_put_open(&c, k.client, &longer), 0);
    CHECK_INT(put_all(&k, b, &few), 32);
    CHECK_INT(put_all(&k, a, &all), 32); /* its third and fourth block are new */
    CHECK_INT(put_all(&k, c, &all), 0);
    CHECK_INT(kit_stats(&k).entries, 4);
    CHECK_INT(load_prefix(&k, tokens, 64), 64);
    free(few.data), free(all.data), free(tokens);
    CHECK(kit_end(&k));
}

TEST(a_put_behind_a_block_that_was_cleared_meanwhile_keeps_nothing)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 32), 32);
    struct tsr_store_desc s = put_store(&k, TSR_KIND_PREFIX, tokens, 64);
    struct tsr_view all = kit_store_view(&s);
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, k.client, &s), 0);
    /* The put holds on to the block before its first, so clear leaves the chain alone. */
    CHECK_INT(tsr_cache_clear(k.cache, NULL), 0);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 0);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 16);
    struct tsr_key key;
    CHECK_INT(tsr_space_keys(k.space, &prompt, &key, 1), 1);
    struct tsri_key root;
    memcpy(&root, &key, sizeof root);
    /* Dropped all the same, as for corrupt data. */
    pthread_mutex_lock(&k.cache->lock);
    CHECK_INT(tsri_entry_drop(k.cache, tsri_entry_live(k.cache, root), TSR_EVENT_DROPPED), 2);
    pthread_mutex_unlock(&k.cache->lock);
    CHECK_INT(put_all(&k, put, &all), 0);
    CHECK_INT(kit_stats(&k).entries, 0);
    CHECK_INT(kit_stats(&k).host_bytes_used, 0);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    CHECK_INT(load_prefix(&k, tokens, 64), 64);
    free(all.data), free(tokens);
    CHECK(kit_end(&k));
}

/* ---- refused ---- */

TEST(what_could_never_fit_is_refused_and_evicts_nothing)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64 * 65);
    CHECK_INT(kit_store_segment(&k, tokens, 64), 64);
    CHECK_INT(kit_store_segment(&k, tokens, 64 * 64 + 1), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "host_size");
    CHECK_INT(load_segment(&k, tokens, 64), 64);
    CHECK_INT(kit_store_segment(&k, tokens, 64 * 64), 64 * 64); /* all of it fits */
    CHECK_INT(load_segment(&k, tokens, 64 * 64), 64 * 64);
    CHECK_INT(kit_stats(&k).entries, 1);
    free(tokens);
    CHECK(kit_end(&k));
}

TEST(when_everything_is_pinned_stores_are_refused_and_lookups_go_on)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64 * 16), *more = kit_tokens(2, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64 * 16), 64 * 16); /* 64 blocks of a page */
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 64 * 16);
    CHECK_INT(tsr_space_pin(k.space, &prompt), 64);
    CHECK_INT(kit_stats(&k).pinned, 64);
    CHECK_INT(kit_store_segment(&k, more, 64), TSR_EFULL);
    CHECK_HAS(tsr_errmsg(), "in use");
    CHECK_INT(kit_store_prefix(&k, more, 64), TSR_EFULL);
    struct tsr_put *put;
    struct tsr_store_desc s = put_store(&k, TSR_KIND_SEGMENT, more, 64);
    CHECK_INT(tsr_put_open(&put, k.client, &s), TSR_EFULL);
    CHECK(put == NULL);
    CHECK_INT(kit_stats(&k).stores_refused, 3);
    CHECK_INT(kit_stats(&k).evicted, 0);
    CHECK_INT(load_prefix(&k, tokens, 64 * 16), 64 * 16);
    CHECK_INT(kit_find_segment(&k, more, 64), 0);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 0); /* needs no room */
    /* Pins count: it takes as many unpins. */
    CHECK_INT(tsr_space_pin(k.space, &prompt), 64);
    CHECK_INT(tsr_space_unpin(k.space, &prompt), 64);
    CHECK_INT(kit_store_segment(&k, more, 64), TSR_EFULL);
    CHECK_INT(tsr_space_unpin(k.space, &prompt), 64);
    CHECK_INT(tsr_space_unpin(k.space, &prompt), 0);
    CHECK_INT(kit_store_segment(&k, more, 64), 64);
    CHECK_INT(kit_find_prefix(&k, tokens, 64 * 16), 63 * 16); /* the last block went */
    free(tokens), free(more);
    CHECK(kit_end(&k));
}

TEST(a_prefix_keeps_the_leading_blocks_when_room_ends)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *pinned = kit_tokens(1, 60 * 16), *tokens = kit_tokens(2, 160);
    CHECK_INT(kit_store_prefix(&k, pinned, 60 * 16), 60 * 16);
    struct tsr_prompt prompt = kit_prefix_prompt(pinned, 60 * 16);
    CHECK_INT(tsr_space_pin(k.space, &prompt), 60);
    CHECK_INT(kit_store_prefix(&k, tokens, 160), 64); /* the four pages that are left */
    CHECK_INT(load_prefix(&k, tokens, 160), 64);
    CHECK_INT(tsr_space_unpin(k.space, &prompt), 60);
    CHECK_INT(kit_store_prefix(&k, tokens, 160), 96);
    CHECK_INT(load_prefix(&k, tokens, 160), 160);
    free(pinned), free(tokens);
    CHECK(kit_end(&k));
}

TEST(the_index_full_of_pinned_entries_refuses_too)
{
    struct kit k;
    kit_open(&k, (const char *const[]){"entries_max", "16", NULL});
    uint32_t *tokens = kit_tokens(1, 16 * 16), *more = kit_tokens(2, 20);
    CHECK_INT(kit_store_prefix(&k, tokens, 16 * 16), 16 * 16);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 16 * 16);
    CHECK_INT(tsr_space_pin(k.space, &prompt), 16);
    CHECK_INT(kit_store_segment(&k, more, 20), TSR_EFULL);
    CHECK_HAS(tsr_errmsg(), "entries_max");
    CHECK_INT(kit_stats(&k).host_bytes_used, 16 << 14);
    CHECK_INT(tsr_space_unpin(k.space, &prompt), 16);
    CHECK_INT(kit_store_segment(&k, more, 20), 20);
    CHECK_INT(kit_stats(&k).entries, 16);
    free(tokens), free(more);
    CHECK(kit_end(&k));
}

TEST(frozen_refuses_stores_evicts_nothing_and_answers_everything_else)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 64), *more = kit_tokens(2, 64);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), 64);
    tsr_cache_freeze(k.cache, 1);
    CHECK_INT(kit_store_segment(&k, more, 64), TSR_EFROZEN);
    CHECK_INT(kit_store_prefix(&k, tokens, 64), TSR_EFROZEN);
    struct tsr_put *put;
    struct tsr_store_desc s = put_store(&k, TSR_KIND_SEGMENT, more, 64);
    CHECK_INT(tsr_put_open(&put, k.client, &s), TSR_EFROZEN);
    CHECK_INT(load_prefix(&k, tokens, 64), 64);
    CHECK_INT(tsr_cache_evict(k.cache, 1 << 20), 0);
    CHECK_INT(kit_stats(&k).entries, 4);
    CHECK_INT(kit_stats(&k).stores_refused, 3);
    tsr_cache_freeze(k.cache, 0);
    CHECK_INT(kit_store_segment(&k, more, 64), 64);
    free(tokens), free(more);
    CHECK(kit_end(&k));

    kit_open(&k, (const char *const[]){"frozen", "true", NULL});
    more = kit_tokens(2, 64);
    CHECK_INT(kit_store_segment(&k, more, 64), TSR_EFROZEN);
    free(more);
    CHECK(kit_end(&k));
}

TEST(short_segments_are_not_stored_when_a_minimum_is_set)
{
    struct kit k;
    kit_open(&k, (const char *const[]){"segment_min_tokens", "20", NULL});
    uint32_t *tokens = kit_tokens(1, 20);
    CHECK_INT(kit_store_segment(&k, tokens, 19), 0);
    CHECK_INT(kit_find_segment(&k, tokens, 19), 0);
    struct tsr_store_desc s = put_store(&k, TSR_KIND_SEGMENT, tokens, 19);
    struct tsr_view all = kit_store_view(&s);
    struct tsr_put *put;
    CHECK_INT(tsr_put_open(&put, k.client, &s), 0);
    CHECK_INT(put_all(&k, put, &all), 0);
    CHECK_INT(kit_store_segment(&k, tokens, 20), 20);
    CHECK_INT(kit_store_prefix(&k, tokens, 16), 16); /* blocks are not segments */
    free(all.data), free(tokens);
    CHECK(kit_end(&k));
}

/* ---- eviction ---- */

TEST(the_least_recently_used_go_first_and_chains_from_their_ends)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *chain = kit_tokens(1, 32 * 16), *segment[32];
    CHECK_INT(kit_store_prefix(&k, chain, 32 * 16), 32 * 16);
    for (uint64_t i = 0; i < 32; i++) {
        segment[i] = kit_tokens(10 + i, 64);
        CHECK_INT(kit_store_segment(&k, segment[i], 64), 64);
    }
    CHECK_INT(kit_find_prefix(&k, chain, 16), 16); /* only the first block is used again */
    uint32_t *fresh = kit_tokens(2, 64 * 20);
    for (uint32_t i = 0; i < 20; i++) {
        CHECK_INT(kit_store_segment(&k, fresh + 64 * i, 64), 64);
        int left = kit_find_prefix(&k, chain, 32 * 16);
        CHECK(left % 16 == 0 && left >= 16);
    }
    CHECK_INT(kit_stats(&k).evicted, 20);
    CHECK_INT(kit_stats(&k).entries, 64);
    for (uint32_t i = 0; i < 20; i++)
        CHECK_INT(load_segment(&k, fresh + 64 * i, 64), 64);
    for (uint32_t i = 0; i < 32; i++)
        free(segment[i]);
    free(chain), free(fresh);
    CHECK(kit_end(&k));
}

TEST(evict_frees_as_much_as_it_was_asked_to)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 640);
    CHECK_INT(kit_store_prefix(&k, tokens, 640), 640);
    CHECK_INT(tsr_cache_evict(k.cache, 24 << 14), 0); /* so much is free */
    CHECK_INT(tsr_cache_evict(k.cache, (24 << 14) + 1), 1);
    CHECK_INT(tsr_cache_evict(k.cache, 30 << 14), 5);
    CHECK_INT(kit_find_prefix(&k, tokens, 640), 34 * 16);
    CHECK_INT(tsr_cache_evict(k.cache, SIZE_MAX), 34);
    CHECK_INT(kit_stats(&k).host_bytes_used, 0);
    free(tokens);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(a_store_returns_how_many_tokens_are_new);
    RUN(segments_of_any_length_come_back);
    RUN(every_layout_and_dtype_comes_back);
    RUN(a_last_partial_block_is_kept_when_asked_for);
    RUN(a_prefix_goes_on_behind_blocks_that_are_there);
    RUN(what_computing_cost_is_shared_out_by_tokens);
    RUN(a_cost_that_is_no_time_is_refused);
    RUN(kv_is_taken_from_any_strides);
    RUN(layers_come_in_any_order_and_nothing_is_seen_before_commit);
    RUN(a_put_without_all_layers_keeps_nothing);
    RUN(abort_gives_everything_back_at_any_point);
    RUN(of_two_puts_of_the_same_text_the_first_to_commit_stays);
    RUN(a_put_behind_a_block_that_was_cleared_meanwhile_keeps_nothing);
    RUN(what_could_never_fit_is_refused_and_evicts_nothing);
    RUN(when_everything_is_pinned_stores_are_refused_and_lookups_go_on);
    RUN(a_prefix_keeps_the_leading_blocks_when_room_ends);
    RUN(the_index_full_of_pinned_entries_refuses_too);
    RUN(frozen_refuses_stores_evicts_nothing_and_answers_everything_else);
    RUN(short_segments_are_not_stored_when_a_minimum_is_set);
    RUN(the_least_recently_used_go_first_and_chains_from_their_ends);
    RUN(evict_frees_as_much_as_it_was_asked_to);
    RUN(stores_that_go_on_need_not_hash_what_is_before_them);
    return test_end();
}
