/* bench_disk.c - the disk tier against raw io_uring with O_DIRECT: requests of the same size, as
 * many under way, from and to memory of the same kind, in files with the same history, in turns
 * within one process (the history of a file and the other side of a shared host weigh more than
 * anything measured here). The shape is an 8B model's: 32 layers, 8 KV heads of 128 in bf16, cells
 * of 64 tokens. The directory is TMPDIR or /tmp; where it refuses O_DIRECT both sides go without.
 */
#include "support/bench.h"
#include "support/tmpdir.h"
#include "disk/disk.h"

#include <fcntl.h>
#include <pthread.h>

enum { N_LAYERS = 32, ROW_BYTES = 2048, CELL_TOKENS = 64, MANY_TOKENS = 1024, LONG_TOKENS = 4096 };
#define REQUEST_BYTES ((size_t)1 << 20)
#define SEGMENT_BYTES ((uint64_t)1 << 30)

/* One entry and the memory its cells stand in, as in the host pool: cell after cell. */
struct entry {
    struct tsr_tier_io io;
    struct tsri_region kv;
    uint32_t *tokens;
    void **planes;
    size_t bytes;
};

struct work {
    struct tmpdir dir;
    struct tsr_tier *tier;
    struct tsri_aio *aio; /* the raw side's ring */
    struct entry many, large;
    struct tsri_region raw; /* the raw side's memory */
    int raw_fd;
    uint64_t raw_at, n_puts, n_raws;
    uint64_t first_layer_ns;
    uint32_t n_layers;
};

static void entry_init(struct entry *e, uint32_t n_tokens, uint8_t key)
{
    memset(e, 0, sizeof *e);
    struct tsr_entry_head *h = &e->io.head;
    memset(h->key.bytes, key, sizeof h->key.bytes);
    h->kind = TSR_KIND_SEGMENT;
    h->n_tokens = n_tokens;
    h->cell_tokens = CELL_TOKENS;
    h->n_layers = N_LAYERS;
    h->n_planes = 2;
    h->row_bytes[0] = h->row_bytes[1] = ROW_BYTES;
    uint32_t n_cells = n_tokens / CELL_TOKENS;
    size_t plane = (size_t)CELL_TOKENS * ROW_BYTES;
    e->bytes = (size_t)n_cells * N_LAYERS * 2 * plane;
    BENCH_CHECK(tsri_region_init(&e->kv, e->bytes) == 0);
    for (size_t i = 0; i < e->bytes / 8; i++) {
        uint64_t word = i * 0x9E3779B97F4A7C15u + key;
        memcpy(e->kv.data + 8 * i, &word, 8);
    }
    e->tokens = tsri_alloc(n_tokens, sizeof e->tokens[0]);
    e->planes = tsri_alloc((size_t)N_LAYERS * 2 * n_cells, sizeof e->planes[0]);
    BENCH_CHECK(e->tokens && e->planes);
    for (uint32_t i = 0; i < N_LAYERS * 2; i++)
        for (uint32_t c = 0; c < n_cells; c++)
            e->planes[(size_t)i * n_cells + c] =
                e->kv.data + ((size_t)c * N_LAYERS * 2 + i) * plane;
    e->io.tokens = e->tokens;
    e->io.n_cells = n_cells;
    e->io.planes = e->planes;
}

static void entry_fini(struct entry *e)
{
    tsri_region_fini(&e->kv);
    tsri_free(e->tokens);
    tsri_free(e->planes);
}

/* ---- the tier ---- */

static void put(void *arg)
{
    struct work *w = arg;
    w->n_puts++;
    memcpy(w->many.io.head.key.bytes, &w->n_puts, sizeof w->n_puts);
    BENCH_CHECK(tsri_tier_put(w->tier, &w->many.io, 1) == 1);
}

static void get(void *arg)
{
    struct work *w = arg;
    BENCH_CHECK(tsri_tier_get(w->tier, &w->many.io, 1) == 1);
}

static void count_layer(struct tsr_tier_io *io, uint32_t layer)
{
    struct work *w = io->arg;
    if (layer == 0) w->first_layer_ns = bench_now_ns();
    w->n_layers++;
}

static void get_by_layer(void *arg)
{
    struct work *w = arg;
    w->many.io.layer_done = count_layer;
    w->many.io.arg = w;
    w->n_layers = 0;
    BENCH_CHECK(tsri_tier_get(w->tier, &w->many.io, 1) == 1);
    BENCH_CHECK(w->n_layers == N_LAYERS);
    w->many.io.layer_done = NULL;
}

/* ---- the raw side ---- */

