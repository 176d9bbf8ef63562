/* The bytes between the halves: what is written is read, and nothing else is. */
#include "connector/connector.h"
#include "support/test.h"

/* Two ranks, two groups. */
static struct tsri_terms terms = {.n_ranks = 2,
                                  .n_groups = 2,
                                  .n_spaces = 4,
                                  .chunk_tokens = 16,
                                  .groups = {{.block_tokens = 8}, {.block_tokens = 16}},
                                  .identity = {1, 2, 3}};
static uint32_t tokens[64];
static int32_t blocks[2][8];
static struct tsr_match rows[16];

static struct tsri_load_order a_load(void)
{
    for (uint32_t i = 0; i < 8; i++)
        rows[i] = (struct tsr_match){.entry = 1000 + i,
                                     .epoch = 77 + i,
                                     .prompt_offset = 16 + i / 4 * 16,
                                     .n_tokens = 16,
                                     .entry_tokens = 16,
                                     .kind = TSR_KIND_PREFIX,
                                     .context = TSR_CONTEXT_SAME,
                                     .coverage = TSR_COVERAGE_FULL,
                                     .base = 16 + i / 4 * 16,
                                     .tier = (uint8_t)(i == 5),
                                     .verified = i != 5};
    return (struct tsri_load_order){.request = 7,
                                    .load = 9,
                                    .flags = TSRI_LOAD_ASYNC,
                                    .first = 24,
                                    .end = 47,
                                    .n_tokens = 48,
                                    .tokens = tokens,
                                    .n_rows = 2,
                                    .rows = rows,
                                    .tables = {{blocks[0], blocks[1]}}};
}

static struct tsri_save_order a_save(void)
{
    return (struct tsri_save_order){.job = 11,
                                    .request = 12,
                                    .spaces = 5,
                                    .from = 16,
                                    .to = 48,
                                    .tokens = tokens,
                                    .tables = {{blocks[0], blocks[1]}}};
}

/* A step with one of each. */
static struct tsri_bytes a_step(void)
{
    static struct tsr_extra extra = {.kind = TSR_EXTRA_SALT, .bytes = 5, .data = "salty"};
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = i * 3;
    for (int32_t i = 0; i < 8; i++) {
        blocks[0][i] = i + 1;
        blocks[1][i] = -i;
    }
    struct tsri_bytes b = {0};
    struct tsri_step_head head = {
        .step = 3, .n_loads = 1, .n_saves = 1, .n_preempted = 1, .n_ended = 2};
    struct tsri_load_order load = a_load();
    struct tsri_save_order save = a_save();
    save.extras = load.extras = (struct tsri_extras){.items = &extra, .n = 1};
    uint64_t ids[] = {70, 71, 72};
    tsri_meta_put_step(&b, &terms, &head);
    tsri_bytes_put(&b, ids, sizeof ids);
    tsri_meta_put_load(&b, &terms, &load);
    tsri_meta_put_save(&b, &terms, &save);
    return b;
}

TEST(a_step_is_read_as_it_was_written)
{
    struct tsri_bytes b = a_step();
    struct tsri_order_reader r;
    struct tsri_step_head head;
    struct tsri_load_order load;
    struct tsri_save_order save;
    void *load_memory, *save_memory;
    uint64_t id;
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), 0);
    CHECK_INT(tsri_meta_read_step(&r, &terms, b.data, b.n, &head), 0);
    CHECK_INT(head.step, 3);
    CHECK_INT(head.n_ended, 2);
    for (uint64_t i = 70; i < 73; i++) {
        CHECK_INT(tsri_meta_read_id(&r, &id), 0);
        CHECK_INT(id, i);
    }
    CHECK_INT(tsri_meta_read_load(&r, &load, &load_memory), 0);
    CHECK_INT(tsri_meta_read_save(&r, &save, &save_memory), 0);
    CHECK(r.at == r.end);
    CHECK_INT(load.load, 9);
    CHECK_INT(load.end, 47);
    CHECK(memcmp(load.tokens, tokens, 48 * 4) == 0);
    CHECK(memcmp(load.rows, rows, 8 * sizeof rows[0]) == 0);
    CHECK_INT(load.tables.blocks[0][2], 3);
    CHECK_INT(load.extras.items[0].bytes, 5);
    CHECK_INT(save.spaces, 5);
    CHECK_INT(save.to, 48);
    CHECK_INT(save.tables.blocks[1][1], -1);
    CHECK(memcmp(save.extras.items[0].data, "salty", 5) == 0);
    tsri_free(load_memory);
    tsri_free(save_memory);
    tsri_bytes_fini(&b);
}

