/* The contract: what every tier must do, run over each tier in `subjects`. A new tier is one line
 * there. KV is a function of the token prefix; every byte that a get hands on is checked. */
#include "device/device.h"
#include "disk/disk.h"
#include "tier/hot.h"
#include "support/fake_tier.h"
#include "support/kv_entry.h"
#ifdef TSRI_HAVE_REDIS
#include "support/redis_kit.h"
#endif
#ifdef TSRI_HAVE_S3
#include "support/s3_kit.h"
#include "support/s3_stub.h"
#endif
#include "support/test.h"
#include "support/tmpdir.h"

#include <pthread.h>

/* A tier as somebody else would write one, of examples/custom_tier.c. */
extern const struct tsr_tier_ops tree_ops;

struct subject {
    const char *name;
    const struct tsr_tier_ops *ops;
    /* Makes a fresh, empty place and returns env.arg; done() removes it. Device pools:
     * NULL where there is no device. */
    void *(*fresh)(void);
    void (*done)(void *arg);
    bool persistent; /* what was flushed is there after close and open */
};

static void *fresh_mem(void)
{
    struct mem_tier_store *s = malloc(sizeof *s);
    mem_tier_store_init(s, 0);
    return s;
}

static void done_mem(void *arg)
{
    mem_tier_store_fini(arg);
    free(arg);
}

static void *fresh_fake(void)
{
    struct fake_tier_plan *p = malloc(sizeof *p);
    fake_tier_plan_init_over(p, &mem_tier, fresh_mem());
    return p;
}

static void done_fake(void *arg)
{
    struct fake_tier_plan *p = arg;
    done_mem(p->inner_arg);
    fake_tier_plan_fini(p);
    free(p);
}

/* A disk tier in a directory of its own. */
struct disk_place {
    struct tsri_disk_setup setup; /* first: what env.arg points to */
    struct tmpdir dir;
};

static void *fresh_disk_with(enum tsri_aio_mode mode, bool buffered)
{
    struct disk_place *p = calloc(1, sizeof *p);
    tmpdir_init(&p->dir);
    p->setup.path = p->dir.path;
    p->setup.mode = mode;
    p->setup.buffered = buffered;
    p->setup.segment_bytes = 4 << 20;
    return p;
}

static void *fresh_disk(void)
{
    return fresh_disk_with(TSRI_AIO_AUTO, false);
}

static void *fresh_disk_threads(void)
{
    return fresh_disk_with(TSRI_AIO_THREADS, false);
}

static void *fresh_disk_buffered(void)
{
    return fresh_disk_with(TSRI_AIO_AUTO, true);
}

static void *fresh_disk_inline(void)
{
    return fresh_disk_with(TSRI_AIO_INLINE, true);
}

/* So small that it is compacted all the time. */
static void *fresh_disk_small(void)
{
    struct disk_place *p = fresh_disk_with(TSRI_AIO_AUTO, false);
    p->setup.bytes_max = 32 << 20;
    p->setup.segment_bytes = 1 << 20;
    return p;
}

static void done_disk(void *arg)
{
    struct disk_place *p = arg;
    tmpdir_fini(&p->dir);
    free(p);
}

static void *fresh_nothing(void)
{
    return NULL;
}

static void done_nothing(void *arg)
{
    (void)arg;
}

/* A device pool on the named device; NULL where there is none. */
static void *fresh_hot_on(const char *device)
{
    struct tsri_hot_setup *s = calloc(1, sizeof *s);
    if (tsri_device_open(&s->device, device, NULL) != 0) {
        free(s);
        return NULL;
    }
    s->bytes_max = 32 << 20;
    s->page_bytes = 128 << 10;
    return s;
}

static void *fresh_hot(void)
{
    return fresh_hot_on("cpu");
}

static void *fresh_hot_cuda(void)
{
    return fresh_hot_on("cuda");
}

static void done_hot(void *arg)
{
    struct tsri_hot_setup *s = arg;
    tsri_device_close(s->device);
    free(s);
}

#ifdef TSRI_HAVE_REDIS
/* One server for all; each place is a prefix of its own. */
static struct redis_server server;

struct redis_place {
    struct tsri_redis_setup setup; /* first */
    char prefix[32];
};

