/* KV heads stored in parts: what an engine with some number of tensor-parallel ranks has saved is
 * found by engines with others, and every rank gets its own heads. A part is a group of its rank
 * with the blocks of all of them, so nothing in the connector knows of heads: this shows that it
 * need not. */
#include "support/connector_kit.h"
#include "support/test.h"

#define HEADS 4u /* of the model */
#define DIM 4u
#define LAYERS 2u
#define PLANES 2u
#define BLOCKS 48u
#define SLOTS (BLOCKS * CK_BLOCK)
#define PROMPT 70u /* four whole chunks and a rest */
#define WHOLE (PROMPT / CK_CHUNK * CK_CHUNK)
#define RANKS_MAX 4u

/* One engine: [layer][plane][slot][head][dim] of each rank's heads. */
struct engine {
    uint32_t n_ranks, n_parts; /* of the model; a rank has n_groups of them */
    uint32_t n_groups, n_heads /* of a rank */;
    struct tsr_scheduler *scheduler;
    struct tsr_worker *workers[RANKS_MAX];
    uint16_t *memory[RANKS_MAX];
    uint64_t last_id;
};

static struct tsr_cache *cache;
static struct tsr_space_desc spaces[RANKS_MAX * HEADS];
static struct tsr_group groups[HEADS];

static uint32_t part_of(const struct engine *e, uint32_t rank, uint32_t group)
{
    return rank * e->n_parts / e->n_ranks + group;
}

static struct tsr_connector_desc describe(const struct engine *e, uint32_t flags)
{
    for (uint32_t r = 0; r < e->n_ranks; r++)
        for (uint32_t g = 0; g < e->n_groups; g++)
            spaces[r * e->n_groups + g] = (struct tsr_space_desc){.size = sizeof spaces[0],
                                                                  .model = "shards",
                                                                  .dtype = TSR_DTYPE_F16,
                                                                  .n_layers = LAYERS,
                                                                  .n_heads = HEADS / e->n_parts,
                                                                  .k_dim = DIM,
                                                                  .rank = part_of(e, r, g),
                                                                  .world = e->n_parts};
    for (uint32_t g = 0; g < e->n_groups; g++)
        groups[g] = (struct tsr_group){.size = sizeof groups[0], .block_tokens = CK_BLOCK};
    return (struct tsr_connector_desc){.size = sizeof(struct tsr_connector_desc),
                                       .n_ranks = e->n_ranks,
                                       .n_groups = e->n_groups,
                                       .spaces = spaces,
                                       .groups = groups,
                                       .chunk_tokens = CK_CHUNK,
                                       .flags = flags};
}

/* The heads of one part in a rank's memory. */
static struct tsr_kv_layout layout_of(const struct engine *e, uint16_t *memory, uint32_t group)
{
    uint32_t heads = HEADS / e->n_parts;
    size_t row = (size_t)e->n_heads * DIM, plane = SLOTS * row;
    struct tsr_kv_layout l = {.size = sizeof l,
                              .n_layers = LAYERS,
                              .n_planes = PLANES,
                              .block_tokens = CK_BLOCK,
                              .n_slots = SLOTS};
    for (uint32_t p = 0; p < PLANES; p++)
        l.planes[p] =
            (struct tsr_kv_plane){.base = memory + p * plane + (size_t)group * heads * DIM,
                                  .layer_stride = PLANES * plane * 2,
                                  .block_stride = CK_BLOCK * row * 2,
                                  .token_stride = row * 2,
                                  .head_stride = DIM * 2,
                                  .element_stride = 2,
                                  .dtype = TSR_DTYPE_F16,
                                  .n_heads = heads,
                                  .dim = DIM};
    return l;
}

