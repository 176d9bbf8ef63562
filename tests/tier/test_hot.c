/* The device pool beyond what the contract of tiers asks: its bound, pins, and a device that fails.
 */
#include "device/locking.h"
#include "support/kv_entry.h"
#include "support/test.h"
#include "tier/hot.h"

enum { PAGE = 16 << 10, PAGES = 8 };

static struct tsri_device *device;
static struct tsr_tier *pool;

/* One page each. */
static const struct kv_shape shape = {100, 64, 2, 2, {16, 16}, 5, 0};

static int put(const struct kv_shape *s, uint64_t seed)
{
    struct kv_entry e;
    kv_entry_init(&e, s, seed);
    struct tsr_tier_io io = kv_entry_io(&e);
    int n = tsri_tier_put(pool, &io, 1);
    kv_entry_fini(&e);
    return n < 0 ? n : io.result;
}

static struct tsr_tier_ref ref_of(uint64_t seed)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, seed);
    struct tsr_tier_ref ref = {.key = room.head.key};
    kv_entry_fini(&room);
    return ref;
}

static uint64_t bytes_used(void)
{
    struct tsr_tier_stats s;
    CHECK_INT(tsri_tier_stats(pool, &s), 0);
    return s.bytes_used;
}

/* Whether a pin's cells, on a device whose memory the host can read, hold the KV of the seed. */
static bool holds(const struct tsri_hot_pin *pin, uint64_t seed)
{
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, seed);
    room.head = *pin->head;
    memcpy(room.tokens, pin->tokens, shape.n_tokens * sizeof room.tokens[0]);
    memcpy(room.extra, pin->extra, shape.extra_bytes);
    size_t n = (size_t)shape.n_layers * shape.n_planes * pin->cells.n_cells;
    for (size_t i = 0; i < n; i++) {
        uint32_t cell = (uint32_t)(i % pin->cells.n_cells);
        uint32_t plane = (uint32_t)(i / pin->cells.n_cells % shape.n_planes);
        memcpy(room.planes[i], pin->cells.planes[i],
               (size_t)tsri_head_cell_tokens(pin->head, cell) * shape.row_bytes[plane]);
    }
    bool right = kv_entry_right(&room, &shape, seed);
    kv_entry_fini(&room);
    return right;
}

TEST(a_full_pool_refuses_and_takes_again_after_a_drop)
{
    uint64_t n = 0;
    while (put(&shape, n) == 0)
        n++;
    CHECK(n >= 2 && n <= PAGES);
    CHECK_INT(put(&shape, n), TSR_EFULL);
    CHECK(bytes_used() <= (uint64_t)PAGES * PAGE);
    struct tsr_tier_ref ref = ref_of(0);
    CHECK_INT(tsri_tier_drop(pool, &ref, 1), 1);
    CHECK_INT(put(&shape, n), 0);
    for (uint64_t i = 1; i <= n; i++) {
        ref = ref_of(i);
        CHECK_INT(tsri_tier_drop(pool, &ref, 1), 1);
    }
    CHECK_INT(bytes_used(), 0);
}

TEST(an_entry_larger_than_the_pool_is_not_a_full_pool)
{
    struct kv_shape large = {4096, 64, 8, 2, {64, 64}, 0, 0}, wide = {64, 64, 1, 1, {512, 0}, 0, 0};
    CHECK_INT(put(&large, 1), TSR_ERANGE);
    CHECK_INT(put(&wide, 1), TSR_ERANGE); /* a plane that fits no page */
    CHECK_INT(bytes_used(), 0);
}

TEST(a_pinned_entry_stays_readable_after_it_was_dropped)
{
    struct tsri_hot_pin pin, none;
    CHECK_INT(put(&shape, 1), 0);
    uint64_t one = bytes_used();
    struct tsr_tier_ref ref = ref_of(1), absent = ref_of(2);
    CHECK(tsri_hot_pin(pool, &ref.key, &pin));
    CHECK(!tsri_hot_pin(pool, &absent.key, &none));
    CHECK(holds(&pin, 1));
    CHECK_INT(tsri_tier_drop(pool, &ref, 1), 1);
    CHECK(!tsri_hot_pin(pool, &ref.key, &none));
    for (uint64_t i = 10; put(&shape, i) == 0; i++) /* into whatever is free */
        CHECK(i < 100);
    CHECK(holds(&pin, 1));
    uint64_t before = bytes_used();
    tsri_hot_unpin(pool, &pin);
    CHECK_INT(bytes_used(), before - one);
}

TEST(a_key_put_again_while_pinned_has_two_lives)
{
    struct tsri_hot_pin old, young;
    struct tsr_tier_ref ref = ref_of(1);
    CHECK_INT(put(&shape, 1), 0);
    CHECK(tsri_hot_pin(pool, &ref.key, &old));
    CHECK_INT(put(&shape, 1), 0);
    CHECK(tsri_hot_pin(pool, &ref.key, &young));
    CHECK(old.cells.planes[0] != young.cells.planes[0]);
    CHECK(holds(&old, 1));
    CHECK(holds(&young, 1));
    tsri_hot_unpin(pool, &old);
    tsri_hot_unpin(pool, &young);
}

TEST(a_pool_without_a_page_does_not_open)
{
    struct tsri_hot_setup setup = {device, PAGE - 1, PAGE};
    struct tsr_tier_desc env = {.size = sizeof env, .arg = &setup, .n_threads = 1};
    struct tsr_tier *t = NULL;
    CHECK_INT(tsri_tier_open(&t, &tsri_tier_hot, &env), TSR_ECONFIG);
    CHECK(t == NULL);
}

