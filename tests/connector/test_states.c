/* Groups of states (Mamba, linear attention) and of draft models: a hit ends where all groups agree,
 * a state belongs to exactly the tokens before it, and a draft's last block is computed again. */
#include "support/connector_kit.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

#define PROMPT 100u

static uint32_t tokens[PROMPT];

static uint64_t seen_of(const uint32_t *t, uint32_t n)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < n; i++)
        seen = ck_seen(seen, t[i]);
    return seen;
}

/* The state after n tokens fills its block, each row in its own way. */
static void write_state(struct ck *k, const uint32_t *t, uint32_t n, int32_t block)
{
    for (uint32_t r = 0; r < k->o.n_ranks; r++)
        for (uint32_t i = 0; i < CK_BLOCK; i++)
            ck_write(k, r, 1, (int64_t)block * CK_BLOCK + i, ck_seen(seen_of(t, n), i));
}

static bool state_right(const struct ck *k, const uint32_t *t, uint32_t n, int32_t block)
{
    for (uint32_t r = 0; r < k->o.n_ranks; r++)
        for (uint32_t i = 0; i < CK_BLOCK; i++)
            if (!ck_right(k, r, 1, (int64_t)block * CK_BLOCK + i, ck_seen(seen_of(t, n), i)))
                return false;
    return true;
}

static void write_kv(struct ck *k, const uint32_t *t, uint32_t first, uint32_t end,
                     const int32_t *blocks)
{
    for (uint32_t i = first; i < end; i++)
        for (uint32_t r = 0; r < k->o.n_ranks; r++)
            ck_write(k, r, 0, ck_slot(blocks, i), seen_of(t, i + 1));
}

static bool kv_right(const struct ck *k, const uint32_t *t, uint32_t end, const int32_t *blocks)
{
    for (uint32_t i = 0; i < end; i++)
        for (uint32_t r = 0; r < k->o.n_ranks; r++)
            if (!ck_right(k, r, 0, ck_slot(blocks, i), seen_of(t, i + 1))) return false;
    return true;
}

/* An engine in miniature: KV of a request in blocks base and on, of its states the last two. */
struct run {
    uint64_t id;
    const uint32_t *t;
    uint32_t n, n_computed;
    int32_t base;
};

static uint32_t n_blocks(const struct run *x)
{
    return (x->n + CK_BLOCK - 1) / CK_BLOCK;
}

/* Tables of both groups; of states only the block with the state after `at` tokens, 0: none. */
static void tables_of(const struct run *x, uint32_t at, int32_t *out, uint32_t counts[2])
{
    counts[0] = counts[1] = n_blocks(x);
    for (uint32_t i = 0; i < counts[0]; i++) {
        out[i] = x->base + (int32_t)i;
        out[counts[0] + i] = at && i == at / CK_BLOCK - 1 ? x->base + (int32_t)i : -1;
    }
}

static int alloc(struct ck *k, const struct run *x, uint32_t at, uint32_t n_external)
{
    int32_t both[64];
    uint32_t counts[2];
    tables_of(x, at, both, counts);
    struct tsr_blocks blocks = {.blocks = both, .n_blocks = counts};
    return tsr_scheduler_update_state_after_alloc(k->scheduler, x->id, &blocks, n_external);
}

/* One step that begins with n_computed tokens and goes to `to`; what is before is no more after. */
static void step_to(struct ck *k, struct run *x, uint32_t to, uint32_t n_in_flight)
{
    int32_t both[64], kv[32];
    uint32_t counts[2], done = x->n_computed - n_in_flight;
    bool state = done && done % CK_BLOCK == 0;
    tables_of(x, state ? done : 0, both, counts);
    struct tsr_step_row row = {.id = x->id,
                               .n_computed = x->n_computed,
                               .n_in_flight = n_in_flight,
                               .n_tokens = x->n,
                               .flags = TSR_ROW_RESET_BLOCKS};
    struct tsr_step_desc s = {
        .size = sizeof s, .rows = &row, .n_rows = 1, .n_new_blocks = counts, .new_blocks = both};
    ck_step(k, &s, NULL);
    if (state) ck_poison(k, 1, x->base + (int32_t)(done / CK_BLOCK - 1), to); /* freed and reused */
    memcpy(kv, both, counts[0] * sizeof *kv);
    write_kv(k, x->t, x->n_computed, to, kv);
    if (to % CK_BLOCK == 0) write_state(k, x->t, to, x->base + (int32_t)(to / CK_BLOCK - 1));
    x->n_computed = to;
}

