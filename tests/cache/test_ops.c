/* Asynchronous loads and stores: they end once, with what the plain call would have returned;
 * waiting has limits; layers are there when they are said to be; too many are refused; close waits.
 */
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { LAYER = 2 * 64, TOKEN = 2 * LAYER };

/* A text of n tokens as one segment, stored; and a load of it. */
struct text {
    uint32_t *tokens, n;
    struct tsr_range range;
    struct tsr_prompt prompt;
    struct kit_hits hits;
    struct tsr_load_desc load;
};

static void text_init(struct text *t, struct kit *k, uint64_t seed, uint32_t n)
{
    t->n = n;
    t->tokens = kit_tokens(seed, n);
    t->prompt = kit_segment_prompt(t->tokens, n, &t->range);
    CHECK(kit_store_segment(k, t->tokens, n) >= 0);
    CHECK_INT(kit_lookup(k, &t->prompt, 0, &t->hits), n);
    t->load = (struct tsr_load_desc){.size = sizeof t->load,
                                     .space = k->space,
                                     .match = &t->hits.matches[0],
                                     .prompt = &t->prompt,
                                     .view = {.data = malloc(n * TOKEN), .bytes = n * TOKEN}};
    memset(t->load.view.data, 0xA5, n * TOKEN);
}

static bool text_right(const struct text *t, const struct kit *k)
{
    return kit_right(k->space, kit_seed(k->space), t->tokens, t->n, 0, 2, &t->load.view);
}

static void text_fini(struct text *t)
{
    free(t->load.view.data);
    free(t->tokens);
}

struct ended {
    _Atomic uint32_t n;
    struct tsr_op *_Atomic op;
    struct kit *k;
    const struct tsr_prompt *prompt;
    _Atomic int found;
};

/* What a callback may do, it does. */
static void on_end(void *arg, struct tsr_op *op)
{
    struct ended *e = arg;
    if (e->k) {
        struct kit_hits hits;
        e->found = kit_lookup(e->k, e->prompt, 77, &hits);
        tsr_client_release(e->k->client, 77);
        kit_stats(e->k);
    }
    atomic_store(&e->op, op);
    atomic_fetch_add(&e->n, 1);
}

/* ---- ends ---- */

TEST(a_store_and_a_load_end_once_with_what_the_plain_call_returns)
{
    struct kit k;
    kit_open(&k, NULL);
    uint32_t *tokens = kit_tokens(1, 70);
    struct tsr_range range;
    struct tsr_prompt prompt = kit_segment_prompt(tokens, 70, &range);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = k.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = tokens,
                               .n_tokens = 70};
    s.view = kit_store_view(&s);
    struct ended ended = {.k = &k, .prompt = &prompt};
    struct tsr_op *op;
    CHECK_INT(tsr_client_store_start(&op, k.client, &s, on_end, &ended), 0);
    CHECK_INT(tsr_op_wait(op, -1), 70);
    CHECK_INT(tsr_op_wait(op, 0), 70); /* as often as one likes */
    struct tsr_op *started = op;
    tsr_op_close(op);
    CHECK_INT(ended.n, 1);
    CHECK(ended.op == started);
    CHECK_INT(ended.found, 70);
    CHECK_INT(tsr_client_store_start(&op, k.client, &s, NULL, NULL), 0);
    CHECK_INT(tsr_op_wait(op, -1), 0); /* a duplicate */
    tsr_op_close(op);

    struct text t;
    text_init(&t, &k, 1, 70);
    struct ended loaded = {.k = &k, .prompt = &prompt};
    CHECK_INT(tsr_client_load_start(&op, k.client, &t.load, 1, on_end, &loaded), 0);
    CHECK_INT(tsr_op_wait(op, -1), 1);
    CHECK_INT(t.load.result, 0);
    CHECK(text_right(&t, &k));
    tsr_op_close(op);
    CHECK_INT(loaded.n, 1);
    text_fini(&t);
    free(s.view.data), free(tokens);
    CHECK(kit_end(&k));
}