static void *fresh_redis_with(uint64_t part_bytes, bool tcp)
{
    static int n_places;
    if (redis_kit_missing()) {
        (void)tsri_fail(TSR_EUNSUP, "%s", redis_kit_missing());
        return NULL;
    }
    if (!server.pid) redis_server_init(&server, NULL);
    struct redis_place *p = calloc(1, sizeof *p);
    snprintf(p->prefix, sizeof p->prefix, "place-%d", n_places++);
    p->setup.prefix = p->prefix;
    p->setup.address = tcp ? server.tcp : server.unix_;
    p->setup.part_bytes = part_bytes;
    p->setup.timeout_ms = 20000; /* a loaded machine is not a broken server */
    p->setup.absent_ms = 60000;
    return p;
}

static void *fresh_redis(void)
{
    return fresh_redis_with(0, false);
}

/* So small that most entries have many. */
static void *fresh_redis_parts(void)
{
    return fresh_redis_with(4096, true);
}

static void done_redis(void *arg)
{
    free(arg);
}
#endif

#ifdef TSRI_HAVE_S3
/* One real server and one stub for all; each place is a prefix of its own. */
static struct s3_server s3_server;
static struct s3_stub s3_stub;

struct s3_place {
    struct tsri_s3_setup setup; /* first */
    char prefix[32];
};

static void *fresh_s3_at(const char *endpoint, uint64_t part_bytes, uint64_t upload_bytes)
{
    static int n_places;
    struct s3_place *p = calloc(1, sizeof *p);
    snprintf(p->prefix, sizeof p->prefix, "place-%d", n_places++);
    p->setup =
        (struct tsri_s3_setup){.endpoint = endpoint,
                               .bucket = S3_KIT_BUCKET,
                               .prefix = p->prefix,
                               .access_key = S3_KIT_KEY,
                               .secret_key = S3_KIT_SECRET,
                               .part_bytes = part_bytes,
                               .upload_bytes = upload_bytes,
                               .timeout_ms = 20000, /* a loaded machine is not a broken one */
                               .absent_ms = 60000};
    return p;
}

static void *fresh_s3(void)
{
    if (s3_kit_missing()) {
        (void)tsri_fail(TSR_EUNSUP, "%s", s3_kit_missing());
        return NULL;
    }
    if (!s3_server.pid) s3_server_init(&s3_server);
    return fresh_s3_at(s3_server.endpoint, 0, 0);
}

/* So small that most entries are read and written in many. */
static void *fresh_s3_stub(void)
{
    if (!s3_stub.port) s3_stub_init(&s3_stub);
    return fresh_s3_at(s3_stub.endpoint, 4096, 128 << 10);
}

static void done_s3(void *arg)
{
    free(arg);
}
#endif

static const struct subject subjects[] = {
    {"mem", &mem_tier, fresh_mem, done_mem, true},
    {"fake over mem", &fake_tier, fresh_fake, done_fake, true},
    {"disk", &tsri_tier_disk, fresh_disk, done_disk, true},
    {"disk by threads", &tsri_tier_disk, fresh_disk_threads, done_disk, true},
    {"disk, buffered", &tsri_tier_disk, fresh_disk_buffered, done_disk, true},
    {"disk, buffered, inline", &tsri_tier_disk, fresh_disk_inline, done_disk, true},
    {"the example", &tree_ops, fresh_nothing, done_nothing, false},
    {"disk, small", &tsri_tier_disk, fresh_disk_small, done_disk, true},
    {"device pool on cpu", &tsri_tier_hot, fresh_hot, done_hot, false},
    {"device pool on cuda", &tsri_tier_hot, fresh_hot_cuda, done_hot, false},
#ifdef TSRI_HAVE_REDIS
    {"redis", &tsri_tier_redis, fresh_redis, done_redis, true},
    {"redis, small parts", &tsri_tier_redis, fresh_redis_parts, done_redis, true},
#endif
#ifdef TSRI_HAVE_S3
    {"s3", &tsri_tier_s3, fresh_s3, done_s3, true},
    {"s3, small parts, on a stub", &tsri_tier_s3, fresh_s3_stub, done_s3, true},
#endif
};

enum { N_THREADS = 4, N_ROUNDS = 60, N_KEYS = 12 };

static const struct subject *subject;
static void *place;
static struct tsr_tier *tier;