static struct run begin(struct ck *k, uint64_t id, const uint32_t *t, uint32_t n, int32_t base)
{
    struct run x = {.id = id, .t = t, .n = n, .base = base};
    ck_new(k, id, t, n);
    CHECK_INT(alloc(k, &x, 0, 0), 0);
    return x;
}

static void end(struct ck *k, const struct run *x)
{
    int32_t both[64];
    uint32_t counts[2];
    tables_of(x, x->n_computed % CK_BLOCK ? 0 : x->n_computed, both, counts);
    struct tsr_blocks blocks = {.blocks = both, .n_blocks = counts};
    struct tsr_finish_desc f = {.size = sizeof f,
                                .id = x->id,
                                .n_computed = x->n_computed,
                                .n_tokens = x->n,
                                .blocks = &blocks};
    CHECK(tsr_scheduler_request_finished(k->scheduler, &f) >= 0);
    ck_settle(k, NULL);
}

/* Looks it up and loads what is found into other blocks; returns where it ended. */
static uint32_t load(struct ck *k, uint64_t id, const uint32_t *t, uint32_t n, int32_t base)
{
    struct run x = {.id = id, .t = t, .n = n, .base = base};
    uint32_t async;
    int32_t both[64];
    uint32_t counts[2];
    struct ck_answer answer;
    ck_new(k, id, t, n);
    int found = tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, 0, &async);
    CHECK(found >= 0);
    for (uint32_t i = 0; i < n_blocks(&x); i++)
        ck_poison(k, 1, base + (int32_t)i, id);
    CHECK_INT(alloc(k, &x, (uint32_t)found, (uint32_t)found), 0);
    ck_settle(k, &answer);
    CHECK_INT(answer.n_bad, 0);
    if (found) {
        tables_of(&x, 0, both, counts);
        CHECK(kv_right(k, t, (uint32_t)found, both));
        CHECK(state_right(k, t, (uint32_t)found, base + found / (int)CK_BLOCK - 1));
    }
    x.n_computed = (uint32_t)found;
    end(k, &x);
    return (uint32_t)found;
}

TEST(a_hit_ends_where_a_step_has_ended)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true});
    struct run x = begin(&k, 1, tokens, 96, 0);
    step_to(&k, &x, 48, 0);
    step_to(&k, &x, 80, 0);
    step_to(&k, &x, 96, 0);
    end(&k, &x);
    CHECK_INT(load(&k, 2, tokens, 100, 20), 96); /* saved when it ended */
    CHECK_INT(load(&k, 3, tokens, 96, 20), 80);  /* a token is left to compute */
    CHECK_INT(load(&k, 4, tokens, 80, 20), 48);
    CHECK_INT(load(&k, 5, tokens, 60, 20), 48);
    CHECK_INT(load(&k, 6, tokens, 48, 20), 0); /* chunks of 48 tokens, and no state before */
    ck_close(&k);
}

TEST(a_state_within_a_chunk_is_not_saved)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true});
    struct run x = begin(&k, 1, tokens, 96, 0);
    step_to(&k, &x, 40, 0); /* two chunks and a half */
    step_to(&k, &x, 70, 0);
    step_to(&k, &x, 90, 0);
    end(&k, &x);
    CHECK_INT(load(&k, 2, tokens, 100, 20), 0);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 80);
    ck_close(&k);
}

