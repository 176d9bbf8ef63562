/* Requests whose prefix is being saved: they wait for it when that is cheaper than computing, and
 * never for long. */
#include "support/connector_kit.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint32_t tokens[128], other[128];
static int32_t blocks[64];

static int match(struct ck *k, uint64_t id, uint32_t n_computed)
{
    uint32_t async;
    return tsr_scheduler_get_num_new_matched_tokens(k->scheduler, id, n_computed, &async);
}

/* The bytes of a step that the workers have not got yet. */
struct sent_step {
    void *bytes;
    size_t n;
};

/* Computes tokens [0, n) of a request; their save is ordered, and not begun. */
static struct sent_step order(struct ck *k, uint64_t id, const uint32_t *text, uint32_t n)
{
    const void *meta;
    struct sent_step out;
    ck_new(k, id, text, n);
    CHECK_INT(ck_alloc(k, id, blocks, n / CK_BLOCK, 0), 0);
    ck_write_all(k, text, 0, n, blocks);
    struct tsr_step_row row = {.id = id, .n_computed = n, .n_tokens = n};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    CHECK_INT(tsr_scheduler_build_connector_meta(k->scheduler, &s, &meta, &out.n), 0);
    out.bytes = malloc(out.n);
    memcpy(out.bytes, meta, out.n);
    return out;
}

/* The workers do it, and report. */
static void carry_out(struct ck *k, struct sent_step *step)
{
    for (uint32_t r = 0; r < k->o.n_ranks; r++) {
        const void *meta;
        size_t n;
        CHECK_INT(tsr_worker_start_load_kv(k->workers[r], step->bytes, step->n), 0);
        CHECK_INT(tsr_worker_drain(k->workers[r], 10000), 0);
        CHECK_INT(tsr_worker_build_connector_worker_meta(k->workers[r], &meta, &n), 0);
        CHECK_INT(tsr_scheduler_update_connector_output(k->scheduler, meta, n), 0);
    }
    free(step->bytes);
}

TEST(a_request_whose_prefix_is_being_saved_waits_for_it)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.n_ranks = 2});
    struct sent_step step = order(&k, 1, tokens, 64);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), TSR_EAGAIN);
    CHECK_INT(match(&k, 2, 0), TSR_EAGAIN);
    CHECK_INT(ck_stats(&k).waits, 1);
    carry_out(&k, &step);
    CHECK_INT(match(&k, 2, 0), 64);
    ck_close(&k);
}

TEST(what_the_cache_has_is_no_reason_not_to_wait_for_the_rest)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_save_prompt(&k, 1, tokens, 32, 0);
    struct sent_step step = order(&k, 2, tokens, 64);
    ck_new(&k, 3, tokens, 70);
    CHECK_INT(match(&k, 3, 0), TSR_EAGAIN);
    CHECK_INT(match(&k, 3, 64), 0); /* the engine has it by now */
    carry_out(&k, &step);
    CHECK_INT(match(&k, 3, 0), 64);
    ck_close(&k);
}

TEST(only_a_save_of_the_same_text_is_waited_for)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    struct sent_step step = order(&k, 1, tokens, 64);
    ck_new(&k, 2, other, 70);
    CHECK_INT(match(&k, 2, 0), 0);
    uint32_t mixed[70];
    memcpy(mixed, tokens, sizeof mixed);
    mixed[40] ^= 1; /* two chunks of it are the same */
    ck_new(&k, 3, mixed, 70);
    CHECK_INT(match(&k, 3, 0), TSR_EAGAIN);
    CHECK_INT(match(&k, 3, 32), TSR_EAGAIN); /* that was decided */
    struct tsr_extra salt = {.kind = TSR_EXTRA_SALT, .data = "x", .bytes = 1};
    struct tsr_request_desc d = {
        .size = sizeof d, .id = 4, .tokens = tokens, .n_tokens = 70, .extra = &salt, .n_extra = 1};
    CHECK_INT(tsr_scheduler_on_new_request(k.scheduler, &d), 0);
    CHECK_INT(match(&k, 4, 0), 0);
    carry_out(&k, &step);
    CHECK_INT(match(&k, 3, 0), 32);
    ck_close(&k);
}

