/* cmd_bench.c - `tessera-lab bench copy|rope`: how fast this machine's devices move KV between
 * cells and an engine's pages, and turn K on the way, against plain copies of the same bytes. A
 * short version of bench_copy and bench_cuda for people who have no build tree: each case is
 * checked first, then timed alternating with its copy. Prints the median of the ratios. */
#include "lab/lab.h"

#include <stdlib.h>

/* Odd, so that a median is one of them; enough that one interruption does not show. */
#define PAIRS 15
/* A sample repeats until it is this long. */
#define SAMPLE_NS 500000u
#define REPS_MAX 1024u
#define TOKENS_MAX (1u << 20)

/* K and V of an 8B model: 32 layers of 8 heads of 128; a few layers of it where a cell of all of
 * them would be more than was asked for. */
enum { N_LAYERS = 32, FEW_LAYERS = 4, N_HEADS = 8, DIM = 128, CELL = 64 };

struct row {
    const char *name;
    uint32_t dtype, direction, pairing;
    bool turns, hnd, int8;
};

static const struct row copy_rows[] = {
    {"load", TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 0, false, false, false},
    {"load, HND", TSR_DTYPE_F16, TSRI_BATCH_SCATTER, 0, false, true, false},
    {"load int8 as bf16", TSR_DTYPE_BF16, TSRI_BATCH_SCATTER, 0, false, false, true},
    {"save", TSR_DTYPE_F16, TSRI_BATCH_GATHER, 0, false, false, false},
    {"save bf16 as int8", TSR_DTYPE_BF16, TSRI_BATCH_GATHER, 0, false, false, true},
};
static const struct row rope_rows[] = {
    {"f16", TSR_DTYPE_F16, TSRI_BATCH_SCATTER, TSR_ROPE_NEOX, true, false, false},
    {"bf16", TSR_DTYPE_BF16, TSRI_BATCH_SCATTER, TSR_ROPE_NEOX, true, false, false},
    {"f32", TSR_DTYPE_F32, TSRI_BATCH_SCATTER, TSR_ROPE_NEOX, true, false, false},
    {"int8 as bf16", TSR_DTYPE_BF16, TSRI_BATCH_SCATTER, TSR_ROPE_NEOX, true, false, true},
    {"f16, GPT-J pairs", TSR_DTYPE_F16, TSRI_BATCH_SCATTER, TSR_ROPE_GPTJ, true, false, false},
    {"bf16, GPT-J pairs", TSR_DTYPE_BF16, TSRI_BATCH_SCATTER, TSR_ROPE_GPTJ, true, false, false},
};

struct bench {
    struct tsri_cli *cli;
    const char *name;
    const struct row *rows;
    size_t n_rows;
    uint64_t bytes; /* 0: by the device */
    const char *variant;
    uint32_t n_threads;
    struct tsri_table table;
    size_t n_measured;
};

struct rates {
    double move, copy, ratio; /* GB/s, and the median of the pairs' ratios */
};

/* ---- measuring ---- */

static int sample(struct tsri_rig *r, int (*fn)(struct tsri_rig *r), uint32_t reps, double *ns)
{
    uint64_t begin = tsri_now_ns();
    int e = 0;
    for (uint32_t i = 0; i < reps && !e; i++)
        e = fn(r);
    if (!e) e = tsri_rig_wait(r);
    uint64_t took = tsri_now_ns() - begin;
    *ns = (double)(took ? took : 1) / reps;
    return e;
}

/* How many calls make a sample that is long enough. */
static int calibrate(struct tsri_rig *r, int (*fn)(struct tsri_rig *r), uint32_t *reps)
{
    double ns = 0;
    int e = 0;
    for (*reps = 1; !e && *reps < REPS_MAX; *reps *= 2) {
        e = sample(r, fn, *reps, &ns);
        if (ns * *reps >= SAMPLE_NS) break;
    }
    return e;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[PAIRS])
{
    qsort(values, PAIRS, sizeof values[0], by_value);
    return values[PAIRS / 2];
}

static int measure(struct tsri_rig *r, struct rates *out)
{
    double move[PAIRS] = {0}, copy[PAIRS] = {0}, ratio[PAIRS] = {0};
    uint32_t move_reps = 0, copy_reps = 0;
    int e = tsri_rig_check(r);
    if (!e) e = calibrate(r, tsri_rig_move, &move_reps);
    if (!e) e = calibrate(r, tsri_rig_copy, &copy_reps);
    for (int i = 0; i < PAIRS && !e; i++) {
        e = sample(r, tsri_rig_move, move_reps, &move[i]);
        if (!e) e = sample(r, tsri_rig_copy, copy_reps, &copy[i]);
        if (e) break;
        ratio[i] = copy[i] / move[i];
    }
    if (e) return e;
    /* Bytes a nanosecond are gigabytes a second. */
    *out = (struct rates){(double)r->bytes / median(move), (double)r->bytes / median(copy),
                          median(ratio)};
    return 0;
}

/* ---- rows ---- */

static int run_row(struct bench *b, const struct row *row, const char *device, bool apart,
                   bool near, struct rates *out)
{
    uint64_t bytes = b->bytes ? b->bytes : (uint64_t)(apart ? 512 : 64) << 20;
    uint64_t layer = 2ull * N_HEADS * DIM * tsri_dtype_bytes(row->dtype);
    uint32_t n_layers = bytes / layer / N_LAYERS < CELL ? FEW_LAYERS : N_LAYERS;
    uint64_t token = layer * n_layers;
    uint64_t n = bytes / token / CELL * CELL;
    if (n < CELL) n = CELL;
    if (n > TOKENS_MAX) n = TOKENS_MAX;
    struct tsri_rig_desc desc = {.device = device,
                                 .variant = b->variant,
                                 .n_threads = b->n_threads,
                                 .n_layers = n_layers,
                                 .n_heads = N_HEADS,
                                 .dim = DIM,
                                 .n_tokens = (uint32_t)n,
                                 .dtype = row->dtype,
                                 .direction = row->direction,
                                 .pairing = row->pairing,
                                 .delta = row->turns ? 777 : 0,
                                 .hnd = row->hnd,
                                 .int8 = row->int8,
                                 .near = near};
    struct tsri_rig rig;
    int e = tsri_rig_init(&rig, &desc);
    if (e) return e;
    e = measure(&rig, out);
    tsri_rig_fini(&rig);
    return e;
}