TEST(a_state_after_other_text_is_another_one)
{
    struct ck k;
    uint32_t other[PROMPT];
    memcpy(other, tokens, sizeof other);
    other[3] = 77777; /* the same chunk behind another first one */
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true, .n_ranks = 2});
    struct run x = begin(&k, 1, tokens, 40, 0);
    step_to(&k, &x, 16, 0);
    step_to(&k, &x, 32, 0);
    step_to(&k, &x, 40, 0);
    end(&k, &x);
    struct run y = begin(&k, 2, other, 40, 10);
    step_to(&k, &y, 32, 0); /* no state after its first chunk */
    step_to(&k, &y, 40, 0);
    end(&k, &y);
    CHECK_INT(load(&k, 3, other, 40, 20), 32); /* and its own state, which load() compares */
    CHECK_INT(load(&k, 4, tokens, 40, 20), 32);
    CHECK_INT(load(&k, 5, other, 31, 20), 0);
    CHECK_INT(load(&k, 6, tokens, 31, 20), 16);
    ck_close(&k);
}

TEST(a_state_at_the_beginning_is_none_after_other_text)
{
    struct ck k;
    uint32_t other[24];
    for (uint32_t i = 0; i < 24; i++)
        other[i] = i < 8 ? 5000 + i : tokens[i - 8];
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true, .chunk_tokens = CK_BLOCK});
    struct run x = begin(&k, 1, tokens, 20, 0);
    step_to(&k, &x, 8, 0);
    step_to(&k, &x, 20, 0);
    end(&k, &x);
    struct run y = begin(&k, 2, other, 24, 10);
    step_to(&k, &y, 12, 0); /* KV of both chunks, and a state after neither */
    step_to(&k, &y, 20, 0);
    end(&k, &y);
    CHECK_INT(load(&k, 3, tokens, 20, 20), 8);
    CHECK_INT(load(&k, 4, other, 24, 20), 0);
    ck_close(&k);
}

TEST(steps_in_flight_do_not_count)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true});
    struct run x = begin(&k, 1, tokens, 96, 0);
    step_to(&k, &x, 32, 0);
    /* The next step is built while this one runs: its state is not there yet. */
    struct tsr_step_row row = {.id = 1, .n_computed = 32, .n_in_flight = 32, .n_tokens = 96};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    uint64_t before = ck_stats(&k).saves;
    ck_step(&k, &s, NULL);
    CHECK_INT(ck_stats(&k).saves - before, 0);
    step_to(&k, &x, 96, 0);
    end(&k, &x);
    CHECK_INT(load(&k, 2, tokens, 100, 20), 96);
    CHECK_INT(load(&k, 3, tokens, 90, 20), 32);
    ck_close(&k);
}

TEST(states_come_back_from_disk)
{
    char folder[] = "/tmp/tessera-states-XXXXXX";
    CHECK(mkdtemp(folder));
    const char *options[] = {"disk_path",         folder, "disk_size", "64M",
                             "disk_segment_size", "16M",  NULL};
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true, .cache = options});
    struct run x = begin(&k, 1, tokens, 60, 0);
    step_to(&k, &x, 16, 0);
    step_to(&k, &x, 48, 0);
    step_to(&k, &x, 60, 0);
    end(&k, &x);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    ck_close(&k);
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true, .cache = options});
    CHECK_INT(load(&k, 2, tokens, 60, 20), 48);
    CHECK_INT(load(&k, 3, tokens, 40, 20), 16);
    ck_close(&k);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_INT(system(command), 0);
}

TEST(media_before_states_are_not_cached)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true});
    struct tsr_extra image = {
        .kind = TSR_EXTRA_MEDIA, .offset = 2, .n_tokens = 4, .bytes = 3, .data = "cat"};
    struct tsr_request_desc d = {
        .size = sizeof d, .id = 1, .tokens = tokens, .n_tokens = 60, .extra = &image, .n_extra = 1};
    CHECK_INT(tsr_scheduler_on_new_request(k.scheduler, &d), 0);
    struct run x = {.id = 1, .t = tokens, .n = 60};
    CHECK_INT(alloc(&k, &x, 0, 0), 0);
    step_to(&k, &x, 48, 0);
    step_to(&k, &x, 60, 0);
    CHECK_INT(ck_stats(&k).saves, 0);
    ck_close(&k);
}