static const struct kv_shape shapes[] = {
    {1, 64, 1, 1, {4, 0}, 0, 0},           /* the smallest */
    {100, 64, 3, 2, {48, 32}, 10, 0},      /* rows that fit no page */
    {256, 64, 4, 2, {256, 256}, 0, 0},     /* full cells, aligned */
    {200, 64, 4, 2, {256, 128}, 33, 0},    /* a last cell of 8 */
    {77, 16, 2, 2, {512, 512}, 0, 0},      /* small cells */
    {130, 64, 5, 1, {1152, 0}, 7, 0},      /* one latent plane */
    {130, 64, 2, 2, {1024, 1024}, 0, 1},   /* memory that is aligned to nothing */
    {1000, 64, 2, 2, {1024, 1024}, 0, 64}, /* more than one read a layer, maybe */
    {3, 1, 2, 2, {1, 1}, 1, 0},            /* cells of one byte */
};
static const struct kv_shape medium = {150, 64, 4, 2, {128, 96}, 20, 0};

static void reopen_tier(void)
{
    tsri_tier_close(tier);
    tier = NULL;
    struct tsr_tier_desc env = {.size = sizeof env, .arg = place, .n_threads = N_THREADS};
    CHECK_INT(tsri_tier_open(&tier, subject->ops, &env), 0);
}

static tsr_tier_loc put(const struct kv_shape *shape, uint64_t seed)
{
    struct kv_entry e;
    kv_entry_init(&e, shape, seed);
    struct tsr_tier_io io = kv_entry_io(&e);
    int n = tsri_tier_put(tier, &io, 1);
    kv_entry_fini(&e);
    CHECK_INT(io.result, 0);
    CHECK_INT(n, 1);
    CHECK(io.loc != 0);
    return io.loc;
}

/* The result of a get; when it is 0, every byte has been checked. */
static int get(const struct kv_shape *shape, uint64_t seed, tsr_tier_loc loc)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, shape, seed);
    room.loc = loc;
    struct tsr_tier_io io = kv_entry_io(&room);
    int n = tsri_tier_get(tier, &io, 1);
    room.head = io.head;
    bool right = io.result != 0 || kv_entry_right(&room, shape, seed);
    kv_entry_fini(&room);
    CHECK_INT(n, io.result == 0);
    CHECK(right);
    return io.result;
}

static struct tsr_tier_ref ref_of(const struct kv_shape *shape, uint64_t seed, tsr_tier_loc loc)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, shape, seed);
    room.loc = loc;
    struct tsr_tier_ref ref = kv_entry_ref(&room);
    kv_entry_fini(&room);
    return ref;
}

TEST(what_was_put_is_got_byte_for_byte)
{
    tsr_tier_loc locs[TSRI_COUNT(shapes)];
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++)
        locs[i] = put(&shapes[i], 100 + i);
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++)
        CHECK_INT(get(&shapes[i], 100 + i, locs[i]), 0);
    struct kv_shape skewed = shapes[2];
    skewed.skew = 3;
    CHECK_INT(get(&skewed, 102, locs[2]), 0);
}

TEST(an_absent_key_is_not_found)
{
    CHECK_INT(get(&medium, 1, 0), TSR_ENOENT);
    tsr_tier_loc loc = put(&medium, 1);
    CHECK_INT(get(&medium, 2, loc), TSR_ENOENT);
    CHECK_INT(get(&medium, 1, loc), 0);
}

TEST(a_dropped_entry_is_gone_and_counted_once)
{
    struct tsr_tier_ref refs[3];
    for (uint64_t i = 0; i < 3; i++)
        refs[i] = ref_of(&medium, i, put(&medium, i));
    struct tsr_tier_ref two[2] = {refs[0], refs[2]};
    CHECK_INT(tsri_tier_drop(tier, two, 2), 2);
    CHECK_INT(tsri_tier_drop(tier, two, 2), 0);
    CHECK_INT(get(&medium, 0, refs[0].loc), TSR_ENOENT);
    CHECK_INT(get(&medium, 1, refs[1].loc), 0);
    CHECK_INT(get(&medium, 2, refs[2].loc), TSR_ENOENT);
    CHECK_INT(get(&medium, 0, put(&medium, 0)), 0);
}