/* A fresh file of a segment's size, made as the tier makes its own. */
static void raw_file(struct work *w)
{
    char path[300];
    if (w->raw_fd >= 0) close(w->raw_fd);
    snprintf(path, sizeof path, "%s/raw", w->dir.path);
    unlink(path);
    int flags = strstr(tsri_disk_mode(w->tier), "O_DIRECT") ? O_DIRECT : 0;
    w->raw_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600);
    BENCH_CHECK(w->raw_fd >= 0);
    BENCH_CHECK(tsri_fileio_real.fallocate(NULL, w->raw_fd, (off_t)SEGMENT_BYTES) == 0);
    BENCH_CHECK(fdatasync(w->raw_fd) == 0);
    w->raw_at = 0;
}

/* `bytes` from the beginning of the raw memory, in order, TSRI_AIO_DEPTH requests under way. */
static void raw_move(struct work *w, bool write, uint64_t offset, size_t bytes)
{
    struct tsri_aio_lane *lane = tsri_aio_take(w->aio, 0);
    struct tsri_aio_req reqs[TSRI_AIO_DEPTH];
    struct iovec iov[TSRI_AIO_DEPTH];
    size_t n = bytes / REQUEST_BYTES;
    for (size_t i = 0; i < n + TSRI_AIO_DEPTH; i++) {
        size_t k = i % TSRI_AIO_DEPTH;
        if (i >= TSRI_AIO_DEPTH && i - TSRI_AIO_DEPTH < n) {
            tsri_aio_wait(lane, &reqs[k]);
            BENCH_CHECK(reqs[k].error == 0);
        }
        if (i >= n) continue;
        iov[k] = (struct iovec){w->raw.data + i * REQUEST_BYTES, REQUEST_BYTES};
        reqs[k] = (struct tsri_aio_req){.fd = w->raw_fd,
                                        .write = write,
                                        .offset = offset + i * REQUEST_BYTES,
                                        .iov = &iov[k],
                                        .n_iov = 1,
                                        .bytes = REQUEST_BYTES,
                                        .align = TSRI_PAGE_BYTES};
        tsri_aio_push(lane, &reqs[k]);
        tsri_aio_kick(lane);
    }
    tsri_aio_give(w->aio, lane);
}

static void raw_write(void *arg)
{
    struct work *w = arg;
    if (w->raw_at + w->many.bytes > SEGMENT_BYTES) raw_file(w);
    raw_move(w, true, w->raw_at, w->many.bytes);
    w->raw_at += w->many.bytes;
}

static void raw_read(void *arg)
{
    struct work *w = arg;
    raw_move(w, false, 0, w->many.bytes);
}

/* ---- cases ---- */

/* Entries that were written go, or the disk would fill up. */
static void tidy(void *arg)
{
    struct work *w = arg;
    struct tsr_tier_ref refs[64];
    uint64_t from = w->n_puts < 64 ? 0 : w->n_puts - 64;
    for (uint64_t i = 0; i < 64; i++) {
        memset(&refs[i], 0, sizeof refs[i]);
        refs[i].key = w->many.io.head.key;
        uint64_t n = from + i;
        memcpy(refs[i].key.bytes, &n, sizeof n);
    }
    BENCH_CHECK(tsri_tier_drop(w->tier, refs, 64) >= 0);
    BENCH_CHECK(tsri_tier_flush(w->tier) == 0);
    BENCH_CHECK(fdatasync(w->raw_fd) == 0);
}

/* The time until layer 0 of a 4K-token entry may be used, as a part of the whole get. */
static void first_layer(struct work *w)
{
    enum { N = 15 };
    double first[N], whole[N];
    w->large.io.layer_done = count_layer;
    w->large.io.arg = w;
    for (int i = 0; i < N; i++) {
        uint64_t start = bench_now_ns();
        BENCH_CHECK(tsri_tier_get(w->tier, &w->large.io, 1) == 1);
        whole[i] = (double)(bench_now_ns() - start);
        first[i] = (double)(w->first_layer_ns - start);
    }
    double a = bench_median(first, N), b = bench_median(whole, N);
    bench_report("first layer, 4K tokens", a, "ns", b, 1.5 / N_LAYERS, false);
}

/* ---- lookups beside a busy disk ---- */

enum { N_WARM = 64, SEG_TOKENS = 1024, N_SAMPLES = 2000 };

/* A cache over a disk tier of its own. One thread looks up text that is in host memory; another
 * stores, so that the writer never rests. */