static void tell(struct bench *b, const struct row *row, const char *device, const char *cells,
                 const struct rates *r)
{
    if (b->cli->json) {
        printf("%s\n{\"device\":\"%s\",\"case\":\"%s\",\"cells\":\"%s\",\"gb_per_s\":%.4g,"
               "\"copy_gb_per_s\":%.4g,\"ratio\":%.4g}",
               b->n_measured ? "," : "", device, row->name, cells, r->move, r->copy, r->ratio);
    } else {
        tsri_table_row(&b->table, "%s|%s|%s|%.1f|%.1f|%.2f", device, row->name, cells, r->move,
                       r->copy, r->ratio);
    }
    b->n_measured++;
}

static int run_device(struct bench *b, const char *device, bool apart)
{
    for (size_t i = 0; i < b->n_rows; i++)
        for (int near = 0; near < (apart ? 2 : 1); near++) {
            struct rates r;
            int e = run_row(b, &b->rows[i], device, apart, near, &r);
            if (e == TSR_EUNSUP) continue; /* a device may leave operations out */
            if (e) return tsri_cli_fail("bench %s: %s: %s", b->name, b->rows[i].name, tsr_errmsg());
            tell(b, &b->rows[i], device, near ? "device" : "host", &r);
        }
    return 0;
}

/* Opens it once to say what it is; 0, or an error of the library. */
static int look_at(struct bench *b, const char *name, bool *apart, char *text, size_t bytes)
{
    struct tsr_device_desc config = {
        .size = sizeof config, .variant = b->variant, .n_threads = b->n_threads};
    struct tsr_device_info info = {.size = sizeof info};
    struct tsri_device *d;
    int e = tsri_device_open(&d, name, &config);
    if (!e) {
        e = tsri_device_info(d, &info);
        *apart = tsri_device_caps(d) & TSR_DEVICE_SEPARATE;
        tsri_device_close(d);
    }
    snprintf(text, bytes, "%s", e ? tsr_errmsg() : info.text);
    return e;
}

static int run_devices(struct bench *b, const char *only)
{
    struct {
        char text[256];
        int error;
    } seen[16];
    uint32_t n = 0;
    int status = 0;
    if (b->cli->json) printf("{\"bench\":\"%s\",\"rows\":[", b->name);
    for (const char *name; n < TSRI_COUNT(seen) && !status; n++) {
        bool apart = false;
        name = only ? (n ? NULL : only) : tsri_device_known(n);
        if (!name) break;
        seen[n].error = look_at(b, name, &apart, seen[n].text, sizeof seen[n].text);
        if (seen[n].error == 0) status = run_device(b, name, apart);
    }
    if (b->cli->json) printf("\n],\"devices\":[");
    for (uint32_t i = 0; i < n; i++) {
        const char *name = only ? only : tsri_device_known(i);
        if (b->cli->json) {
            printf("%s\n{\"name\":\"%s\"", i ? "," : "", name);
            tsri_cli_json(seen[i].error ? ",\"missing\":" : ",\"about\":", seen[i].text);
            putchar('}');
        } else {
            printf("%s: %s%s\n", name, seen[i].error ? "not available: " : "", seen[i].text);
        }
    }
    if (b->cli->json) puts("\n]}");
    return status;
}

/* ---- the commands ---- */

static int read_flags(struct bench *b, const char **only)
{
    struct tsri_cli *cli = b->cli;
    const char *size = tsri_cli_flag(cli, "size");
    double n_threads = 0;
    *only = tsri_cli_flag(cli, "device");
    b->variant = tsri_cli_flag(cli, "variant");
    if (b->variant && !*only) *only = "cpu";
    if (size && (!tsri_parse_size(size, &b->bytes) || b->bytes < 1u << 20))
        return tsri_cli_usage(cli, "--size=%s: must be at least 1M", size);
    int status = tsri_cli_flag_count(cli, "threads", 0, 64, &n_threads);
    b->n_threads = (uint32_t)n_threads;
    return status;
}

static int run_bench(struct bench *b)
{
    const char *only;
    char text[256];
    bool apart;
    int status = tsri_cli_want_args(b->cli, 0, 0);
    if (!status) status = read_flags(b, &only);
    if (status) return status;
    if (only && look_at(b, only, &apart, text, sizeof text) != 0)
        return tsri_cli_fail("bench %s: %s", b->name, text);
    tsri_table_init(&b->table, "lllrrr", "device|case|cells|GB/s|copy GB/s|ratio");
    status = run_devices(b, only);
    if (!status && !b->cli->json) status = tsri_table_print(&b->table, b->cli);
    tsri_table_fini(&b->table);
    return status;
}

int tsri_cmd_bench_copy(struct tsri_cli *cli)
{
    return run_bench(&(struct bench){
        .cli = cli, .name = "copy", .rows = copy_rows, .n_rows = TSRI_COUNT(copy_rows)});
}

int tsri_cmd_bench_rope(struct tsri_cli *cli)
{
    return run_bench(&(struct bench){
        .cli = cli, .name = "rope", .rows = rope_rows, .n_rows = TSRI_COUNT(rope_rows)});
}
