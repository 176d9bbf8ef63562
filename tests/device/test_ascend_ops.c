/* Moves of the device "npu" by operators, over the fake libopapi.so: the same bits as the plain loops
 * of the cpu device, which round each product and each sum as the fake's operators do. An operator
 * that is missing, refuses, is wrong or fails costs nothing but its speed. */
#include "ascend_kit.h"

#include <pthread.h>

static const struct kv_shape shapes[] = {
    {KV_SPLIT, TSR_DTYPE_BF16, 2, 2, 64, 64, 0, 64, 16, 128},
    {KV_SPLIT, TSR_DTYPE_F16, 1, 8, 128, 128, 0, 128, 16, 128},
    {KV_SPLIT, TSR_DTYPE_BF16, 2, 1, 64, 512, 0, 64, 16, 128},   /* MLA: rotated part and latent */
    {KV_LATENT, TSR_DTYPE_BF16, 2, 1, 576, 0, 512, 64, 64, 128}, /* MLA in one row: by copies */
    {KV_BLOCKS, TSR_DTYPE_F16, 1, 2, 64, 64, 0, 64, 16, 128},    /* gaps: by copies */
    {KV_SPLIT, TSR_DTYPE_F16, 1, 2, 48, 32, 16, 32, 16, 128},    /* a part of each head turns */
    {KV_SPLIT, TSR_DTYPE_F16, 1, 1, 20, 20, 4, 14, 16, 128},     /* odd addresses */
    {KV_SPLIT, TSR_DTYPE_F32, 1, 2, 64, 64, 0, 64, 16, 128},     /* no operators for f32 */
    {KV_FLAT, TSR_DTYPE_BF16, 1, 2, 64, 64, 0, 64, 16, 128},     /* no blocks */
};

static void each_job(const char *variant, int step)
{
    struct tsri_device *npu = open_device("npu", variant);
    struct tsri_device *cpu = open_device("cpu", cpu_variant(variant));
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++)
        for (int k = 0; k < 48; k += step) {
            struct job j = job_at(&shapes[i], k);
            check_same_on(npu, cpu, &j);
        }
    tsri_device_close(npu);
    tsri_device_close(cpu);
    acl->check_closed();
}

TEST(moves_by_operators_are_those_of_the_plain_loops_bit_for_bit)
{
    each_job("operators_plain", 1);
}

TEST(rows_that_fill_several_areas_are_the_same)
{
    each_job("operators_small", 5);
}

/* How many operators a job takes. */
static uint64_t operators_of(const struct job *j, struct tsri_device *d)
{
    struct result r = {0};
    acl->reset();
    CHECK_INT(run_job(d, j, &r), 0);
    uint64_t n = acl->operators();
    result_free(&r);
    return n;
}

TEST(operators_are_used_where_they_are_worth_it_and_asked_for)
{
    struct job j = {.shape = plain_shape, .rotates = true};
    struct tsri_device *d = open_device("npu", "operators"), *without = open_device("npu", NULL);
    CHECK_INT(operators_of(&j, without), 0);
    CHECK(operators_of(&j, d) >= 2 * 4); /* two layers: cast, turn, cast, scatter */
    j.rotates = false;
    CHECK_INT(operators_of(&j, d), 2 * 2); /* two layers and runs: scatter */
    j.follow = true;
    CHECK_INT(operators_of(&j, d), 0);
    j.gather = true;
    CHECK_INT(operators_of(&j, d), 0);
    j.follow = false;
    CHECK_INT(operators_of(&j, d), 2 * 2 * 2); /* of each plane */
    j.int8 = true;
    CHECK_INT(operators_of(&j, d), 0); /* the processor quantises */
    j.gather = false;
    CHECK(operators_of(&j, d) >= 2 * 2 * 3);
    tsri_device_close(d);
    tsri_device_close(without);
    acl->check_closed();
}

/* So many tokens, of which a half of each head turns, that RotaryPositionEmbedding wants more
 * workspace than the Cast before it, and more than the first one has. */
static const struct job growing_job = {
    .shape = {KV_SPLIT, TSR_DTYPE_F16, 1, 8, 128, 128, 0, 64, 16, 2048},
    .int8 = true,
    .rotates = true,
    .many = true,
};

/* RotaryPositionEmbedding takes fewer than 1000 tokens of a run, or pairs of tokens and heads. */
TEST(operators_get_no_more_tokens_than_they_take)
{
    struct tsri_device *d = open_device("npu", "operators_plain");
    struct tsri_device *cpu = open_device("cpu", "plain");
    struct job j = {.shape = {KV_SPLIT, TSR_DTYPE_F16, 1, 2, 64, 64, 0, 64, 16, 2048},
                    .rotates = true,
                    .many = true};
    for (int gptj = 0; gptj < 2; gptj++) {
        j.gptj = gptj;
        check_same_on(d, cpu, &j);
        CHECK(operators_of(&j, d) > 3);
    }
    tsri_device_close(d);
    tsri_device_close(cpu);
    acl->check_closed();
}

TEST(a_workspace_grows_while_operators_use_it)
{
    struct tsri_device *d = open_device("npu", "operators_plain");
    struct tsri_device *cpu = open_device("cpu", "plain");
    check_same_on(d, cpu, &growing_job);
    CHECK(operators_of(&growing_job, d) > 2 * 3);
    tsri_device_close(d);
    tsri_device_close(cpu);
    acl->check_closed();
}

