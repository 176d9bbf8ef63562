/* Attention mass, and the tokens that query selection chooses by it, of every executor that runs
 * GGUF files and on every device that is here, against a plain forward in double (plain.h). Heads
 * are as many and as wide as those of real models: kernels are chosen by such sizes. */
#ifdef TSRI_HAVE_LLAMA
#include "device/device.h"
#include "model/gguf_kit.h"
#include "model/plain.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>

extern const struct tsr_executor_ops tsr_executor;

enum { TOKENS = 200, ASKED = 24, CHOSEN = 30 };

static const char *device; /* NULL: cpu */
static struct kit_model model;
static uint32_t dtype;

/* Mass of all layers, by the executor: the front is computed first, the question behind it, as a
 * query pass does. */
static bool executor_mass(const char *path, const uint32_t *tokens, float *mass)
{
    struct tsr_model_desc config = {
        .size = sizeof config, .path = path, .device = device, .kv_dtype = dtype, .n_threads = 2};
    struct tsr_model_info info = {.size = sizeof info};
    struct tsr_model_row rows[TOKENS];
    struct tsr_model *m;
    struct tsr_session *s;
    if (tsr_model_open(&m, &tsr_executor, &config) == TSR_EDEVICE) return false;
    CHECK_INT(tsr_model_info(m, &info), 0);
    CHECK_INT(tsr_session_open(&s, m, TOKENS), 0);
    for (uint32_t i = 0; i < TOKENS; i++)
        rows[i] = (struct tsr_model_row){tokens[i], i, i};
    for (uint32_t first = 0, n = TOKENS - ASKED; first < TOKENS; first += n, n = ASKED) {
        struct tsr_model_group group = {n, 1, {{0, first + n}}};
        struct tsr_model_pass pass = {.size = sizeof pass,
                                      .rows = rows + first,
                                      .n_rows = n,
                                      .n_groups = 1,
                                      .groups = &group,
                                      .n_mass_rows = first ? ASKED : 0};
        CHECK_INT(tsr_session_begin(s, &pass), 0);
        for (uint32_t l = 0; l < info.n_layers; l++) {
            struct tsr_model_layer layer = {.size = sizeof layer,
                                            .layer = l,
                                            .mass = first ? mass : NULL,
                                            .n_mass = first ? TOKENS : 0};
            CHECK_INT(tsr_session_layer(s, &layer), 0);
        }
        tsr_session_end(s);
    }
    tsr_session_close(s);
    tsr_model_close(m);
    return true;
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Share of the plain mass that the best CHOSEN tokens by `mass` hold, of the most there is to hold.
 */
static double chosen_share(const float *mass, const double *plain)
{
    double best[TOKENS], most = 0, held = 0;
    uint32_t chosen[CHOSEN];
    struct tsr_top_k top = {.scores = mass, .out = chosen, .n = TOKENS, .k = CHOSEN};
    struct tsri_device *cpu;
    CHECK_INT(tsri_device_open(&cpu, "cpu", NULL), 0);
    CHECK_INT(tsri_device_top_k(cpu, NULL, &top), 0);
    tsri_device_close(cpu);
    memcpy(best, plain, sizeof best);
    qsort(best, TOKENS, sizeof *best, descending);
    for (uint32_t i = 0; i < CHOSEN; i++) {
        most += best[i];
        held += plain[chosen[i]];
    }
    return held / most;
}

TEST(mass_and_chosen_tokens_are_those_of_the_plain_forward)
{
    struct tmpdir dir;
    char path[sizeof dir.path + 16];
    uint32_t tokens[TOKENS];
    float mass[TOKENS] = {0};
    double plain[TOKENS] = {0}, apart = 0;
    uint64_t seed = 99;
    tmpdir_init_fast(&dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir.path);
    CHECK(kit_write(path, &model));
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = 3 + (uint32_t)(test_rand(&seed) % (KIT_VOCAB - 3));
    struct plain_prompt prompt = {tokens, TOKENS, ASKED, dtype == TSR_DTYPE_F16};
    uint32_t n_layers = plain_mass(path, &prompt, plain);
    CHECK(n_layers > 0);
    CHECK(executor_mass(path, tokens, mass));
    for (uint32_t i = 0; i < TOKENS; i++) {
        CHECK(isfinite(mass[i]));
        apart += fabs((double)mass[i] - plain[i]) / (2.0 * ASKED * n_layers);
    }
    double share = chosen_share(mass, plain);
    printf("    %s %u/%u x %u, spike %g, %s, %s: %.5f of the mass elsewhere, %.5f chosen\n",
           model.arch, model.n_heads, model.n_kv_heads, model.head_dim, (double)model.k_spike,
           dtype == TSR_DTYPE_F16 ? "f16" : "f32", device ? device : "cpu", apart, share);
    CHECK(apart < 0.01);
    CHECK(share > 0.995);
    tmpdir_fini(&dir);
}

static void run_model(const struct kit_model *m)
{
    model = *m;
    /* Behind such keys attention itself is as coarse as the device's 16 bits. */
    model.n_layers = model.k_spike > 0 ? 1 : 2;
    model.n_ff = 64;
    model.context = 1024;
    RUN(mass_and_chosen_tokens_are_those_of_the_plain_forward);
}

static void run_all(void)
{
    static const struct kit_model models[] = {
        {.arch = "llama", .n_heads = 9, .n_kv_heads = 3, .head_dim = 64},   /* SmolLM2-135M */
        {.arch = "llama", .n_heads = 32, .n_kv_heads = 8, .head_dim = 128}, /* Llama-3-8B */
        {.arch = "qwen2", .n_heads = 14, .n_kv_heads = 2, .head_dim = 64},  /* Qwen2.5-0.5B */
        {.arch = "qwen2", .n_heads = 12, .n_kv_heads = 2, .head_dim = 128}, /* Qwen2.5-1.5B */
        {.arch = "qwen2",
         .n_heads = 12,
         .n_kv_heads = 2,
         .head_dim = 128,
         .q_spike = 5,
         .k_spike = 16384},
        {.arch = "qwen3", .n_heads = 16, .n_kv_heads = 8, .head_dim = 128}, /* Qwen3-0.6B */
    };
    for (uint32_t i = 0; i < TSRI_COUNT(models); i++)
        run_model(&models[i]);
}

int main(void)
{
    struct tsri_device *cuda;
    for (dtype = TSR_DTYPE_F32; dtype; dtype = dtype == TSR_DTYPE_F32 ? TSR_DTYPE_F16 : 0)
        run_all();
    dtype = TSR_DTYPE_F16;
    if (tsri_device_open(&cuda, "cuda", NULL) == 0) {
        tsri_device_close(cuda);
        device = "cuda";
        run_all();
    }
    return test_end();
}
#else
#include "model/absent.h"
#endif
