/* The entries a disk tier holds, by key. */
#include "disk/disk.h"
#include "support/test.h"

static struct tsr_entry_head head_of(uint64_t i)
{
    struct tsr_entry_head h = {.n_tokens = (uint32_t)i};
    /* Few homes, so that keys stand behind one another and removal has to close up. */
    uint32_t home = (uint32_t)(i % 7) * 0x01000193u;
    memcpy(h.key.bytes, &home, sizeof home);
    memcpy(h.key.bytes + 8, &i, sizeof i);
    return h;
}

TEST(what_was_added_is_found_until_it_is_removed)
{
    enum { N = 3000 };
    struct tsri_disk_index x;
    CHECK_INT(tsri_disk_index_init(&x), 0);
    static uint32_t slots[N];
    static bool there[N];
    memset(there, 0, sizeof there);
    uint64_t state = 3;
    uint32_t n_there = 0;
    for (int round = 0; round < 30000; round++) {
        uint64_t i = test_rand(&state) % N;
        struct tsr_entry_head h = head_of(i);
        uint32_t slot = tsri_disk_index_find(&x, &h.key);
        CHECK((slot != TSRI_NO_SLOT) == there[i]);
        if (there[i]) {
            CHECK_INT(slot, slots[i]);
            CHECK_INT(tsri_disk_index_at(&x, slot)->head.n_tokens, i);
            tsri_disk_index_remove(&x, slot);
            n_there--;
        } else {
            slots[i] = tsri_disk_index_add(&x, &h);
            CHECK(slots[i] != TSRI_NO_SLOT);
            n_there++;
        }
        there[i] = !there[i];
        CHECK_INT(x.n_entries, n_there);
    }
    for (uint64_t i = 0; i < N; i++) {
        struct tsr_entry_head h = head_of(i);
        CHECK((tsri_disk_index_find(&x, &h.key) != TSRI_NO_SLOT) == there[i]);
    }
    tsri_disk_index_fini(&x);
}

TEST(slots_do_not_move_while_it_grows)
{
    struct tsri_disk_index x;
    CHECK_INT(tsri_disk_index_init(&x), 0);
    struct tsr_entry_head h = head_of(1);
    struct tsri_disk_slot *first = tsri_disk_index_at(&x, tsri_disk_index_add(&x, &h));
    for (uint64_t i = 2; i < 20000; i++) {
        struct tsr_entry_head other = head_of(i);
        memcpy(other.key.bytes, &i, sizeof i);
        CHECK(tsri_disk_index_add(&x, &other) != TSRI_NO_SLOT);
    }
    CHECK(tsri_disk_index_at(&x, tsri_disk_index_find(&x, &h.key)) == first);
    tsri_disk_index_fini(&x);
}

TEST(a_freed_slot_is_used_again)
{
    struct tsri_disk_index x;
    CHECK_INT(tsri_disk_index_init(&x), 0);
    struct tsr_entry_head a = head_of(1), b = head_of(2);
    uint32_t slot = tsri_disk_index_add(&x, &a);
    tsri_disk_index_remove(&x, slot);
    CHECK_INT(tsri_disk_index_add(&x, &b), slot);
    CHECK_INT(tsri_disk_index_find(&x, &a.key), TSRI_NO_SLOT);
    tsri_disk_index_fini(&x);
}

TEST(an_absurd_number_of_entries_is_refused)
{
    struct tsri_disk_index x;
    CHECK_INT(tsri_disk_index_init(&x), 0);
    CHECK_INT(tsri_disk_index_reserve(&x, UINT32_MAX), TSR_ERANGE);
    CHECK_INT(tsri_disk_index_reserve(&x, 5000), 0);
    tsri_disk_index_fini(&x);
}

int main(void)
{
    RUN(what_was_added_is_found_until_it_is_removed);
    RUN(slots_do_not_move_while_it_grows);
    RUN(a_freed_slot_is_used_again);
    RUN(an_absurd_number_of_entries_is_refused);
    return test_end();
}