TEST(putting_a_key_again_replaces_it)
{
    struct kv_entry e;
    kv_entry_init(&e, &medium, 1);
    struct tsr_tier_io io = kv_entry_io(&e);
    CHECK_INT(tsri_tier_put(tier, &io, 1), 1);
    /* The same key, of the tokens and KV of another seed. */
    struct tsr_key key = e.head.key;
    kv_entry_fini(&e);
    kv_entry_init(&e, &medium, 2);
    struct tsr_key key2 = e.head.key;
    e.head.key = key;
    io = kv_entry_io(&e);
    CHECK_INT(tsri_tier_put(tier, &io, 1), 1);
    struct kv_entry room;
    kv_entry_init_room(&room, &e, 0);
    room.loc = io.loc;
    io = kv_entry_io(&room);
    CHECK_INT(tsri_tier_get(tier, &io, 1), 1);
    CHECK(memcmp(&io.head.key, &key, sizeof key) == 0);
    room.head = io.head;
    room.head.key = key2;
    CHECK(kv_entry_right(&room, &medium, 2));
    room.head.key = key;
    room.loc = io.loc;
    struct tsr_tier_ref ref = kv_entry_ref(&room);
    CHECK_INT(tsri_tier_drop(tier, &ref, 1), 1);
    CHECK_INT(tsri_tier_get(tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ENOENT);
    struct tsr_tier_stats stats;
    CHECK_INT(tsri_tier_stats(tier, &stats), 0);
    CHECK_INT(stats.entries, 0);
    kv_entry_fini(&room);
    kv_entry_fini(&e);
}

TEST(cells_that_are_not_wanted_are_not_touched)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        const struct kv_shape *shape = &shapes[i];
        tsr_tier_loc loc = put(shape, i);
        struct kv_entry room;
        kv_entry_init_room_seed(&room, shape, i);
        room.loc = loc;
        size_t n = (size_t)shape->n_layers * shape->n_planes * room.n_cells;
        void **all = malloc(n * sizeof all[0]);
        memcpy(all, room.planes, n * sizeof all[0]);
        uint64_t state = 77 + i;
        for (size_t k = 0; k < n; k++)
            if (test_rand(&state) >> 63) room.planes[k] = NULL;
        struct tsr_tier_io io = kv_entry_io(&room);
        CHECK_INT(tsri_tier_get(tier, &io, 1), 1);
        room.head = io.head;
        CHECK(kv_entry_right(&room, shape, i));
        for (size_t k = 0; k < n; k++)
            if (!room.planes[k]) CHECK_INT(*(uint8_t *)all[k], 0xA5);
        memcpy(room.planes, all, n * sizeof all[0]);
        free(all);
        kv_entry_fini(&room);
    }
}

struct watch {
    struct kv_entry *room;
    const struct kv_shape *shape;
    uint64_t seed;
    uint32_t n_heads, n_layers;
    int answer;
    bool right;
};

static int watch_head(struct tsr_tier_io *io)
{
    struct watch *w = io->arg;
    w->room->head = io->head;
    w->right = w->right && w->n_layers == 0 && kv_entry_head_right(w->room, w->shape, w->seed);
    w->n_heads++;
    return w->answer;
}

static void watch_layer(struct tsr_tier_io *io, uint32_t layer)
{
    struct watch *w = io->arg;
    w->right =
        w->right && w->n_heads == 1 && layer == w->n_layers && kv_entry_layer_right(w->room, layer);
    w->n_layers++;
}

static struct watch watch_get(const struct kv_shape *shape, uint64_t seed, int answer, int *result)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, shape, seed);
    struct watch w = {&room, shape, seed, 0, 0, answer, true};
    struct tsr_tier_io io = kv_entry_io(&room);
    io.head_done = watch_head;
    io.layer_done = watch_layer;
    io.arg = &w;
    int n = tsri_tier_get(tier, &io, 1);
    *result = io.result;
    kv_entry_fini(&room);
    CHECK_INT(n, io.result == 0);
    return w;
}

TEST(head_then_layers_arrive_in_order_and_proven)
{
    for (size_t i = 0; i < TSRI_COUNT(shapes); i++) {
        put(&shapes[i], i);
        int result;
        struct watch w = watch_get(&shapes[i], i, 0, &result);
        CHECK_INT(result, 0);
        CHECK(w.right);
        CHECK_INT(w.n_heads, 1);
        CHECK_INT(w.n_layers, shapes[i].n_layers);
    }
}

