/* Threads that share a device "npu" over the fake AscendCL, each with a stream, memory and batches of
 * its own, at random: moves, copies, events between streams, engine streams with two handles, single
 * failures. What a call that succeeded has moved must be right; the fake watches the rest.
 *
 *   TESSERA_TEST_STORM=1000   rounds instead of a few; the seed of each is its number */
#include "ascend_kit.h"
#include "device/ascend.h"

#include <pthread.h>

enum { THREADS = 3, STEPS = 12, BYTES = 40000 };

static const char *const variants[] = {NULL,    "small",    "operators_small", "operators_plain",
                                       "plain", "reference"};
static const struct kv_shape shapes[] = {
    {KV_SPLIT, TSR_DTYPE_BF16, 1, 2, 64, 64, 0, 64, 16, 128},
    {KV_HND, TSR_DTYPE_F16, 1, 2, 64, 64, 0, 64, 16, 128},
    {KV_LATENT, TSR_DTYPE_BF16, 1, 1, 576, 0, 512, 64, 64, 128},
    {KV_SPLIT, TSR_DTYPE_F16, 1, 1, 20, 20, 4, 14, 16, 128},
};

static struct {
    pthread_mutex_t lock;
    void *at[1000];
    size_t n;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct worker {
    struct tsri_device *d, *cpu;
    uint64_t seed;
    bool bursts; /* of failures, which lose the device */
    uint32_t n_errors;
    char wrong[256]; /* empty: nothing */
};

static uint64_t dice(struct worker *w, uint64_t n)
{
    return (kv_random(&w->seed) >> 20) % n;
}

/* CHECK is for the main thread. */
#define EXPECT(x) \
    do { \
        if (!(x) && !w->wrong[0]) \
            snprintf(w->wrong, sizeof w->wrong, "line %d: %s", __LINE__, #x); \
    } while (0)

/* ---- copies ---- */

/* Plain memory, to the device, within it, and back, over one or two streams. */
static void copy_around(struct worker *w)
{
    struct tsr_device_stream *s[2] = {NULL, NULL};
    struct tsr_device_event *event = NULL;
    uint8_t *from = malloc(BYTES), *to = calloc(1, BYTES);
    void *there[2] = {NULL, NULL}, *locked = NULL;
    size_t bytes = 1 + dice(w, BYTES), odd = dice(w, 2) ? dice(w, 64) : 0;
    kv_random_bytes(from, BYTES, w->seed);
    int e = tsri_stream_open(&s[0], w->d, NULL, 0);
    if (!e) e = tsri_stream_open(&s[1], w->d, dice(w, 2) ? s[0]->native : NULL, TSR_STREAM_LOW);
    if (!e) e = tsri_event_open(&event, w->d);
    for (int i = 0; i < 2 && !e; i++)
        e = tsri_device_alloc(w->d, &there[i], BYTES + 64);
    if (!e) e = tsri_device_host_alloc(w->d, &locked, BYTES);
    if (!e) {
        memset(locked, 0, BYTES);
        struct tsr_copy first[] = {{there[0], from, bytes},
                                   {(uint8_t *)there[1] + odd, there[0], bytes}};
        struct tsr_copy then[] = {{locked, (uint8_t *)there[1] + odd, bytes},
                                  {to, (uint8_t *)there[1] + odd, bytes}};
        e = tsri_device_copy(w->d, s[0], first, 2);
        if (!e) e = tsri_event_record(w->d, event, s[0]);
        if (!e) e = tsri_event_wait(w->d, event, s[1]);
        if (!e) e = tsri_device_copy(w->d, s[1], then, 2);
        for (int i = 0; i < 2; i++) {
            int synced = s[i] ? tsri_stream_sync(w->d, s[i]) : 0;
            if (!e) e = synced;
        }
        EXPECT(e || (memcmp(from, to, bytes) == 0 && memcmp(from, locked, bytes) == 0));
    }
    w->n_errors += e != 0;
    tsri_device_free(w->d, there[0]);
    tsri_device_free(w->d, there[1]);
    tsri_device_host_free(w->d, locked);
    tsri_event_close(w->d, event);
    for (int i = 2; i-- > 0;)
        tsri_stream_close(w->d, s[i]);
    free(from);
    free(to);
}

/* ---- moves ---- */

struct place {
    struct tsri_device *d;
    struct tsr_device_stream *s;
    uint8_t *engine, *cells, *host;
    size_t engine_bytes, cells_bytes;
    void **planes;
    struct tsr_kv_layout layout;
    struct tsr_kv_cells kv;
    struct tsri_batch *batch;
};

static int place_init(struct place *p, struct tsri_device *d, const struct kv_engine *form,
                      const struct kv_cells *cells, bool on_device)
{
    struct tsr_batch_limits limits = {1, 100, 100, 1000};
    void *at = NULL;
    size_t n = (size_t)cells->cells.n_layers * cells->cells.n_planes * cells->cells.n_cells;
    *p = (struct place){.d = d,
                        .engine_bytes = form->bytes,
                        .cells_bytes = cells->bytes,
                        .layout = form->layout,
                        .kv = cells->cells,
                        .planes = malloc(n * sizeof(void *))};
    int e = tsri_stream_open(&p->s, d, NULL, 0);
    if (!e) e = tsri_device_alloc(d, &at, form->bytes);
    p->engine = at;
    at = NULL;
    if (!e) e = tsri_device_host_alloc(d, &at, cells->bytes);
    p->host = p->cells = at;
    at = NULL;
    if (!e && on_device) e = tsri_device_alloc(d, &at, cells->bytes);
    if (on_device) p->cells = at;
    if (!e) e = tsri_batch_open(&p->batch, d, &limits);
    if (e) return e;
    for (size_t i = 0; i < n; i++)
        p->planes[i] = p->cells + ((uint8_t *)cells->planes[i] - cells->data);
    p->kv.planes = p->planes;
    if (on_device) p->kv.memory = TSR_MEMORY_DEVICE;
    for (uint32_t i = 0; i < p->layout.n_planes; i++) {
        struct tsr_kv_plane *plane = &p->layout.planes[i];
        uint8_t *base = plane->layers ? plane->layers[0] : plane->base; /* of one layer */
        plane->base = p->engine + (base - form->data);
        plane->layers = NULL;
    }
    return 0;
}

static void place_fini(struct place *p)
{
    tsri_batch_close(p->batch);
    if (p->cells != p->host) tsri_device_free(p->d, p->cells);
    tsri_device_host_free(p->d, p->host);
    tsri_device_free(p->d, p->engine);
    tsri_stream_close(p->d, p->s);
    free(p->planes);
}

/* Fills, moves and reads back; the images have room for all of it. */
static int place_move(struct place *p, const struct tsri_batch_desc *like, const uint8_t *engine,
                      const uint8_t *cells, uint8_t *engine_out, uint8_t *cells_out)
{
    struct tsr_kv_run run = like->runs[0];
    struct tsri_batch_desc desc = *like;
    struct tsr_copy in[] = {{p->engine, engine, p->engine_bytes},
                            {p->cells, cells, p->cells_bytes}};
    struct tsr_copy out[] = {{engine_out, p->engine, p->engine_bytes},
                             {cells_out, p->cells, p->cells_bytes}};
    run.cells = &p->kv;
    desc.layout = &p->layout;
    desc.runs = &run;
    int e = tsri_device_copy(p->d, p->s, in, 2);
    if (!e) e = tsri_batch_set(p->batch, p->s, &desc);
    if (!e)
        e = desc.direction == TSRI_BATCH_GATHER ? tsri_batch_gather(p->batch, 0, 0)
                                                : tsri_batch_scatter(p->batch, 0, 0);
    if (!e) e = tsri_device_copy(p->d, p->s, out, 2);
    int synced = tsri_stream_sync(p->d, p->s);
    return e ? e : synced;
}

static void move_around(struct worker *w)
{
    struct kv_shape shape = shapes[dice(w, TSRI_COUNT(shapes))];
    struct kv_engine form;
    struct kv_cells cells;
    struct place here, there;
    int64_t slots[N_TOKENS];
    bool gather = dice(w, 3) == 0, rotates = !gather && dice(w, 2);
    kv_engine_init(&form, w->cpu, &shape);
    kv_cells_init(&cells, w->cpu, &form.layout, N_TOKENS, CELL, dice(w, 2), w->seed);
    kv_cells_numbers(&cells, &form.layout, w->seed);
    kv_slots(slots, N_TOKENS, shape.n_slots, w->seed);
    struct tsr_rope rope = {.size = sizeof rope,
                            .pairing = dice(w, 2) ? TSR_ROPE_GPTJ : TSR_ROPE_NEOX,
                            .dims = shape.rope_dims,
                            .theta = 10000};
    struct tsr_kv_run run = {NULL, slots, 0, N_TOKENS, rotates ? 77 : 0, 0, 0};
    struct tsri_batch_desc desc = {
        gather ? TSRI_BATCH_GATHER : TSRI_BATCH_SCATTER, 1, NULL, &run, rotates ? &rope : NULL, 0};
    uint8_t *images[4];
    for (int i = 0; i < 4; i++)
        images[i] = calloc(1, i % 2 ? cells.bytes : form.bytes);
    bool on_device = dice(w, 2);
    EXPECT(place_init(&here, w->cpu, &form, &cells, on_device) == 0);
    EXPECT(place_move(&here, &desc, form.data, cells.data, images[0], images[1]) == 0);
    place_fini(&here);
    int e = place_init(&there, w->d, &form, &cells, on_device);
    for (int i = 0; i < 3 && !e; i++) { /* the same again, in the same memory */
        e = place_move(&there, &desc, form.data, cells.data, images[2], images[3]);
        EXPECT(e || (memcmp(images[0], images[2], form.bytes) == 0 &&
                     memcmp(images[1], images[3], cells.bytes) == 0));
    }
    w->n_errors += e != 0;
    place_fini(&there);
    for (int i = 0; i < 4; i++)
        free(images[i]);
    kv_cells_fini(&cells);
    kv_engine_fini(&form);
}

/* Until the fake has forgotten what uses it. */
static void keep(void *p)
{
    pthread_mutex_lock(&kept.lock);
    if (kept.n < TSRI_COUNT(kept.at)) kept.at[kept.n++] = p;
    pthread_mutex_unlock(&kept.lock);
}

static void register_and_copy(struct worker *w)
{
    size_t bytes = (1 + dice(w, 40)) * 4096;
    uint8_t *p = aligned_alloc(4096, bytes), *before = malloc(bytes);
    void *there = NULL;
    struct tsr_device_stream *s = NULL;
    kv_random_bytes(p, bytes, w->seed);
    memcpy(before, p, bytes);
    int e = tsri_device_host_register(w->d, p, bytes);
    bool registered = !e, waited = true;
    if (!e) e = tsri_stream_open(&s, w->d, NULL, 0);
    if (!e) e = tsri_device_alloc(w->d, &there, bytes);
    if (!e) {
        struct tsr_copy out = {there, p, bytes}, back = {p, there, bytes};
        e = tsri_device_copy(w->d, s, &out, 1);
        waited = tsri_stream_sync(w->d, s) == 0;
        if (!e && waited) {
            memset(p, 0, bytes);
            e = tsri_device_copy(w->d, s, &back, 1);
            waited = tsri_stream_sync(w->d, s) == 0;
            EXPECT(e || !waited || memcmp(p, before, bytes) == 0);
        }
    }
    w->n_errors += e != 0;
    tsri_device_free(w->d, there);
    tsri_stream_close(w->d, s);
    if (registered) tsri_device_host_unregister(w->d, p);
    if (waited && !w->bursts)
        free(p);
    else
        keep(p); /* copies may still use it, or it is still registered */
    free(before);
}

/* ---- the storm ---- */

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < STEPS; i++) {
        uint64_t what = dice(w, 10);
        if (what < 1) (w->bursts ? acl->fail_from : acl->fail)(1 + dice(w, 60));
        if (what == 2) acl->reset();
        if (what < 4)
            copy_around(w);
        else if (what < 9)
            move_around(w);
        else
            register_and_copy(w);
    }
    return NULL;
}