struct beside {
    struct tmpdir dir;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client, *other;
    uint32_t warm[N_WARM][SEG_TOKENS];
    uint8_t *kv;
    size_t kv_bytes;
    _Atomic bool stop;
    _Atomic uint64_t n_stored;
};

static void store_text(struct beside *b, struct tsr_client *client, const uint32_t *tokens)
{
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = b->space,
                                   .kind = TSR_KIND_SEGMENT,
                                   .tokens = tokens,
                                   .n_tokens = SEG_TOKENS,
                                   .view = {.data = b->kv, .bytes = b->kv_bytes}};
    if (tsr_client_store(client, &store) == SEG_TOKENS) atomic_fetch_add(&b->n_stored, 1);
}

static void *saturate(void *arg)
{
    struct beside *b = arg;
    uint32_t tokens[SEG_TOKENS] = {0};
    for (uint32_t i = 1; !atomic_load(&b->stop); i++) {
        tokens[0] = 1u << 30 | i;
        store_text(b, b->other, tokens);
        usleep(1000); /* a refusal by a full queue is no reason to spin */
    }
    return NULL;
}

static double lookup_ns(struct beside *b)
{
    static double ns[N_SAMPLES];
    for (size_t i = 0; i < N_SAMPLES; i++) {
        struct tsr_range all = {0, SEG_TOKENS};
        struct tsr_prompt prompt = {.size = sizeof prompt,
                                    .tokens = b->warm[i % N_WARM],
                                    .n_tokens = SEG_TOKENS,
                                    .flags = TSR_PROMPT_SEGMENTS,
                                    .segments = &all,
                                    .n_segments = 1};
        struct tsr_match match;
        struct tsr_lookup_desc lookup = {.size = sizeof lookup,
                                         .spaces = &b->space,
                                         .n_spaces = 1,
                                         .matches = &match,
                                         .matches_max = 1};
        uint64_t start = bench_now_ns();
        int n = tsr_client_lookup(b->client, &prompt, &lookup);
        ns[i] = (double)(bench_now_ns() - start);
        BENCH_CHECK(n == SEG_TOKENS);
    }
    return bench_median(ns, N_SAMPLES);
}

static void open_beside(struct beside *b)
{
    tmpdir_init(&b->dir);
    struct tsr_config *cfg;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", "512M") == 0);
    BENCH_CHECK(tsr_config_set(cfg, "disk_path", b->dir.path) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "disk_size", "2G") == 0);
    BENCH_CHECK(tsr_cache_open(&b->cache, cfg) == 0);
    tsr_config_close(cfg);
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "bench",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 16,
                                  .n_heads = 2,
                                  .k_dim = 64};
    BENCH_CHECK(tsr_space_open(&b->space, b->cache, &desc) == 0);
    BENCH_CHECK(tsr_client_open(&b->client, b->cache) == 0);
    BENCH_CHECK(tsr_client_open(&b->other, b->cache) == 0);
    b->kv_bytes = SEG_TOKENS * tsr_space_token_bytes(b->space);
    b->kv = tsri_alloc(b->kv_bytes, 1);
    BENCH_CHECK(b->kv != NULL);
    for (uint32_t i = 0; i < N_WARM; i++) {
        for (uint32_t k = 0; k < SEG_TOKENS; k++)
            b->warm[i][k] = i * SEG_TOKENS + k;
        store_text(b, b->client, b->warm[i]);
    }
    BENCH_CHECK(tsr_cache_flush(b->cache) == 0);
}

/* The median of lookups beside a writer that always has work, against the median without one, in
 * turns. */
static void lookups(void)
{
    enum { N = 15 };
    static struct beside b;
    double idle[N], busy[N];
    open_beside(&b);
    for (int i = 0; i < N; i++) {
        pthread_t thread;
        idle[i] = lookup_ns(&b);
        atomic_store(&b.stop, false);
        BENCH_CHECK(pthread_create(&thread, NULL, saturate, &b) == 0);
        usleep(20000);
        busy[i] = lookup_ns(&b);
        atomic_store(&b.stop, true);
        pthread_join(thread, NULL);
        BENCH_CHECK(tsr_cache_flush(b.cache) == 0);
    }
    BENCH_CHECK(b.n_stored > N_WARM + N);
    bench_report("lookup beside a busy disk", bench_median(busy, N), "ns", bench_median(idle, N),
                 1.2, false);
    tsr_client_close(b.client);
    tsr_client_close(b.other);
    tsr_space_close(b.space);
    tsr_cache_close(b.cache);
    tsri_free(b.kv);
    tmpdir_fini(&b.dir);
}

/* ---- many small entries ---- */