TEST(a_hit_is_one_block_less_with_a_draft_model)
{
    struct ck k;
    uint32_t async;
    ck_open(&k, &(struct ck_options){.draft_tokens = 1});
    ck_save_prompt(&k, 1, tokens, 48, 0);
    ck_new(&k, 2, tokens, 60);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 2, 0, &async), 40);
    int32_t blocks[] = {40, 33, 50, 21, 22, 63, 30, 31};
    CHECK_INT(ck_alloc(&k, 2, blocks, 8, 40), 0);
    struct ck_answer answer;
    ck_step(&k, NULL, &answer);
    CHECK_INT(answer.n_bad, 0);
    CHECK(ck_right_all(&k, tokens, 0, 40, blocks));
    CHECK(!ck_right(&k, 0, 0, ck_slot(blocks, 40), seen_of(tokens, 41)));
    /* The engine has as much itself. */
    ck_new(&k, 3, tokens, 60);
    CHECK_INT(tsr_scheduler_get_num_new_matched_tokens(k.scheduler, 3, 40, &async), 0);
    ck_close(&k);
}

TEST(what_a_draft_model_may_compute_again_is_not_saved)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.draft_tokens = 4});
    int32_t blocks[16];
    for (int32_t i = 0; i < 16; i++)
        blocks[i] = i;
    ck_new(&k, 1, tokens, 100);
    CHECK_INT(ck_alloc(&k, 1, blocks, 13, 0), 0);
    ck_write_all(&k, tokens, 0, 100, blocks);
    struct tsr_step_row row = {.id = 1, .n_computed = 34, .n_tokens = 100};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    ck_step(&k, &s, NULL);
    ck_settle(&k, NULL);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 16); /* 34 - 3 is no two chunks */
    row.n_computed = 35;
    ck_step(&k, &s, NULL);
    ck_settle(&k, NULL);
    CHECK_INT(ck_worker_stats(&k, 0).tokens_saved, 32);
    ck_close(&k);
}

/* Requests over a few texts that branch, in steps of any length: whatever is found is right. */
TEST(whatever_is_found_is_right)
{
    struct ck k;
    uint32_t texts[6][PROMPT];
    uint64_t x = 12345, n_found = 0;
    ck_open(&k, &(struct ck_options){.n_groups = 2, .states = true, .n_ranks = 2});
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t t = 0; t < PROMPT; t++)
            texts[i][t] = t < i * 16 ? t : i * 1000 + t;
    for (uint64_t id = 1; id < 400; id++) {
        x = ck_seen(x, 1);
        const uint32_t *t = texts[x % 6];
        uint32_t n = 20 + (uint32_t)(x >> 8) % 80;
        if (x >> 20 & 1) {
            n_found += load(&k, id, t, n, 20);
            continue;
        }
        struct run r = begin(&k, id, t, n, 40);
        while (r.n_computed < n) {
            x = ck_seen(x, 2);
            uint32_t most = n - r.n_computed, to = r.n_computed + 1 + (uint32_t)x % most;
            if (to < n && x >> 32 & 7) to = to / CK_BLOCK * CK_BLOCK;
            if (to > r.n_computed) step_to(&k, &r, to, 0);
        }
        end(&k, &r);
    }
    CHECK(n_found > 1000);
    CHECK_INT(ck_stats(&k).loads_failed, 0);
    ck_close(&k);
}

int main(void)
{
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = 100 + i;
    RUN(a_hit_ends_where_a_step_has_ended);
    RUN(a_state_within_a_chunk_is_not_saved);
    RUN(a_state_after_other_text_is_another_one);
    RUN(a_state_at_the_beginning_is_none_after_other_text);
    RUN(steps_in_flight_do_not_count);
    RUN(states_come_back_from_disk);
    RUN(media_before_states_are_not_cached);
    RUN(a_hit_is_one_block_less_with_a_draft_model);
    RUN(what_a_draft_model_may_compute_again_is_not_saved);
    RUN(whatever_is_found_is_right);
    return test_end();
}