TEST(a_head_that_is_refused_stops_the_get)
{
    put(&medium, 1);
    int result;
    struct watch w = watch_get(&medium, 1, TSR_ECORRUPT, &result);
    CHECK_INT(result, TSR_ECORRUPT);
    CHECK(w.right);
    CHECK_INT(w.n_heads, 1);
    CHECK_INT(w.n_layers, 0);
    CHECK_INT(get(&medium, 1, 0), 0);
}

TEST(another_shape_or_space_is_not_found)
{
    tsr_tier_loc loc = put(&medium, 1);
    struct kv_shape other = medium;
    other.n_layers++;
    CHECK_INT(get(&other, 1, loc), TSR_ENOENT);
    other = medium;
    other.row_bytes[1] += 4;
    CHECK_INT(get(&other, 1, loc), TSR_ENOENT);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &medium, 1);
    struct tsr_tier_io io = kv_entry_io(&room);
    io.head.space[0] ^= 1;
    CHECK_INT(tsri_tier_get(tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ENOENT);
    kv_entry_fini(&room);
    CHECK_INT(get(&medium, 1, loc), 0);
}

TEST(too_little_room_for_extra_is_refused)
{
    tsr_tier_loc loc = put(&medium, 1);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &medium, 1);
    struct tsr_tier_io io = kv_entry_io(&room);
    io.loc = loc;
    io.extra_max = medium.extra_bytes - 1;
    CHECK_INT(tsri_tier_get(tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ERANGE);
    kv_entry_fini(&room);
}