TEST(of_several_ranges_each_gets_its_own_result)
{
    struct kit k;
    kit_open(&k, NULL);
    struct text t[3];
    struct tsr_load_desc loads[3];
    for (uint32_t i = 0; i < 3; i++) {
        text_init(&t[i], &k, i, 30);
        loads[i] = t[i].load;
    }
    const struct tsr_clear_desc clear = {
        .size = sizeof clear, .space = k.space, .prompt = &t[1].prompt, .tier = -1};
    CHECK_INT(tsr_cache_clear(k.cache, &clear), 1);
    struct tsr_op *op;
    CHECK_INT(tsr_client_load_start(&op, k.client, loads, 3, NULL, NULL), 0);
    CHECK_INT(tsr_op_wait_layer(op, 1, -1), 0);
    CHECK_INT(tsr_op_wait(op, -1), 2);
    tsr_op_close(op);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(loads[i].result, i == 1 ? TSR_ENOENT : 0);
        CHECK_INT(text_right(&t[i], &k), i != 1);
        text_fini(&t[i]);
    }
    CHECK(kit_end(&k));
}

TEST(what_the_plain_call_refuses_is_the_result_and_says_why)
{
    struct kit k;
    kit_open(&k, NULL);
    struct text t;
    text_init(&t, &k, 1, 30);
    struct tsr_op *op;
    t.load.view.bytes--;
    CHECK_INT(tsr_client_load_start(&op, k.client, &t.load, 1, NULL, NULL), 0);
    CHECK_INT(tsr_op_wait(op, -1), TSR_ERANGE);
    CHECK_HAS(tsr_errmsg(), "load 0");
    CHECK_INT(tsr_errmsg()[0], 'l');
    CHECK_INT(tsr_op_wait_layer(op, 0, -1), TSR_ERANGE);
    tsr_op_close(op);
    struct tsr_store_desc s = {.size = sizeof s,
                               .space = k.space,
                               .kind = TSR_KIND_SEGMENT,
                               .tokens = t.tokens,
                               .n_tokens = 30,
                               .from = 16};
    CHECK_INT(tsr_client_store_start(&op, k.client, &s, NULL, NULL), 0);
    CHECK_INT(tsr_op_wait(op, -1), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "prefixes");
    CHECK_INT(tsr_op_wait_layer(op, 0, -1), TSR_EINVAL); /* a store has no layers to wait for */
    tsr_op_close(op);
    /* What can be seen at once is refused at once. */
    s.kind = 0;
    CHECK_INT(tsr_client_store_start(&op, k.client, &s, NULL, NULL), TSR_EINVAL);
    CHECK(op == NULL);
    CHECK_INT(tsr_client_load_start(&op, k.client, NULL, 1, NULL, NULL), TSR_EINVAL);
    CHECK_INT(tsr_client_load_start(&op, k.client, &t.load, 0, NULL, NULL), TSR_EINVAL);
    CHECK_INT(tsr_client_load_start(NULL, k.client, &t.load, 1, NULL, NULL), TSR_EINVAL);
    CHECK_INT(tsr_client_load_start(&op, NULL, &t.load, 1, NULL, NULL), TSR_EINVAL);
    CHECK_INT(tsr_op_wait(NULL, 0), TSR_EINVAL);
    CHECK_INT(tsr_op_wait_layer(NULL, 0, 0), TSR_EINVAL);
    tsr_op_close(NULL);
    text_fini(&t);
    CHECK(kit_end(&k));
}

/* ---- waiting ---- */

struct below {
    struct kit k;
    struct fake_tier_plan plan;
};

static void below_open(struct below *b, const char *const *options)
{
    fake_tier_plan_init(&b->plan);
    kit_open_tiers(&b->k, options, &b->plan, 1);
}

static bool below_end(struct below *b)
{
    bool ended = kit_end(&b->k);
    fake_tier_plan_fini(&b->plan);
    return ended;
}

static void sink(struct below *b)
{
    CHECK_INT(tsr_cache_flush(b->k.cache), 0);
    CHECK(kit_evict_all(&b->k) > 0);
}

static uint64_t now_ms(void)
{
    return tsri_now_ns() / 1000000;
}

