/* Memory that is apart from the host's, played by host memory: a pass gives what it gives on the
 * host, and how often it waits does not depend on the number of layers. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "model/session_kit.h"

#include <math.h>

enum { FRONT = 700, ASKED = 40, N = FRONT + ASKED };
static uint32_t tokens[N];

/* A session of `k` in place of the one it has. */
static void put_apart(struct kit *k, uint32_t n_slots)
{
    tsr_executor.session_close(k->s);
    k->x->apart = true;
    CHECK_INT(tsr_executor.session_open(k->x, &k->s, n_slots), 0);
    CHECK(k->s->queue.apart);
    k->x->apart = false;
}

/* A question over what is there: all layers asked for their attention, and the logits of the last
 * row. Every second layer has its sums in `other`, if there is one. */
static void ask(struct kit *k, float *mass, float *other, float *logits)
{
    struct tsr_model_row rows[ASKED];
    struct tsr_model_group group = {ASKED, 1, {{0, N}}};
    struct tsr_model_pass pass = {.size = sizeof pass,
                                  .rows = rows,
                                  .n_rows = ASKED,
                                  .n_groups = 1,
                                  .groups = &group,
                                  .n_mass_rows = ASKED};
    uint32_t last = ASKED - 1;
    for (uint32_t i = 0; i < ASKED; i++)
        rows[i] = (struct tsr_model_row){tokens[FRONT + i], FRONT + i, FRONT + i};
    CHECK_INT(tsr_executor.begin(k->s, &pass), 0);
    for (uint32_t l = 0; l < k->info.n_layers; l++) {
        struct tsr_model_layer layer = {.size = sizeof layer, .layer = l, .n_mass = N};
        layer.mass = other && l % 2 ? other : mass;
        CHECK_INT(tsr_executor.layer(k->s, &layer), 0);
    }
    if (logits) CHECK_INT(tsr_executor.logits(k->s, &last, 1, logits), 0);
    tsr_executor.end(k->s);
}

static void open_kit(struct kit *k, uint32_t n_layers, bool apart)
{
    struct kit_model m = {.arch = "qwen2", .n_layers = n_layers};
    kit_open(k, &m, 0, N);
    kit_tokens(tokens, N, k->info.n_vocab);
    if (apart) put_apart(k, N);
}

static bool same_kv(struct kit *a, struct kit *b)
{
    bool same = true;
    for (uint32_t l = 0; l < a->info.n_layers; l++)
        for (uint32_t i = 0; i < N; i++)
            for (int p = 0; p < 2; p++)
                same =
                    same && memcmp(kit_row(a, p, l, i), kit_row(b, p, l, i), kit_row_bytes(a)) == 0;
    return same;
}

TEST(a_pass_over_memory_that_is_apart_gives_what_the_host_gives)
{
    static float logits[2][KIT_VOCAB], mass[2][N];
    struct kit host, device;
    open_kit(&host, 3, false);
    open_kit(&device, 3, true);
    kit_prefill(&host, tokens, 0, FRONT, 1, logits[0]);
    kit_prefill(&device, tokens, 0, FRONT, 1, logits[1]);
    CHECK(memcmp(logits[0], logits[1], sizeof logits[0]) == 0);
    for (int round = 0; round < 2; round++) { /* the second time with graphs that were kept */
        memset(mass, 0, sizeof mass);
        ask(&host, mass[0], NULL, logits[0]);
        ask(&device, mass[1], NULL, logits[1]);
        CHECK(memcmp(logits[0], logits[1], sizeof logits[0]) == 0);
        for (uint32_t i = 0; i < N; i++)
            CHECK(fabsf(mass[0][i] - mass[1][i]) <= 1e-5f * (1 + fabsf(mass[0][i])));
    }
    CHECK(same_kv(&host, &device));
    kit_close(&host);
    kit_close(&device);
}

TEST(sums_are_there_when_a_pass_has_ended_without_logits)
{
    static float mass[2][N], other[N];
    double sum = 0;
    struct kit k;
    open_kit(&k, 3, true);
    kit_prefill(&k, tokens, 0, FRONT, 0, NULL);
    memset(mass, 0, sizeof mass);
    memset(other, 0, sizeof other);
    ask(&k, mass[0], NULL, NULL);
    ask(&k, mass[1], other, NULL);
    for (uint32_t i = 0; i < N; i++) {
        CHECK(fabsf(mass[0][i] - mass[1][i] - other[i]) <= 1e-4f);
        sum += (double)mass[0][i];
    }
    CHECK(fabs(sum - 3.0 * ASKED) < 0.01);
    kit_close(&k);
}

/* What a prefill of many batches and a question send, in a model of so many layers. */
static void traffic(uint32_t n_layers, struct tsri_traffic out[2])
{
    static float logits[KIT_VOCAB], mass[N];
    struct kit k;
    open_kit(&k, n_layers, true);
    for (int i = 0; i < 2; i++) { /* memory for graphs is there the second time */
        struct tsri_traffic before = k.s->queue.n;
        kit_prefill(&k, tokens, 0, FRONT, 1, logits);
        struct tsri_traffic between = k.s->queue.n;
        ask(&k, mass, NULL, logits);
        struct tsri_traffic *n = &k.s->queue.n;
        out[0] = (struct tsri_traffic){between.graphs - before.graphs, between.waits - before.waits,
                                       between.puts - before.puts, between.gets - before.gets};
        out[1] = (struct tsri_traffic){n->graphs - between.graphs, n->waits - between.waits,
                                       n->puts - between.puts, n->gets - between.gets};
    }
    kit_close(&k);
}

TEST(a_pass_waits_as_often_whatever_the_number_of_layers)
{
    struct tsri_traffic few[2], many[2];
    traffic(2, few);
    traffic(7, many);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(many[i].waits, few[i].waits);
        CHECK_INT(many[i].puts, few[i].puts);
        CHECK_INT(many[i].gets, few[i].gets);
        CHECK(many[i].waits <= 2); /* before logits are asked for, and for them */
    }
    CHECK_INT(many[0].gets, 1); /* logits */
    CHECK_INT(many[1].gets, 2); /* and attention */
    CHECK_INT(many[1].graphs, 7 + 1);
}

TEST(only_k_and_v_of_the_last_layer_are_made_for_all_rows)
{
    struct kit k;
    open_kit(&k, 2, false);
    kit_prefill(&k, tokens, 0, 64, 0, NULL); /* so few that their graphs are kept */
    for (uint32_t l = 0; l < 2; l++) {
        struct ggml_cgraph *graph = k.s->shapes[0].graphs[l].graph;
        uint32_t products = 0;
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++)
            products += ggml_graph_node(graph, i)->op == GGML_OP_MUL_MAT;
        CHECK_INT(products, l == 0 ? 7 : 2);
    }
    kit_close(&k);
}

int main(void)
{
    RUN(a_pass_over_memory_that_is_apart_gives_what_the_host_gives);
    RUN(sums_are_there_when_a_pass_has_ended_without_logits);
    RUN(a_pass_waits_as_often_whatever_the_number_of_layers);
    RUN(only_k_and_v_of_the_last_layer_are_made_for_all_rows);
    return test_end();
}
#else
#include "model/absent.h"
#endif