static void engine_open(struct engine *e, uint32_t n_ranks, uint32_t n_parts)
{
    *e = (struct engine){.n_ranks = n_ranks,
                         .n_parts = n_parts,
                         .n_groups = n_parts > n_ranks ? n_parts / n_ranks : 1,
                         .n_heads = n_parts > n_ranks ? HEADS / n_ranks : HEADS / n_parts};
    uint32_t flags =
        TSR_CONNECTOR_LOAD_ASYNC | (n_ranks > n_parts ? TSR_CONNECTOR_SHARED_SPACES : 0u);
    struct tsr_connector_desc desc = describe(e, flags);
    CHECK_INT(tsr_scheduler_open(&e->scheduler, cache, &desc), 0);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct tsr_worker_desc w = {.size = sizeof w, .rank = r};
        struct tsr_kv_layout layouts[HEADS];
        CHECK_INT(tsr_worker_open(&e->workers[r], cache, &desc, &w), 0);
        e->memory[r] = calloc((size_t)LAYERS * PLANES * SLOTS * e->n_heads * DIM, 2);
        for (uint32_t g = 0; g < e->n_groups; g++)
            layouts[g] = layout_of(e, e->memory[r], g);
        CHECK_INT(tsr_worker_register_kv_caches(e->workers[r], layouts, e->n_groups), 0);
    }
}

static void engine_close(struct engine *e)
{
    for (uint32_t r = 0; r < e->n_ranks; r++) {
        tsr_worker_close(e->workers[r]);
        free(e->memory[r]);
    }
    tsr_scheduler_close(e->scheduler);
}

/* The KV of a token in one head of the model; its place in the memory of a rank that has it. */
static uint16_t value(uint64_t seen, uint32_t layer, uint32_t plane, uint32_t head, uint32_t i)
{
    uint32_t place = ((layer * PLANES + plane) * HEADS + head) * DIM + i;
    return (uint16_t)ck_seen(seen, place);
}

/* Writes, or compares: false if an element is wrong. */
static bool each_element(struct engine *e, const uint32_t *tokens, uint32_t n, int32_t first_block,
                         bool write)
{
    uint64_t seen = 0;
    for (uint32_t t = 0; t < n; t++) {
        seen = ck_seen(seen, tokens[t]);
        size_t slot = (size_t)first_block * CK_BLOCK + t;
        for (uint32_t k = 0; k < e->n_ranks * LAYERS * PLANES * e->n_heads * DIM; k++) {
            uint32_t i = k % DIM, head = k / DIM % e->n_heads;
            uint32_t plane = k / DIM / e->n_heads % PLANES;
            uint32_t layer = k / DIM / e->n_heads / PLANES % LAYERS;
            uint32_t r = k / DIM / e->n_heads / PLANES / LAYERS;
            size_t at = (((size_t)layer * PLANES + plane) * SLOTS + slot) * e->n_heads + head;
            uint16_t *x = &e->memory[r][at * DIM + i];
            uint32_t of_model = part_of(e, r, 0) * (HEADS / e->n_parts) + head;
            uint16_t want = value(seen, layer, plane, of_model, i);
            if (write)
                *x = want;
            else if (*x != want)
                return false;
        }
    }
    return true;
}

/* Steps until nothing is under way; how many blocks failed to load. */
static uint32_t settle(struct engine *e)
{
    uint32_t n_bad = 0;
    do {
        struct tsr_step_desc none = {.size = sizeof none};
        const void *meta;
        size_t bytes;
        CHECK_INT(tsr_scheduler_build_connector_meta(e->scheduler, &none, &meta, &bytes), 0);
        for (uint32_t r = 0; r < e->n_ranks; r++) {
            CHECK_INT(tsr_worker_handle_preemptions(e->workers[r], meta, bytes), 0);
            CHECK_INT(tsr_worker_start_load_kv(e->workers[r], meta, bytes), 0);
        }
        for (uint32_t r = 0; r < e->n_ranks; r++) {
            uint64_t sent[8], received[8];
            struct tsr_bad_block bad[64];
            const void *report;
            struct tsr_finished f = {.size = sizeof f,
                                     .sent = sent,
                                     .received = received,
                                     .sent_max = 8,
                                     .received_max = 8};
            CHECK_INT(tsr_worker_drain(e->workers[r], 10000), 0);
            CHECK(tsr_worker_get_finished(e->workers[r], &f) >= 0);
            int n = tsr_worker_get_block_ids_with_load_errors(e->workers[r], bad, 64);
            n_bad += n > 0 ? (uint32_t)n : 0;
            CHECK_INT(tsr_worker_build_connector_worker_meta(e->workers[r], &report, &bytes), 0);
            CHECK_INT(tsr_scheduler_update_connector_output(e->scheduler, report, bytes), 0);
        }
    } while (tsr_scheduler_has_pending_work(e->scheduler));
    return n_bad;
}