TEST(waiting_ends_at_its_limit_and_the_operation_goes_on)
{
    struct below b;
    below_open(&b, NULL);
    struct text t;
    text_init(&t, &b.k, 1, 64);
    sink(&b);
    fake_tier_gate(&b.plan, FAKE_GET);
    struct tsr_op *op;
    CHECK_INT(tsr_client_load_start(&op, b.k.client, &t.load, 1, NULL, NULL), 0);
    fake_tier_gate_wait(&b.plan, 1);
    uint64_t start = now_ms();
    CHECK_INT(tsr_op_wait(op, 0), TSR_ETIME);
    CHECK_INT(tsr_op_wait(op, 30), TSR_ETIME);
    CHECK_HAS(tsr_errmsg(), "30 ms");
    CHECK_INT(tsr_op_wait_layer(op, 0, 30), TSR_ETIME);
    CHECK(now_ms() - start >= 60);
    fake_tier_gate(&b.plan, 0);
    CHECK_INT(tsr_op_wait(op, 60000), 1);
    CHECK(text_right(&t, &b.k));
    tsr_op_close(op);
    text_fini(&t);
    CHECK(below_end(&b));
}

TEST(a_layer_is_there_when_it_is_said_to_be)
{
    struct below b;
    below_open(&b, NULL);
    struct tsr_space_desc d = kit_desc();
    d.n_layers = 6;
    tsr_space_close(b.k.space);
    b.k.space = kit_space(b.k.cache, &d);
    enum { N = 40, BYTES = N * 6 * LAYER };
    uint32_t *tokens[2];
    struct tsr_range range[2];
    struct tsr_prompt prompt[2];
    struct kit_hits hits[2];
    struct tsr_load_desc loads[2];
    static uint8_t kv[2][BYTES];
    for (uint32_t i = 0; i < 2; i++) {
        tokens[i] = kit_tokens(i, N);
        prompt[i] = kit_segment_prompt(tokens[i], N, &range[i]);
        CHECK_INT(kit_store_segment(&b.k, tokens[i], N), N);
    }
    sink(&b);
    CHECK_INT(kit_load_and_check(&b.k, &prompt[1]), N); /* the second is in host memory */
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_INT(kit_lookup(&b.k, &prompt[i], 0, &hits[i]), N);
        loads[i] = (struct tsr_load_desc){.size = sizeof loads[i],
                                          .space = b.k.space,
                                          .match = &hits[i].matches[0],
                                          .prompt = &prompt[i],
                                          .view = {.data = kv[i], .bytes = BYTES}};
    }
    atomic_store(&b.plan.layer_delay_us, 3000);
    struct tsr_op *op;
    CHECK_INT(tsr_client_load_start(&op, b.k.client, loads, 2, NULL, NULL), 0);
    for (uint32_t l = 0; l < 6; l++) {
        CHECK_INT(tsr_op_wait_layer(op, l, -1), 0);
        for (uint32_t i = 0; i < 2; i++) {
            struct tsr_view one = {.data = kv[i] + l * N * LAYER, .bytes = N * LAYER};
            CHECK(kit_right(b.k.space, kit_seed(b.k.space), tokens[i], N, l, 1, &one));
        }
        if (l == 0) CHECK_INT(tsr_op_wait(op, 0), TSR_ETIME); /* long before the end */
    }
    CHECK_INT(tsr_op_wait_layer(op, 6, -1), 0); /* beyond the last: the end */
    CHECK_INT(tsr_op_wait(op, -1), 2);
    tsr_op_close(op);
    for (uint32_t i = 0; i < 2; i++)
        free(tokens[i]);
    CHECK(below_end(&b));
}