/* Stores of 16 tokens with next to no KV, from the first store to the end of the flush: what an
 * entry costs on its way down, whatever its size. */
static void small_entries(void)
{
    enum { N = 10000, TOKENS = 16 };
    static struct tmpdir small;
    tmpdir_init(&small);
    struct tsr_config *cfg;
    struct tsr_cache *cache;
    struct tsr_space *space;
    struct tsr_client *client;
    BENCH_CHECK(tsr_config_open(&cfg) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "host_size", "256M") == 0);
    BENCH_CHECK(tsr_config_set(cfg, "disk_path", small.path) == 0);
    BENCH_CHECK(tsr_config_set(cfg, "disk_size", "2G") == 0);
    BENCH_CHECK(tsr_cache_open(&cache, cfg) == 0);
    tsr_config_close(cfg);
    struct tsr_space_desc desc = {.size = sizeof desc,
                                  .model = "bench",
                                  .dtype = TSR_DTYPE_F16,
                                  .n_layers = 1,
                                  .n_heads = 1,
                                  .k_dim = 16};
    BENCH_CHECK(tsr_space_open(&space, cache, &desc) == 0);
    BENCH_CHECK(tsr_client_open(&client, cache) == 0);
    static uint8_t kv[TOKENS * 64];
    uint64_t start = bench_now_ns();
    for (uint32_t i = 0; i < N;) {
        uint32_t tokens[TOKENS] = {i + 1};
        struct tsr_store_desc store = {.size = sizeof store,
                                       .space = space,
                                       .kind = TSR_KIND_SEGMENT,
                                       .tokens = tokens,
                                       .n_tokens = TOKENS,
                                       .view = {.data = kv, .bytes = sizeof kv}};
        int n = tsr_client_store(client, &store);
        if (n == TSR_EAGAIN)
            usleep(1000); /* the queue is full */
        else
            i += n == TOKENS;
    }
    BENCH_CHECK(tsr_cache_flush(cache) == 0);
    double s = (double)(bench_now_ns() - start) / 1e9;
    bench_report("small entries written back", N / s, "entries/s", 0, 0, true);
    tsr_client_close(client);
    tsr_space_close(space);
    tsr_cache_close(cache);
    tmpdir_fini(&small);
}

static void check_bytes(struct work *w)
{
    size_t n = w->many.bytes / 8;
    uint64_t sum = tsri_sum(w->many.kv.data, 8 * n);
    memset(w->many.kv.data, 0, w->many.bytes);
    get(w);
    BENCH_CHECK(tsri_sum(w->many.kv.data, 8 * n) == sum);
}

int main(int argc, char **argv)
{
    static struct work w = {.raw_fd = -1};
    bench_init("bench_disk", argc, argv);
    tmpdir_init(&w.dir);
    struct tsri_disk_setup setup = {.path = w.dir.path, .segment_bytes = SEGMENT_BYTES};
    struct tsr_tier_desc env = {.size = sizeof env, .arg = &setup, .n_threads = 1};
    BENCH_CHECK(tsri_tier_open(&w.tier, &tsri_tier_disk, &env) == 0);
    BENCH_CHECK(tsri_aio_open(&w.aio, TSRI_AIO_AUTO, &tsri_fileio_real, 1) == 0);
    entry_init(&w.many, MANY_TOKENS, 1);
    entry_init(&w.large, LONG_TOKENS, 2);
    BENCH_CHECK(tsri_region_init(&w.raw, w.many.bytes) == 0);
    memcpy(w.raw.data, w.many.kv.data, w.many.bytes);
    raw_file(&w);

    put(&w);
    check_bytes(&w);
    struct bench_case c = {.arg = &w, .work = (double)w.many.bytes, .unit = "GB/s", .target = 0.9};
    c.name = "write";
    c.run = put;
    c.baseline = raw_write;
    c.prepare = tidy;
    bench_run(&c);
    raw_file(&w);
    raw_write(&w);
    put(&w);
    c.name = "read";
    c.run = get;
    c.baseline = raw_read;
    c.prepare = NULL;
    c.reps = 1;
    bench_run(&c);
    c.name = "read by layer";
    c.run = get_by_layer;
    bench_run(&c);
    BENCH_CHECK(tsri_tier_put(w.tier, &w.large.io, 1) == 1);
    first_layer(&w);
    lookups();
    small_entries();

    tsri_tier_close(w.tier);
    tsri_aio_close(w.aio);
    close(w.raw_fd);
    entry_fini(&w.many);
    entry_fini(&w.large);
    tsri_region_fini(&w.raw);
    tmpdir_fini(&w.dir);
    return bench_end();
}