TEST(a_deadline_that_has_passed_is_told)
{
    tsr_tier_loc loc = put(&medium, 1);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &medium, 1);
    struct tsr_tier_io io = kv_entry_io(&room);
    io.loc = loc;
    io.deadline_ns = 1;
    CHECK_INT(tsri_tier_get(tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ETIME);
    io.deadline_ns = tsri_now_ns() + 60000000000u;
    CHECK_INT(tsri_tier_get(tier, &io, 1), 1);
    kv_entry_fini(&room);
    struct kv_entry late;
    kv_entry_init(&late, &medium, 2);
    io = kv_entry_io(&late);
    io.deadline_ns = 1;
    CHECK_INT(tsri_tier_put(tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ETIME);
    kv_entry_fini(&late);
}

TEST(each_io_of_a_batch_has_its_own_result)
{
    enum { N = 23 };
    struct kv_entry e[N];
    struct tsr_tier_io io[N];
    for (size_t i = 0; i < N; i++) {
        kv_entry_init(&e[i], &shapes[i % TSRI_COUNT(shapes)], i);
        io[i] = kv_entry_io(&e[i]);
    }
    CHECK_INT(tsri_tier_put(tier, io, N), N);
    struct tsr_tier_ref refs[N];
    uint8_t found[N];
    int n_gone = 0;
    for (size_t i = 0; i < N; i++) {
        e[i].loc = io[i].loc;
        refs[i] = kv_entry_ref(&e[i]);
        if (i % 3 == 1) {
            CHECK_INT(tsri_tier_drop(tier, &refs[i], 1), 1);
            n_gone++;
        }
        kv_entry_blank(&e[i]);
        e[i].loc = io[i].loc;
        io[i] = kv_entry_io(&e[i]);
    }
    if (tier->ops->contains) CHECK_INT(tsri_tier_contains(tier, refs, N, found), N - n_gone);
    CHECK_INT(tsri_tier_get(tier, io, N), N - n_gone);
    for (size_t i = 0; i < N; i++) {
        if (tier->ops->contains) CHECK_INT(found[i], i % 3 != 1);
        CHECK_INT(io[i].result, i % 3 == 1 ? TSR_ENOENT : 0);
        e[i].head = io[i].head;
        CHECK(io[i].result || kv_entry_right(&e[i], &shapes[i % TSRI_COUNT(shapes)], i));
        kv_entry_fini(&e[i]);
    }
}

struct seen {
    struct tsr_tier_ref refs[64];
    size_t n;
    int stop_after;
};

static int see(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc, uint64_t bytes)
{
    struct seen *s = arg;
    if (s->n == 64 || bytes == 0 || loc == 0) return TSR_ERANGE;
    s->refs[s->n++] = (struct tsr_tier_ref){.key = head->key, .loc = loc};
    return s->stop_after && (int)s->n == s->stop_after ? TSR_EBUSY : 0;
}

TEST(what_was_flushed_is_scanned_once_and_got_after_a_restart)
{
    if (!subject->persistent) SKIP("this tier keeps nothing");
    for (uint64_t i = 0; i < 20; i++)
        put(&shapes[i % TSRI_COUNT(shapes)], i);
    struct tsr_tier_ref gone = ref_of(&shapes[3], 3, 0);
    CHECK_INT(tsri_tier_drop(tier, &gone, 1), 1);
    put(&shapes[4], 4); /* again */
    CHECK_INT(tsri_tier_flush(tier), 0);
    reopen_tier();
    struct seen seen = {.n = 0};
    CHECK_INT(tsri_tier_scan(tier, see, &seen), 19);
    for (uint64_t i = 0; i < 20; i++) {
        struct tsr_tier_ref ref = ref_of(&shapes[i % TSRI_COUNT(shapes)], i, 0);
        int times = 0;
        for (size_t k = 0; k < seen.n; k++)
            if (memcmp(&seen.refs[k].key, &ref.key, sizeof ref.key) == 0) {
                times++;
                CHECK_INT(get(&shapes[i % TSRI_COUNT(shapes)], i, seen.refs[k].loc), 0);
            }
        CHECK_INT(times, i != 3);
    }
    CHECK_INT(get(&shapes[3], 3, 0), TSR_ENOENT);
    struct tsr_tier_stats stats;
    CHECK_INT(tsri_tier_stats(tier, &stats), 0);
    CHECK_INT(stats.entries, 19);
    CHECK(stats.bytes_used > 0);
}

TEST(a_scan_stops_when_told)
{
    if (!subject->persistent) SKIP("this tier keeps nothing");
    for (uint64_t i = 0; i < 5; i++)
        put(&medium, i);
    CHECK_INT(tsri_tier_flush(tier), 0);
    reopen_tier();
    struct seen seen = {.stop_after = 2};
    CHECK_INT(tsri_tier_scan(tier, see, &seen), TSR_EBUSY);
    CHECK_INT(seen.n, 2);
}

/* Of a tier that several caches share. */
TEST(another_tenant_finds_lists_and_drops_nothing)
{
    struct tsr_tier *mine = tier;
    struct tsr_tier_ref ref = ref_of(&medium, 1, put(&medium, 1));
    struct tsr_tier_desc env = {
        .size = sizeof env, .arg = place, .n_threads = N_THREADS, .tenant = "another.one"};
    struct seen seen = {.n = 0};
    uint8_t found = 2;
    CHECK_INT(tsri_tier_open(&tier, subject->ops, &env), 0);
    CHECK_INT(tsri_tier_contains(tier, &ref, 1, &found), 0);
    CHECK_INT(get(&medium, 1, ref.loc), TSR_ENOENT);
    CHECK_INT(tsri_tier_scan(tier, see, &seen), 0);
    CHECK_INT(tsri_tier_drop(tier, &ref, 1), 0);
    put(&medium, 1); /* under the same key, and its own alone */
    CHECK_INT(tsri_tier_drop(tier, &ref, 1), 1);
    tsri_tier_close(tier);
    tier = mine;
    CHECK_INT(get(&medium, 1, ref.loc), 0);
}

struct worker {
    pthread_t thread;
    uint64_t seed;
    int n_wrong;
    const char *what;
};

/* Any thread puts, gets and drops any key; whatever a get returns must be right. */
static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t state = w->seed;
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t seed = test_rand(&state) % N_KEYS;
        const struct kv_shape *shape = &shapes[seed % TSRI_COUNT(shapes)];
        struct kv_entry e;
        switch (test_rand(&state) % 8) {
        case 0:
        case 1:
        case 2: {
            kv_entry_init(&e, shape, seed);
            struct tsr_tier_io io = kv_entry_io(&e);
            if (tsri_tier_put(tier, &io, 1) != 1) w->n_wrong++, w->what = "put";
            break;
        }
        case 3: {
            kv_entry_init_room_seed(&e, shape, seed);
            struct tsr_tier_ref ref = kv_entry_ref(&e);
            if (tsri_tier_drop(tier, &ref, 1) < 0) w->n_wrong++, w->what = "drop";
            break;
        }
        default: {
            kv_entry_init_room_seed(&e, shape, seed);
            struct tsr_tier_io io = kv_entry_io(&e);
            if (tsri_tier_get(tier, &io, 1) < 0) w->n_wrong++, w->what = "get";
            e.head = io.head;
            if (io.result != 0 && io.result != TSR_ENOENT) w->n_wrong++, w->what = "get result";
            if (io.result == 0 && !kv_entry_right(&e, shape, seed)) w->n_wrong++, w->what = "byte";
        }
        }
        kv_entry_fini(&e);
        if (round % 20 == 19 && tsri_tier_flush(tier) != 0) w->n_wrong++, w->what = "flush";
    }
    return NULL;
}