TEST(a_failed_range_does_not_hold_up_the_layers_of_others)
{
    struct below b;
    below_open(&b, NULL);
    struct text t[2];
    struct tsr_load_desc loads[2];
    for (uint32_t i = 0; i < 2; i++)
        text_init(&t[i], &b.k, i, 30);
    sink(&b);
    for (uint32_t i = 0; i < 2; i++)
        loads[i] = t[i].load;
    struct tsr_key key;
    CHECK_INT(tsr_space_keys(b.k.space, &t[0].prompt, &key, 1), 1);
    CHECK(mem_tier_store_damage(&b.plan.mem, &key, 99));
    struct tsr_op *op;
    CHECK_INT(tsr_client_load_start(&op, b.k.client, loads, 2, NULL, NULL), 0);
    CHECK_INT(tsr_op_wait_layer(op, 1, -1), 0);
    CHECK_INT(tsr_op_wait(op, -1), 1);
    tsr_op_close(op);
    CHECK_INT(loads[0].result, TSR_ECORRUPT);
    CHECK_INT(loads[1].result, 0);
    CHECK(text_right(&t[1], &b.k));
    for (uint32_t i = 0; i < 2; i++)
        text_fini(&t[i]);
    CHECK(below_end(&b));
}

/* ---- limits ---- */

TEST(more_operations_than_ops_max_are_refused_until_one_is_closed)
{
    struct below b;
    below_open(&b, (const char *const[]){"ops_max", "3", NULL});
    struct text t;
    text_init(&t, &b.k, 1, 30);
    sink(&b);
    fake_tier_gate(&b.plan, FAKE_GET);
    struct tsr_load_desc loads[4];
    struct tsr_op *ops[4];
    uint8_t *kv = malloc(4 * 30 * TOKEN);
    for (int i = 0; i < 4; i++) {
        loads[i] = t.load;
        loads[i].view.data = kv + i * 30 * TOKEN;
    }
    for (int i = 0; i < 3; i++)
        CHECK_INT(tsr_client_load_start(&ops[i], b.k.client, &loads[i], 1, NULL, NULL), 0);
    CHECK_INT(tsr_client_load_start(&ops[3], b.k.client, &loads[3], 1, NULL, NULL), TSR_EAGAIN);
    CHECK_HAS(tsr_errmsg(), "ops_max");
    CHECK(ops[3] == NULL);
    fake_tier_gate(&b.plan, 0);
    for (int i = 0; i < 3; i++)
        CHECK_INT(tsr_op_wait(ops[i], -1), 1);
    CHECK_INT(tsr_client_load_start(&ops[3], b.k.client, &loads[3], 1, NULL, NULL), TSR_EAGAIN);
    tsr_op_close(ops[1]);
    CHECK_INT(tsr_client_load_start(&ops[3], b.k.client, &loads[3], 1, NULL, NULL), 0);
    tsr_op_close(ops[3]); /* waits for the end */
    tsr_op_close(ops[0]);
    tsr_op_close(ops[2]);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(loads[i].result, 0);
        CHECK(kit_right(b.k.space, kit_seed(b.k.space), t.tokens, 30, 0, 2, &loads[i].view));
    }
    CHECK_INT(b.plan.n_gets, 1);
    text_fini(&t);
    free(kv);
    CHECK(below_end(&b));
}

TEST(a_full_queue_refuses_and_takes_nothing)
{
    struct below b;
    below_open(&b, (const char *const[]){"io_queue_max", "2", "io_threads", "1", NULL});
    struct text t;
    text_init(&t, &b.k, 1, 30);
    sink(&b);
    fake_tier_gate(&b.plan, FAKE_GET);
    struct tsr_load_desc loads[64];
    struct tsr_op *ops[64];
    uint32_t n = 0;
    uint8_t *kv = malloc(64 * 30 * TOKEN);
    int e = 0;
    for (; n < 64; n++) {
        loads[n] = t.load;
        loads[n].view.data = kv + n * 30 * TOKEN;
        e = tsr_client_load_start(&ops[n], b.k.client, &loads[n], 1, NULL, NULL);
        if (e) break;
        if (n == 0) fake_tier_gate_wait(&b.plan, 1);
    }
    CHECK_INT(e, TSR_EAGAIN);
    CHECK_INT(n, 3); /* one at work, two waiting */
    fake_tier_gate(&b.plan, 0);
    for (uint32_t i = 0; i < n; i++) {
        CHECK_INT(tsr_op_wait(ops[i], -1), 1);
        tsr_op_close(ops[i]);
    }
    /* What was refused has not used up a place. */
    for (int i = 0; i < 1000; i++) {
        CHECK_INT(tsr_client_load_start(&ops[0], b.k.client, &loads[0], 1, NULL, NULL), 0);
        tsr_op_close(ops[0]);
    }
    text_fini(&t);
    free(kv);
    CHECK(below_end(&b));
}