/* ---- failures ---- */

/* With the n-th call of a move failing: the processor does what an operator did not. A wait that
 * fails is an error. */
static void fail_each_call(const struct job *j)
{
    struct tsri_device *cpu = open_device("cpu", "plain");
    struct result want = {0};
    CHECK_INT(run_job(cpu, j, &want), 0);
    for (uint64_t n = 1; n < 160; n += n < 24 ? 1 : 17) {
        struct tsri_device *d = open_device("npu", "operators_plain");
        struct result got = {0};
        fail_at = n;
        int e = run_job(d, j, &got);
        fail_at = 0;
        if (e) CHECK_INT(run_job(d, j, &got), 0); /* again, as a caller would */
        CHECK(memcmp(want.engine, got.engine, want.engine_bytes) == 0);
        CHECK(memcmp(want.cells, got.cells, want.cells_bytes) == 0);
        result_free(&got);
        tsri_device_close(d);
        acl->check_closed();
    }
    result_free(&want);
    tsri_device_close(cpu);
}

TEST(whichever_call_of_a_move_fails_the_bytes_are_right)
{
    for (int k = 0; k < 24; k += 8) { /* scatter, rotate, gather */
        struct job j = job_at(&plain_shape, k);
        fail_each_call(&j);
    }
}

/* The executor that wanted it is given back. */
TEST(a_workspace_that_cannot_grow_leaves_nothing_behind)
{
    struct tsri_device *d = open_device("npu", "operators_plain");
    struct tsri_device *cpu = open_device("cpu", "plain");
    fail_named = "aclrtMalloc";
    check_same_on(d, cpu, &growing_job);
    fail_named = NULL;
    CHECK_INT(operators_of(&growing_job, d), 0); /* none is used any more */
    tsri_device_close(d);
    tsri_device_close(cpu);
    acl->check_closed();
}

TEST(an_operator_that_wants_too_much_workspace_is_not_used)
{
    struct tsri_device *d = open_device("npu", "operators_plain");
    struct tsri_device *cpu = open_device("cpu", "plain");
    struct job j = {.shape = plain_shape, .rotates = true};
    setenv("FAKEACL_WORKSPACE", "300000000", 1); /* of the fake's 1 GiB */
    check_same_on(d, cpu, &j);
    unsetenv("FAKEACL_WORKSPACE");
    CHECK_INT(operators_of(&j, d), 0);
    tsri_device_close(d);
    tsri_device_close(cpu);
    acl->check_closed();
}

TEST(operators_that_fail_in_use_are_not_used_any_more)
{
    struct tsr_device_info info = {.size = sizeof info};
    struct job j = {.shape = plain_shape, .rotates = true};
    struct tsri_device *d = open_device("npu", "operators");
    struct result r = {0};
    setenv("FAKEACL_REFUSES", "aclnnCast", 1); /* from now on */
    CHECK_INT(run_job(d, &j, &r), 0);
    unsetenv("FAKEACL_REFUSES");
    CHECK_INT(tsri_device_info(d, &info), 0);
    CHECK_STR(info.text, CHIP "no operators: one failed in use" END);
    result_free(&r);
    acl->reset();
    CHECK_INT(run_job(d, &j, &r), 0);
    CHECK_INT(acl->operators(), 0);
    result_free(&r);
    tsri_device_close(d);
    acl->check_closed();
}

/* ---- several at once ---- */

struct mover_arg {
    struct tsri_device *d;
    struct job j;
    struct result want;
    bool right;
};

static void *move_again_and_again(void *arg)
{
    struct mover_arg *m = arg;
    m->right = true;
    for (int i = 0; i < 5; i++) {
        struct result got = {0};
        m->right = m->right && run_job(m->d, &m->j, &got) == 0 &&
                   memcmp(m->want.engine, got.engine, got.engine_bytes) == 0;
        result_free(&got);
    }
    return NULL;
}

TEST(threads_share_the_areas)
{
    struct tsri_device *d = open_device("npu", "operators_small");
    struct tsri_device *cpu = open_device("cpu", "plain");
    struct mover_arg args[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        args[i] = (struct mover_arg){.d = d, .j = job_at(&plain_shape, 8 + i)};
        CHECK_INT(run_job(cpu, &args[i].j, &args[i].want), 0);
    }
    for (int i = 0; i < 3; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, move_again_and_again, &args[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK(args[i].right);
        result_free(&args[i].want);
    }
    tsri_device_close(d);
    tsri_device_close(cpu);
    acl->check_closed();
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(moves_by_operators_are_those_of_the_plain_loops_bit_for_bit);
    RUN(rows_that_fill_several_areas_are_the_same);
    RUN(operators_are_used_where_they_are_worth_it_and_asked_for);
    RUN(operators_get_no_more_tokens_than_they_take);
    RUN(a_workspace_grows_while_operators_use_it);
    RUN(whichever_call_of_a_move_fails_the_bytes_are_right);
    RUN(a_workspace_that_cannot_grow_leaves_nothing_behind);
    RUN(an_operator_that_wants_too_much_workspace_is_not_used);
    RUN(operators_that_fail_in_use_are_not_used_any_more);
    RUN(threads_share_the_areas);
    return test_end();
}