/* A whole prompt: loads what is found, computes the rest, saves it. Returns the tokens found, or -1
 * if an element that was loaded is wrong. */
static int run(struct engine *e, const uint32_t *tokens, uint32_t n)
{
    uint64_t id = ++e->last_id;
    int32_t first_block = (int32_t)(id * 12 % (BLOCKS - 12)), blocks[HEADS * 12];
    uint32_t counts[HEADS], n_blocks = (n + CK_BLOCK - 1) / CK_BLOCK, async;
    for (uint32_t g = 0; g < e->n_groups; g++) {
        counts[g] = n_blocks;
        for (uint32_t i = 0; i < n_blocks; i++)
            blocks[g * n_blocks + i] = first_block + (int32_t)i;
    }
    for (uint32_t r = 0; r < e->n_ranks; r++)
        memset(e->memory[r], 0xA5, (size_t)LAYERS * PLANES * SLOTS * e->n_heads * DIM * 2);
    struct tsr_request_desc request = {
        .size = sizeof request, .id = id, .tokens = tokens, .n_tokens = n};
    struct tsr_blocks tables = {.blocks = blocks, .n_blocks = counts};
    CHECK_INT(tsr_scheduler_on_new_request(e->scheduler, &request), 0);
    int found = tsr_scheduler_get_num_new_matched_tokens(e->scheduler, id, 0, &async);
    CHECK(found >= 0);
    uint32_t n_found = found > 0 ? (uint32_t)found : 0;
    CHECK_INT(tsr_scheduler_update_state_after_alloc(e->scheduler, id, &tables, n_found), 0);
    CHECK_INT(settle(e), 0);
    if (!each_element(e, tokens, n_found, first_block, false)) return -1;
    each_element(e, tokens, n, first_block, true);
    struct tsr_finish_desc end = {
        .size = sizeof end, .id = id, .n_tokens = n, .n_computed = n, .blocks = &tables};
    CHECK(tsr_scheduler_request_finished(e->scheduler, &end) >= 0);
    CHECK_INT(settle(e), 0);
    return found;
}

static void invent(uint32_t *tokens, uint32_t seed)
{
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = (uint32_t)ck_seen(seed, i) & 0xFFFF;
}

static uint64_t saved(const struct engine *e, uint32_t rank)
{
    struct tsr_connector_stats s = {.size = sizeof s};
    CHECK_INT(tsr_worker_stats(e->workers[rank], &s), 0);
    return s.tokens_saved;
}

TEST(an_engine_finds_its_heads_in_what_any_other_has_saved)
{
    static const uint32_t sizes[] = {1, 2, 4};
    struct engine engines[3];
    for (uint32_t i = 0; i < 3; i++)
        engine_open(&engines[i], sizes[i], HEADS);
    for (uint32_t writer = 0; writer < 3; writer++) {
        uint32_t tokens[PROMPT];
        invent(tokens, 10 + writer);
        CHECK_INT(run(&engines[writer], tokens, PROMPT), 0);
        for (uint32_t reader = 0; reader < 3; reader++)
            CHECK_INT(run(&engines[reader], tokens, PROMPT), WHOLE);
    }
    for (uint32_t i = 0; i < 3; i++)
        engine_close(&engines[i]);
}

TEST(a_prompt_grows_in_engines_of_one_two_and_four_ranks)
{
    struct engine one, two, four;
    uint32_t tokens[PROMPT];
    engine_open(&one, 1, HEADS);
    engine_open(&two, 2, HEADS);
    engine_open(&four, 4, HEADS);
    invent(tokens, 20);
    CHECK_INT(run(&one, tokens, 2 * CK_CHUNK), 0);
    CHECK_INT(run(&two, tokens, 3 * CK_CHUNK), 2 * CK_CHUNK);
    CHECK_INT(saved(&two, 0), 2 * CK_CHUNK); /* of its two parts, the chunk that was not there */
    CHECK_INT(run(&four, tokens, PROMPT), 3 * CK_CHUNK);
    CHECK_INT(saved(&four, 3), CK_CHUNK);
    CHECK_INT(run(&two, tokens, PROMPT), WHOLE);
    CHECK_INT(run(&one, tokens, PROMPT), WHOLE);
    engine_close(&one);
    engine_close(&two);
    engine_close(&four);
}