TEST(a_step_that_is_cut_off_anywhere_is_refused)
{
    struct tsri_bytes b = a_step();
    for (size_t n = 0; n < b.n; n++) {
        void *exact = malloc(n + 1); /* so that a sanitizer sees a byte too many */
        memcpy(exact, b.data, n);
        CHECK(tsri_meta_check_step(&terms, exact, n) < 0);
        free(exact);
    }
    tsri_bytes_put(&b, "x", 1);
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_EINVAL);
    tsri_bytes_fini(&b);
}

TEST(another_version_or_identity_is_refused_by_name)
{
    struct tsri_bytes b = a_step();
    b.data[4]++;
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_EVERSION);
    CHECK_HAS(tsr_errmsg(), "expected 4");
    b.data[4]--;
    b.data[12]++;
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_ESPACE);
    b.data[12]--;
    b.data[0]++;
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_EINVAL);
    tsri_bytes_fini(&b);
}

TEST(a_flag_that_is_not_known_is_refused)
{
    struct tsri_bytes b = {0};
    struct tsri_step_head head = {.n_loads = 1};
    struct tsri_load_order load = a_load();
    load.flags = 4;
    tsri_meta_put_step(&b, &terms, &head);
    tsri_meta_put_load(&b, &terms, &load);
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_EINVAL);
    tsri_bytes_fini(&b);
    head = (struct tsri_step_head){.n_saves = 1};
    struct tsri_save_order save = a_save();
    save.spaces = 16; /* there are four */
    tsri_meta_put_step(&b, &terms, &head);
    tsri_meta_put_save(&b, &terms, &save);
    CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_EINVAL);
    tsri_bytes_fini(&b);
}

TEST(a_match_that_no_lookup_made_is_refused)
{
    for (uint32_t what = 0; what < 4; what++) {
        struct tsri_bytes b = {0};
        struct tsri_step_head head = {.n_loads = 1};
        struct tsri_load_order load = a_load();
        if (what == 0) rows[3].prompt_offset = 0;
        if (what == 1) rows[3].n_tokens = 17;
        if (what == 2) rows[3].kind = TSR_KIND_SEGMENT;
        if (what == 3) load.n_tokens = 0; /* but not all are verified */
        tsri_meta_put_step(&b, &terms, &head);
        tsri_meta_put_load(&b, &terms, &load);
        CHECK_INT(tsri_meta_check_step(&terms, b.data, b.n), TSR_EINVAL);
        tsri_bytes_fini(&b);
    }
}

TEST(a_report_is_read_as_it_was_written)
{
    struct tsri_bytes b = {0};
    struct tsri_report_head head = {.rank = 1, .n_saves = 1, .n_loads = 1, .n_sent = 1}, got;
    struct tsri_save_report save = {.job = 5, .result = TSR_EFULL, .n_tokens = 16, .busy_us = 77},
                            save_got;
    struct tsri_load_report load = {.request = 6, .load = 7, .result = 0, .loaded = 31}, load_got;
    uint64_t sent = 99, id;
    struct tsri_order_reader r;
    tsri_meta_put_report(&b, &terms, &head, &save, &load, &sent);
    CHECK_INT(tsri_meta_read_report(&r, &terms, b.data, b.n, &got), 0);
    CHECK_INT(got.rank, 1);
    tsri_meta_read_save_report(&r, &save_got);
    CHECK_INT(save_got.busy_us, 77);
    CHECK_INT(save_got.result, TSR_EFULL);
    tsri_meta_read_load_report(&r, &load_got);
    CHECK_INT(load_got.loaded, 31);
    CHECK_INT(tsri_meta_read_id(&r, &id), 0);
    CHECK_INT(id, 99);
    for (size_t n = 0; n < b.n; n++)
        CHECK(tsri_meta_read_report(&r, &terms, b.data, n, &got) < 0);
    CHECK(tsri_meta_check_step(&terms, b.data, b.n) < 0); /* it is no step */
    terms.n_ranks = 1;
    CHECK_INT(tsri_meta_read_report(&r, &terms, b.data, b.n, &got), TSR_EINVAL);
    terms.n_ranks = 2;
    tsri_bytes_fini(&b);
}

int main(void)
{
    RUN(a_step_is_read_as_it_was_written);
    RUN(a_step_that_is_cut_off_anywhere_is_refused);
    RUN(another_version_or_identity_is_refused_by_name);
    RUN(a_flag_that_is_not_known_is_refused);
    RUN(a_match_that_no_lookup_made_is_refused);
    RUN(a_report_is_read_as_it_was_written);
    return test_end();
}