/* More memory than any machine has. */
TEST(a_device_out_of_memory_is_told_at_open)
{
    if (TEST_SANITIZED) SKIP("sanitizers end the program instead");
    struct tsri_hot_setup setup = {device, (uint64_t)1 << 50, (size_t)1 << 30};
    struct tsr_tier_desc env = {.size = sizeof env, .arg = &setup, .n_threads = 1};
    struct tsr_tier *t = NULL;
    CHECK_INT(tsri_tier_open(&t, &tsri_tier_hot, &env), TSR_ENOMEM);
    CHECK_HAS(tsr_errmsg(), "out of memory");
}

/* ---- a device that is lost while it is used ---- */

static const struct tsr_device_ops *real;
static struct tsr_device_ops failing;
static int copies_left;

static int failing_copy(struct tsr_device *d, struct tsr_device_stream *s,
                        const struct tsr_copy *copies, size_t n)
{
    if (copies_left-- <= 0) return TSR_EDEVICE;
    return real->copy(d, s, copies, n);
}

TEST(a_lost_device_costs_its_entries_and_nothing_else)
{
    real = device->ops;
    failing = *real;
    failing.copy = failing_copy;
    CHECK_INT(put(&shape, 1), 0);
    device->ops = &failing;
    copies_left = 0;
    CHECK_INT(put(&shape, 2), TSR_EDEVICE);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, 1);
    for (int n = 0; n < 2; n++) {
        copies_left = n; /* before the first layer, and before the second */
        struct tsr_tier_io io = kv_entry_io(&room);
        CHECK_INT(tsri_tier_get(pool, &io, 1), 0);
        CHECK_INT(io.result, TSR_EDEVICE);
    }
    device->ops = real;
    struct tsr_tier_ref refs[2] = {ref_of(1), ref_of(2)};
    uint8_t found[2];
    CHECK_INT(tsri_tier_contains(pool, refs, 2, found), 1);
    CHECK_INT(found[0], 1);
    CHECK_INT(tsri_tier_drop(pool, refs, 2), 1);
    CHECK_INT(bytes_used(), 0);
    kv_entry_fini(&room);
}

/* ---- page-locked memory in pieces ---- */

static uint32_t n_copies, n_across;

static int counting_copy(struct tsr_device *d, struct tsr_device_stream *s,
                         const struct tsr_copy *copies, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uintptr_t first = (uintptr_t)copies[i].src, last = first + copies[i].bytes - 1;
        n_across += first / TSRI_LOCKING_ALIGN != last / TSRI_LOCKING_ALIGN;
        n_copies++;
    }
    return real->copy(d, s, copies, n);
}

/* An entry whose cells follow each other, before and behind the end of a piece. */
TEST(no_copy_is_in_two_pieces_of_locked_memory)
{
    struct kv_entry e;
    kv_entry_init(&e, &shape, 1);
    uint8_t *memory = aligned_alloc(TSRI_LOCKING_ALIGN, 2 * TSRI_LOCKING_ALIGN);
    CHECK(memory);
    uint8_t *at = memory + TSRI_LOCKING_ALIGN - (size_t)2 * 64 * 16;
    for (uint32_t cell = 0; cell < e.n_cells; cell++)
        for (uint32_t i = 0; i < 4; i++) {
            size_t bytes = (size_t)tsri_head_cell_tokens(&e.head, cell) * 16;
            memcpy(at, e.planes[i * e.n_cells + cell], bytes);
            e.planes[i * e.n_cells + cell] = at;
            at += bytes;
        }
    real = device->ops;
    failing = *real;
    failing.copy = counting_copy;
    device->ops = &failing;
    struct tsr_tier_io io = kv_entry_io(&e);
    CHECK_INT(tsri_tier_put(pool, &io, 1), 1);
    device->ops = real;
    CHECK(n_copies < 8); /* neighbours go together */
    CHECK_INT(n_across, 0);
    struct tsr_tier_ref ref = ref_of(1);
    CHECK_INT(tsri_tier_drop(pool, &ref, 1), 1);
    kv_entry_fini(&e);
    free(memory);
}

#define RUN_ON_POOL(promise) \
    do { \
        struct tsri_hot_setup setup = {device, (uint64_t)PAGES * PAGE, PAGE}; \
        struct tsr_tier_desc env = {.size = sizeof env, .arg = &setup, .n_threads = 2}; \
        if (tsri_tier_open(&pool, &tsri_tier_hot, &env) != 0) return 1; \
        RUN(promise); \
        tsri_tier_close(pool); \
    } while (0)

int main(void)
{
    if (tsri_device_open(&device, "cpu", NULL) != 0) return 1;
    RUN_ON_POOL(a_full_pool_refuses_and_takes_again_after_a_drop);
    RUN_ON_POOL(an_entry_larger_than_the_pool_is_not_a_full_pool);
    RUN_ON_POOL(a_pinned_entry_stays_readable_after_it_was_dropped);
    RUN_ON_POOL(a_key_put_again_while_pinned_has_two_lives);
    RUN_ON_POOL(a_pool_without_a_page_does_not_open);
    RUN_ON_POOL(a_device_out_of_memory_is_told_at_open);
    RUN_ON_POOL(no_copy_is_in_two_pieces_of_locked_memory);
    RUN_ON_POOL(a_lost_device_costs_its_entries_and_nothing_else);
    tsri_device_close(device);
    return test_end();
}