TEST(a_part_that_is_lost_is_a_miss_for_all_and_saved_again)
{
    struct engine one, two;
    uint32_t tokens[PROMPT];
    engine_open(&one, 1, HEADS);
    engine_open(&two, 2, HEADS);
    invent(tokens, 30);
    CHECK_INT(run(&one, tokens, PROMPT), 0);
    struct tsr_space_desc desc = spaces[2];
    desc.block_tokens = CK_CHUNK;
    struct tsr_space *space;
    CHECK_INT(tsr_space_open(&space, cache, &desc), 0);
    struct tsr_clear_desc clear = {.size = sizeof clear, .space = space, .tier = -1};
    CHECK(tsr_cache_clear(cache, &clear) > 0);
    tsr_space_close(space);
    CHECK_INT(run(&two, tokens, PROMPT), 0);
    CHECK_INT(run(&one, tokens, PROMPT), WHOLE);
    engine_close(&one);
    engine_close(&two);
}

TEST(ranks_with_the_same_heads_save_them_once)
{
    struct engine one, four;
    uint32_t tokens[PROMPT];
    engine_open(&one, 1, 2);
    engine_open(&four, 4, 2); /* two ranks for each part */
    invent(tokens, 40);
    CHECK_INT(run(&four, tokens, PROMPT), 0);
    CHECK_INT(saved(&four, 0), WHOLE);
    CHECK_INT(saved(&four, 1), 0);
    CHECK_INT(saved(&four, 2), WHOLE);
    CHECK_INT(saved(&four, 3), 0);
    CHECK_INT(run(&four, tokens, PROMPT), WHOLE);
    CHECK_INT(run(&one, tokens, PROMPT), WHOLE);
    invent(tokens, 41);
    CHECK_INT(run(&one, tokens, PROMPT), 0);
    CHECK_INT(run(&four, tokens, PROMPT), WHOLE);
    engine_close(&one);
    engine_close(&four);
}

TEST(another_number_of_parts_shares_nothing)
{
    struct engine two_parts, four_parts;
    uint32_t tokens[PROMPT];
    engine_open(&two_parts, 2, 2);
    engine_open(&four_parts, 2, HEADS);
    invent(tokens, 50);
    CHECK_INT(run(&two_parts, tokens, PROMPT), 0);
    CHECK_INT(run(&four_parts, tokens, PROMPT), 0);
    engine_close(&two_parts);
    engine_close(&four_parts);
}

TEST(equal_spaces_are_a_mistake_unless_they_are_said_to_be_the_same)
{
    struct engine e = {.n_ranks = 4, .n_parts = 2, .n_groups = 1};
    struct tsr_connector_desc desc = describe(&e, 0);
    struct tsr_scheduler *s;
    CHECK_INT(tsr_scheduler_open(&s, cache, &desc), TSR_EINVAL);
    desc = describe(&e, TSR_CONNECTOR_SHARED_SPACES);
    CHECK_INT(tsr_scheduler_open(&s, cache, &desc), 0);
    tsr_scheduler_close(s);
    spaces[1] = spaces[0]; /* two groups of one rank are never the same */
    desc.n_ranks = 1, desc.n_groups = 2, groups[1] = groups[0];
    CHECK_INT(tsr_scheduler_open(&s, cache, &desc), TSR_EINVAL);
}

int main(void)
{
    struct tsr_config *cfg;
    if (tsr_config_open(&cfg) || tsr_config_set(cfg, "host_size", "16M") ||
        tsr_config_set(cfg, "host_page_size", "4K") || tsr_cache_open(&cache, cfg))
        return 1;
    tsr_config_close(cfg);
    RUN(an_engine_finds_its_heads_in_what_any_other_has_saved);
    RUN(a_prompt_grows_in_engines_of_one_two_and_four_ranks);
    RUN(a_part_that_is_lost_is_a_miss_for_all_and_saved_again);
    RUN(ranks_with_the_same_heads_save_them_once);
    RUN(another_number_of_parts_shares_nothing);
    RUN(equal_spaces_are_a_mistake_unless_they_are_said_to_be_the_same);
    tsr_cache_close(cache);
    return test_end();
}