TEST(threads_put_get_and_drop_at_once)
{
    struct worker w[N_THREADS];
    for (uint64_t i = 0; i < N_THREADS; i++) {
        w[i] = (struct worker){.seed = i + 1, .what = ""};
        CHECK_INT(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (size_t i = 0; i < N_THREADS; i++)
        pthread_join(w[i].thread, NULL);
    for (size_t i = 0; i < N_THREADS; i++) {
        CHECK_STR(w[i].what, "");
        CHECK_INT(w[i].n_wrong, 0);
    }
}

/* A tier that does not open fails the test that would have run on it. */
#define RUN_FRESH(promise) \
    do { \
        place = subject->fresh(); \
        struct tsr_tier_desc env = {.size = sizeof env, .arg = place, .n_threads = N_THREADS}; \
        if (tsri_tier_open(&tier, subject->ops, &env) == 0) { \
            RUN(promise); \
            tsri_tier_close(tier); \
        } else { \
            printf("  FAILED  %s does not open: %s\n", subject->name, tsr_errmsg()); \
            test_n_failed++; \
        } \
        tier = NULL; \
        subject->done(place); \
    } while (0)

static void run_all(void)
{
    RUN_FRESH(what_was_put_is_got_byte_for_byte);
    RUN_FRESH(an_absent_key_is_not_found);
    RUN_FRESH(a_dropped_entry_is_gone_and_counted_once);
    RUN_FRESH(putting_a_key_again_replaces_it);
    RUN_FRESH(cells_that_are_not_wanted_are_not_touched);
    RUN_FRESH(head_then_layers_arrive_in_order_and_proven);
    RUN_FRESH(a_head_that_is_refused_stops_the_get);
    RUN_FRESH(another_shape_or_space_is_not_found);
    RUN_FRESH(too_little_room_for_extra_is_refused);
    RUN_FRESH(a_deadline_that_has_passed_is_told);
    RUN_FRESH(each_io_of_a_batch_has_its_own_result);
    RUN_FRESH(what_was_flushed_is_scanned_once_and_got_after_a_restart);
    RUN_FRESH(a_scan_stops_when_told);
    if (subject->ops->caps & TSR_TIER_SHARED)
        RUN_FRESH(another_tenant_finds_lists_and_drops_nothing);
    RUN_FRESH(threads_put_get_and_drop_at_once);
}

static bool may_be_missing(const struct subject *s)
{
#ifdef TSRI_HAVE_REDIS
    if (s->ops == &tsri_tier_redis) return true;
#endif
#ifdef TSRI_HAVE_S3
    if (s->ops == &tsri_tier_s3) return true;
#endif
    return s->ops == &tsri_tier_hot;
}

int main(void)
{
    for (size_t i = 0; i < TSRI_COUNT(subjects); i++) {
        subject = &subjects[i];
        printf("%s:\n", subject->name);
        void *here = subject->fresh();
        if (here) subject->done(here);
        if (here || !may_be_missing(subject)) {
            run_all();
        } else {
            printf("    skipped: %s\n", tsr_errmsg());
            test_n_skipped++;
        }
    }
#ifdef TSRI_HAVE_REDIS
    if (server.pid) redis_server_fini(&server);
#endif
#ifdef TSRI_HAVE_S3
    if (s3_server.pid) s3_server_fini(&s3_server);
    if (s3_stub.port) s3_stub_fini(&s3_stub);
#endif
    return test_end();
}