static uint32_t n_refused, n_lost;

static void storm(uint64_t seed)
{
    const char *variant = variants[seed % TSRI_COUNT(variants)];
    struct tsri_device *d = open_device("npu", variant);
    struct tsri_device *cpu = open_device("cpu", cpu_variant(variant));
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    struct tsr_device_info info = {.size = sizeof info};
    acl->lazy(seed % 2);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){
            .d = d, .cpu = cpu, .seed = seed * 100 + i + 1, .bursts = seed % 4 == 3};
        CHECK_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        n_refused += workers[i].n_errors;
        if (workers[i].wrong[0])
            printf("    seed %llu, %s\n", (unsigned long long)seed, workers[i].wrong);
    }
    acl->reset();
    acl->lazy(false);
    bool lost = tsri_device_info(d, &info) != 0;
    tsri_device_close(d);
    tsri_device_close(cpu);
    if (lost || workers[0].bursts) /* which may keep a device from being current */
        acl->forget();
    else
        acl->check_closed();
    n_lost += lost;
    while (kept.n)
        free(kept.at[--kept.n]);
    for (uint32_t i = 0; i < THREADS; i++)
        CHECK_STR(workers[i].wrong, "");
}

TEST(threads_that_share_a_device_get_right_bytes_or_an_error)
{
    const char *given = getenv("TESSERA_TEST_STORM");
    uint64_t n = given ? strtoull(given, NULL, 10) : TEST_SANITIZED ? 3 : 12;
    for (uint64_t seed = 1; seed <= n; seed++) {
        if (given) fprintf(stderr, "storm %llu\n", (unsigned long long)seed);
        storm(seed);
    }
    CHECK(n < 12 || n_refused > 0);
    if (given) printf("    %u refused, %u devices lost\n", n_refused, n_lost);
}

int main(void)
{
    acl = fakeacl_load("libascendcl.so");
    RUN(threads_that_share_a_device_get_right_bytes_or_an_error);
    return test_end();
}