static _Atomic int slow_ended;
static void end_slowly(void *arg, struct tsr_op *op)
{
    (void)arg, (void)op;
    struct timespec t = {0, 20000000};
    nanosleep(&t, NULL);
    atomic_fetch_add(&slow_ended, 1);
}

TEST(close_waits_for_the_callback_too)
{
    struct kit k;
    kit_open(&k, NULL);
    struct text t;
    text_init(&t, &k, 1, 30);
    struct tsr_op *op;
    CHECK_INT(tsr_client_load_start(&op, k.client, &t.load, 1, end_slowly, NULL), 0);
    CHECK_INT(tsr_op_wait(op, -1), 1);
    tsr_op_close(op);
    CHECK_INT(slow_ended, 1);
    text_fini(&t);
    CHECK(kit_end(&k));
}

/* ---- many ---- */

struct starter {
    struct kit k;
    uint64_t seed;
    int failures;
};

static void *start_many(void *arg)
{
    struct starter *s = arg;
    for (int round = 0; round < 40; round++) {
        enum { N = 12 };
        struct tsr_store_desc stores[N];
        struct tsr_op *ops[N];
        struct ended ended[N] = {{0}};
        for (uint64_t i = 0; i < N; i++) {
            stores[i] = (struct tsr_store_desc){.size = sizeof stores[i],
                                                .space = s->k.space,
                                                .kind = TSR_KIND_SEGMENT,
                                                .tokens = kit_tokens(s->seed + i, 20),
                                                .n_tokens = 20};
            stores[i].view = kit_store_view(&stores[i]);
            s->failures +=
                tsr_client_store_start(&ops[i], s->k.client, &stores[i], on_end, &ended[i]) != 0;
        }
        for (int i = 0; i < N; i++) {
            int n = tsr_op_wait(ops[i], -1);
            s->failures += n != 0 && n != 20;
            tsr_op_close(ops[i]);
            s->failures += ended[i].n != 1 || ended[i].op != ops[i];
            struct tsr_range range;
            struct tsr_prompt prompt = kit_segment_prompt(stores[i].tokens, 20, &range);
            s->failures += kit_load_and_check(&s->k, &prompt) != 20;
            free(stores[i].view.data);
            free((void *)(uintptr_t)stores[i].tokens);
        }
    }
    return NULL;
}

TEST(many_threads_start_many_operations)
{
    enum { N = 6 };
    struct kit k;
    kit_open(&k, (const char *const[]){"host_size", "4M", "io_threads", "3", NULL});
    struct starter starters[N];
    pthread_t threads[N];
    for (uint64_t i = 0; i < N; i++) {
        starters[i] = (struct starter){.k = k, .seed = i / 2 * 100}; /* two want the same */
        pthread_create(&threads[i], NULL, start_many, &starters[i]);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(starters[i].failures, 0);
    }
    CHECK_INT(kit_stats(&k).stores_new, 36);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(a_store_and_a_load_end_once_with_what_the_plain_call_returns);
    RUN(of_several_ranges_each_gets_its_own_result);
    RUN(what_the_plain_call_refuses_is_the_result_and_says_why);
    RUN(waiting_ends_at_its_limit_and_the_operation_goes_on);
    RUN(a_layer_is_there_when_it_is_said_to_be);
    RUN(a_failed_range_does_not_hold_up_the_layers_of_others);
    RUN(more_operations_than_ops_max_are_refused_until_one_is_closed);
    RUN(a_full_queue_refuses_and_takes_nothing);
    RUN(close_waits_for_the_callback_too);
    RUN(many_threads_start_many_operations);
    return test_end();
}
