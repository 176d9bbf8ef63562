/* Get: what is read, in which order, and what is refused. */
#include "support/disk_kit.h"
#include "support/fault_io.h"
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0};
static const struct kv_shape large = {2048, 64, 16, 2, {256, 256}, 0, 0}; /* 1 MiB a layer */

static struct disk_kit kit;
static struct fault_io faults;

/* Changes a byte of the only segment. */
static void change_byte(uint64_t offset)
{
    char path[600];
    uint8_t byte;
    CHECK(disk_kit_path(&kit, ".seg", 0, path, sizeof path));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_INT(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    CHECK_INT(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

TEST(a_few_cells_are_read_alone)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &large, 1);
    for (uint32_t i = 0; i < large.n_layers * 2 * room.n_cells; i++)
        if (i % room.n_cells != 5) room.planes[i] = NULL;
    uint64_t before = disk_kit_stats(&kit).read_bytes;
    struct tsr_tier_io io = kv_entry_io(&room);
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 1);
    room.head = io.head;
    CHECK(kv_entry_right(&room, &large, 1));
    struct tsri_layout l;
    tsri_layout_init(&l, &io.head);
    CHECK_INT(disk_kit_stats(&kit).read_bytes - before,
              l.header_bytes + 2 * large.n_layers * 64 * 256);
    kv_entry_fini(&room);
}

struct order {
    uint32_t at_layer[16]; /* reads made when the layer was handed on */
    uint32_t n_layers;
};

static void note_layer(struct tsr_tier_io *io, uint32_t layer)
{
    struct order *o = io->arg;
    o->at_layer[layer] = atomic_load(&faults.n_calls);
    o->n_layers++;
}

/* With every read counted as it is made, the first layer must come before the reads of the last. */
TEST(a_layer_is_handed_on_before_the_last_ones_are_read)
{
    const struct kv_shape shape = {8192, 64, 16, 2, {256, 256}, 0, 0}; /* 4 MiB a layer */
    kit.setup.io = &faults.io;
    kit.setup.mode = TSRI_AIO_INLINE;
    kit.setup.segment_bytes = 80 << 20;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &shape, 1), 0);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &shape, 1);
    struct order order = {.n_layers = 0};
    struct tsr_tier_io io = kv_entry_io(&room);
    io.layer_done = note_layer;
    io.arg = &order;
    fault_io_set(&faults, FAULT_READ, 0, 0, 0);
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 1);
    kv_entry_fini(&room);
    uint32_t n_reads = atomic_load(&faults.n_calls);
    CHECK_INT(order.n_layers, 16);
    CHECK_INT(n_reads, 1 + 64); /* the header, then 1 MiB each */
    CHECK(order.at_layer[0] <= 4 + TSRI_AIO_DEPTH);
    CHECK(order.at_layer[8] < n_reads);
}

TEST(damage_is_told_where_it_is_and_nowhere_else)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t i = 0; i < 3; i++)
        CHECK_INT(kv_tier_put(kit.tier, &small, i), 0);
    uint64_t record = disk_kit_record_bytes(&small), second = TSRI_PAGE_BYTES + record;
    const uint64_t places[] = {second,             /* magic */
                               second + 64,        /* key */
                               second + 256,       /* tokens */
                               second + 256 + 400, /* extra */
                               second + 700,       /* sums */
                               second + 4096};     /* KV */
    for (size_t i = 0; i < TSRI_COUNT(places); i++) {
        change_byte(places[i]);
        CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ECORRUPT);
        CHECK_INT(kv_tier_get(kit.tier, &small, 0, 0), 0);
        CHECK_INT(kv_tier_get(kit.tier, &small, 2, 0), 0);
        change_byte(places[i]);
        CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
    }
    CHECK_INT(disk_kit_stats(&kit).errors, TSRI_COUNT(places));
    change_byte(second + 4096 + 64 * 48); /* padding: nobody reads it */
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
}

TEST(damage_in_cells_that_are_not_wanted_does_not_matter)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    change_byte(2 * TSRI_PAGE_BYTES); /* layer 0, plane 0, cell 0 */
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &small, 1);
    room.planes[0] = NULL;
    struct tsr_tier_io io = kv_entry_io(&room);
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 1);
    room.head = io.head;
    CHECK(kv_entry_right(&room, &small, 1));
    kv_entry_fini(&room);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), TSR_ECORRUPT);
}

TEST(a_truncated_segment_is_corruption_not_a_crash)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &small, 1), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 2), 0);
    char path[600];
    struct stat st;
    CHECK(disk_kit_path(&kit, ".seg", 1, path, sizeof path));
    CHECK_INT(stat(path, &st), 0);
    for (int i = 1; i < 10; i++) {
        CHECK_INT(truncate(path, st.st_size - st.st_size / 10 * i - i), 0);
        CHECK_INT(kv_tier_get(kit.tier, &large, 2, 0), TSR_ECORRUPT);
    }
    CHECK_INT(truncate(path, 0), 0);
    CHECK_INT(kv_tier_get(kit.tier, &large, 2, 0), TSR_ECORRUPT);
    CHECK_INT(kv_tier_get(kit.tier, &small, 1, 0), 0);
}

TEST(a_failed_read_is_a_miss_and_the_entry_stays)
{
    kit.setup.io = &faults.io;
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    for (uint32_t nth = 1; nth < 18; nth += 3) {
        fault_io_set(&faults, FAULT_READ, nth, 0, EIO);
        CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), TSR_EIO);
        fault_io_set(&faults, FAULT_READ, nth, 0, FAULT_SHORT);
        CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), 0);
    }
    fault_io_set(&faults, FAULT_READ, 0, 0, 0);
    CHECK_INT(kv_tier_get(kit.tier, &large, 1, 0), 0);
}

static void be_slow(struct tsr_tier_io *io, uint32_t layer)
{
    (void)layer;
    io->deadline_ns = 1;
}

TEST(a_deadline_may_pass_on_the_way)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    CHECK_INT(kv_tier_put(kit.tier, &large, 1), 0);
    struct kv_entry room;
    kv_entry_init_room_seed(&room, &large, 1);
    struct tsr_tier_io io = kv_entry_io(&room);
    io.layer_done = be_slow;
    CHECK_INT(tsri_tier_get(kit.tier, &io, 1), 0);
    CHECK_INT(io.result, TSR_ETIME);
    kv_entry_fini(&room);
}

#define RUN_KIT(promise) \
    do { \
        disk_kit_init(&kit); \
        fault_io_init(&faults); \
        RUN(promise); \
        disk_kit_fini(&kit); \
    } while (0)

int main(void)
{
    RUN_KIT(a_few_cells_are_read_alone);
    RUN_KIT(a_layer_is_handed_on_before_the_last_ones_are_read);
    RUN_KIT(damage_is_told_where_it_is_and_nowhere_else);
    RUN_KIT(damage_in_cells_that_are_not_wanted_does_not_matter);
    RUN_KIT(a_truncated_segment_is_corruption_not_a_crash);
    RUN_KIT(a_failed_read_is_a_miss_and_the_entry_stays);
    RUN_KIT(a_deadline_may_pass_on_the_way);
    return test_end();
}