TEST(a_failed_save_ends_the_wait)
{
    static const char *const frozen[] = {"frozen", "true", NULL};
    struct ck k;
    ck_open(&k, &(struct ck_options){.cache = frozen});
    struct sent_step step = order(&k, 1, tokens, 64);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), TSR_EAGAIN);
    carry_out(&k, &step);
    CHECK_INT(match(&k, 2, 0), 0);
    ck_close(&k);
}

TEST(nobody_waits_longer_than_allowed)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){.save_wait_ms = 20});
    struct sent_step step = order(&k, 1, tokens, 64);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), TSR_EAGAIN);
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    CHECK_INT(match(&k, 2, 0), 0);
    CHECK_INT(match(&k, 2, 0), 0); /* and not once more */
    carry_out(&k, &step);
    CHECK_INT(match(&k, 2, 0), 64);
    ck_close(&k);
    ck_open(&k, &(struct ck_options){.flags = TSR_CONNECTOR_NO_WAIT});
    step = order(&k, 1, tokens, 64);
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), 0);
    carry_out(&k, &step);
    ck_close(&k);
}

TEST(nobody_waits_when_computing_is_faster)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    struct sent_step step = order(&k, 1, tokens, 64);
    k.scheduler->compute_speed = (struct tsri_speed){.n_tokens = 1000, .ns = 1000000};
    k.scheduler->save_speed = (struct tsri_speed){.n_tokens = 1000, .ns = 2000000};
    ck_new(&k, 2, tokens, 70);
    CHECK_INT(match(&k, 2, 0), 0);
    /* Saves are faster now, but most of what is saved first is the text of another. */
    k.scheduler->save_speed.ns = 900000;
    ck_new(&k, 3, tokens, 33);
    CHECK_INT(match(&k, 3, 0), 0);
    k.scheduler->compute_speed.ns = 1000000000;
    CHECK_INT(match(&k, 3, 0), TSR_EAGAIN);
    carry_out(&k, &step);
    CHECK_INT(match(&k, 3, 0), 32);
    ck_close(&k);
}

static void compute(struct ck *k, uint64_t id, uint32_t n_computed, uint32_t n_in_flight,
                    uint32_t n_tokens)
{
    struct tsr_step_row row = {
        .id = id, .n_computed = n_computed, .n_in_flight = n_in_flight, .n_tokens = n_tokens};
    struct tsr_step_desc s = {.size = sizeof s, .rows = &row, .n_rows = 1};
    ck_step(k, &s, NULL);
}

TEST(speeds_are_measured_from_reports_and_steps)
{
    struct ck k;
    ck_open(&k, &(struct ck_options){0});
    ck_new(&k, 1, tokens, 128);
    CHECK_INT(ck_alloc(&k, 1, blocks, 16, 0), 0);
    ck_write_all(&k, tokens, 0, 128, blocks);
    ck_step(&k, NULL, NULL);     /* its first step: the engine left out the row */
    compute(&k, 1, 32, 32, 128); /* asynchronous: not yet computed */
    CHECK_INT(k.scheduler->compute_speed.n_tokens, 0);
    compute(&k, 1, 33, 1, 128);
    CHECK_INT(k.scheduler->compute_speed.n_tokens, 32);
    CHECK(k.scheduler->compute_speed.ns > 0);
    compute(&k, 1, 40, 0, 128); /* less than a chunk: decoding */
    CHECK_INT(k.scheduler->compute_speed.n_tokens, 32);
    ck_step(&k, NULL, NULL);
    compute(&k, 1, 104, 0, 128); /* in how many steps is not known */
    CHECK_INT(k.scheduler->compute_speed.n_tokens, 32);
    ck_settle(&k, NULL);
    CHECK(k.scheduler->save_speed.n_tokens > 0 && k.scheduler->save_speed.ns > 0);
    ck_close(&k);
}

int main(void)
{
    for (uint32_t i = 0; i < 128; i++) {
        tokens[i] = i * 7 + 1;
        other[i] = i * 5 + 2;
    }
    for (int32_t i = 0; i < 64; i++)
        blocks[i] = i;
    RUN(a_request_whose_prefix_is_being_saved_waits_for_it);
    RUN(what_the_cache_has_is_no_reason_not_to_wait_for_the_rest);
    RUN(only_a_save_of_the_same_text_is_waited_for);
    RUN(a_failed_save_ends_the_wait);
    RUN(nobody_waits_longer_than_allowed);
    RUN(nobody_waits_when_computing_is_faster);
    RUN(speeds_are_measured_from_reports_and_steps);
    return test_end();
}
