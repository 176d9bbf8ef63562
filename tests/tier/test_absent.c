#include "tier/parcel.h"
#include "support/test.h"

#include <unistd.h>

static struct tsr_key key_of(uint64_t i)
{
    struct tsr_key key;
    uint64_t words[2] = {i, i * 77 + 1};
    memcpy(&key, words, sizeof key);
    return key;
}

static const uint8_t here[16] = {1}, there[16] = {2};

TEST(what_was_absent_is_remembered_until_it_is_put)
{
    struct tsri_absent a;
    CHECK_INT(tsri_absent_init(&a, 1024, 10000), 0);
    struct tsr_key key = key_of(5);
    CHECK(!tsri_absent_has(&a, &key, here));
    tsri_absent_add(&a, &key, here);
    CHECK(tsri_absent_has(&a, &key, here));
    CHECK(!tsri_absent_has(&a, &key, there)); /* of another space */
    tsri_absent_remove(&a, &key, here);
    CHECK(!tsri_absent_has(&a, &key, here));
    tsri_absent_fini(&a);
}

TEST(a_full_table_forgets_and_never_lies)
{
    struct tsri_absent a;
    CHECK_INT(tsri_absent_init(&a, 16, 10000), 0);
    for (uint64_t i = 0; i < 1000; i += 2) {
        struct tsr_key key = key_of(i);
        tsri_absent_add(&a, &key, here);
        CHECK(tsri_absent_has(&a, &key, here));
    }
    for (uint64_t i = 1; i < 1000; i += 2) {
        struct tsr_key key = key_of(i);
        CHECK(!tsri_absent_has(&a, &key, here));
    }
    tsri_absent_fini(&a);
}

TEST(it_is_forgotten_after_its_time)
{
    struct tsri_absent a;
    CHECK_INT(tsri_absent_init(&a, 16, 1), 0);
    struct tsr_key key = key_of(5);
    tsri_absent_add(&a, &key, here);
    usleep(3000);
    CHECK(!tsri_absent_has(&a, &key, here));
    tsri_absent_fini(&a);
}

TEST(with_no_time_nothing_is_remembered)
{
    struct tsri_absent a;
    CHECK_INT(tsri_absent_init(&a, 16, 0), 0);
    struct tsr_key key = key_of(5);
    tsri_absent_add(&a, &key, here);
    CHECK(!tsri_absent_has(&a, &key, here));
    tsri_absent_remove(&a, &key, here);
    tsri_absent_fini(&a);
}

int main(void)
{
    RUN(what_was_absent_is_remembered_until_it_is_put);
    RUN(a_full_table_forgets_and_never_lies);
    RUN(it_is_forgotten_after_its_time);
    RUN(with_no_time_nothing_is_remembered);
    return test_end();
}
