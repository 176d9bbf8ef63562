/* bench_copy - KV between cells and an engine's pages on the cpu, against one memcpy of the same
 * bytes. The engine is paged (blocks of 16, in random order), K and V in one tensor for each layer;
 * cells hold 64 tokens. Shapes: "135m" has rows of 384 bytes (3 heads of 64), "8b" of 2048 (8 heads
 * of 128). rotate is the fused load: K turned by a delta, V copied. */
#include "lab/lab.h"
#include "support/bench.h"

#include <stdio.h>
#include <stdlib.h>

struct shape {
    const char *name;
    uint32_t n_layers, n_heads, dim, n_tokens;
    bool hnd;
};
/* Both below and above the size from which memcpy, and a move, write past the caches. */
static const struct shape shapes[] = {{"135m 24M", 30, 3, 64, 1024, false},
                                      {"135m 94M", 30, 3, 64, 4096, false},
                                      {"8b 16M", 32, 8, 128, 128, false},
                                      {"8b 134M", 32, 8, 128, 1024, false},
                                      {"8b hnd 134M", 32, 8, 128, 1024, true}};

struct setup {
    uint32_t dtype, direction;
    int64_t delta;
    bool int8;
    const char *variant;
    uint32_t n_threads;
};

static void must(int result)
{
    if (result >= 0) return;
    fprintf(stderr, "bench_copy: %s\n", tsr_errmsg());
    exit(1);
}

/* False when this machine has no such variant. */
static bool rig_init(struct tsri_rig *r, const struct shape *s, const struct setup *how)
{
    struct tsri_rig_desc desc = {.device = "cpu",
                                 .variant = how->variant,
                                 .n_threads = how->n_threads,
                                 .n_layers = s->n_layers,
                                 .n_heads = s->n_heads,
                                 .dim = s->dim,
                                 .n_tokens = s->n_tokens,
                                 .dtype = how->dtype,
                                 .direction = how->direction,
                                 .delta = how->delta,
                                 .hnd = s->hnd,
                                 .int8 = how->int8};
    int e = tsri_rig_init(r, &desc);
    if (how->variant && (e == TSR_EUNSUP || e == TSR_EINVAL)) return false;
    must(e);
    return true;
}

/* ---- what is timed ---- */

static void move(void *arg)
{
    must(tsri_rig_move(arg));
}

static void flat_copy(void *arg)
{
    struct tsri_rig *r = arg;
    must(tsri_rig_copy(r));
    bench_keep(r->flat_engine.data[r->bytes / 2]);
}

static void run_case(const char *name, const struct shape *s, const struct setup *how,
                     double target)
{
    struct tsri_rig rig;
    char full[96];
    if (!rig_init(&rig, s, how)) return;
    must(tsri_rig_check(&rig));
    snprintf(full, sizeof full, "%s %s", name, s->name);
    bench_rate("bench_copy", full, move, flat_copy, &rig, (double)rig.bytes, target);
    tsri_rig_fini(&rig);
}

/* One layer of n tokens, shared with one more thread or not: where threads begin to pay. */
static void scatter_alone(void *arg)
{
    must(tsri_rig_move(((struct tsri_rig **)arg)[0]));
}

static void scatter_shared(void *arg)
{
    must(tsri_rig_move(((struct tsri_rig **)arg)[1]));
}

static void run_threads(uint32_t n_tokens)
{
    struct shape s = {"8b", 1, 8, 128, n_tokens, false};
    struct tsri_rig alone, shared, *both[2] = {&alone, &shared};
    struct setup how = {TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 777, false, NULL, 0};
    char name[64];
    BENCH_CHECK(rig_init(&alone, &s, &how));
    how.n_threads = 1;
    BENCH_CHECK(rig_init(&shared, &s, &how));
    snprintf(name, sizeof name, "threads 2 of %zu KiB", alone.bytes >> 10);
    bench_rate("bench_copy", name, scatter_shared, scatter_alone, both, (double)alone.bytes, 0);
    tsri_rig_fini(&alone);
    tsri_rig_fini(&shared);
}

static void run_rotations(const struct shape *s)
{
    static const struct {
        const char *variant, *name;
        double target;
    } bf16[] = {{"avx512bf16", "rotate bf16 avx512bf16", 0.50},
                {"neon_bf16", "rotate bf16 neon_bf16", 0.50},
                {"avx512", "rotate bf16 avx512", 0.33},
                {"avx2", "rotate bf16 avx2", 0.33},
                {"neon", "rotate bf16 neon", 0.33}};
    struct setup turn = {TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 777, false, NULL, 0};
    run_case("rotate f16", s, &turn, 0.45);
    turn.dtype = TSR_DTYPE_F32;
    run_case("rotate f32", s, &turn, 0);
    turn.dtype = TSR_DTYPE_BF16;
    for (size_t k = 0; k < TSRI_COUNT(bf16); k++) {
        turn.variant = bf16[k].variant;
        run_case(bf16[k].name, s, &turn, bf16[k].target);
    }
    turn.variant = NULL;
    turn.int8 = true;
    run_case("rotate int8 to bf16", s, &turn, 0);
}

int main(int argc, char **argv)
{
    bench_init("bench_copy", argc, argv);
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        const struct shape *s = &shapes[i];
        struct setup copy = {TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 0, false, NULL, 0};
        double target = s->hnd ? 0 : 0.90; /* pieces of a head are shorter than 384 bytes */
        run_case("scatter", s, &copy, target);
        copy.direction = TSRI_BATCH_GATHER;
        run_case("gather", s, &copy, target);
        run_rotations(s);
    }
    for (uint32_t n = 64; n <= 4096; n *= 2)
        run_threads(n);
    return bench_end();
}
