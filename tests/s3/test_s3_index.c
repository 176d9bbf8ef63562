/* Which objects are known: against a plain list of everything added and removed. */
#include "support/test.h"
#include "s3/s3.h"

enum { N_KEYS = 3000, N_ROUNDS = 40000 };

static uint8_t space[16] = {1, 2, 3};

static struct tsr_key key_of(uint32_t i)
{
    struct tsr_key key = {{0}};
    uint64_t a = i % 7, b = i; /* few homes: long runs of neighbours */
    memcpy(key.bytes, &a, 8);
    memcpy(key.bytes + 8, &b, 8);
    return key;
}

TEST(what_was_added_and_not_removed_is_known)
{
    struct tsri_s3_index x;
    static bool there[N_KEYS];
    uint64_t state = 7, n = 0;
    tsri_s3_index_init(&x, N_KEYS);
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        uint32_t i = (uint32_t)(test_rand(&state) % N_KEYS);
        struct tsr_key key = key_of(i);
        CHECK_INT(tsri_s3_index_has(&x, &key, space), there[i]);
        if (test_rand(&state) % 3) {
            tsri_s3_index_add(&x, &key, space, 10);
            n += !there[i];
            there[i] = true;
        } else {
            tsri_s3_index_remove(&x, &key, space);
            n -= there[i];
            there[i] = false;
        }
        CHECK_INT(x.n, n);
        CHECK_INT(x.bytes, n * 10);
    }
    for (uint32_t i = 0; i < N_KEYS; i++) {
        struct tsr_key key = key_of(i);
        CHECK_INT(tsri_s3_index_has(&x, &key, space), there[i]);
    }
    struct tsr_key key = key_of(5);
    uint8_t other[16] = {9};
    tsri_s3_index_add(&x, &key, space, 1);
    CHECK(!tsri_s3_index_has(&x, &key, other));
    tsri_s3_index_fini(&x);
}

TEST(a_complete_list_makes_it_forget_what_was_not_named)
{
    struct tsri_s3_index x;
    tsri_s3_index_init(&x, 1000);
    for (uint32_t i = 0; i < 600; i++) {
        struct tsr_key key = key_of(i);
        tsri_s3_index_add(&x, &key, space, 1);
    }
    tsri_s3_index_begin(&x);
    for (uint32_t i = 0; i < 600; i += 3) { /* named */
        struct tsr_key key = key_of(i);
        tsri_s3_index_add(&x, &key, space, 1);
    }
    struct tsr_key later = key_of(700); /* written while the list was on its way */
    tsri_s3_index_add(&x, &later, space, 1);
    CHECK_INT(x.n, 601); /* until the end nothing is forgotten */
    tsri_s3_index_end(&x);
    for (uint32_t i = 0; i < 600; i++) {
        struct tsr_key key = key_of(i);
        CHECK_INT(tsri_s3_index_has(&x, &key, space), i % 3 == 0);
    }
    CHECK(tsri_s3_index_has(&x, &later, space));
    CHECK_INT(x.n, 201);
    CHECK_INT(x.bytes, 201);
    tsri_s3_index_fini(&x);
}

TEST(beyond_its_limit_nothing_is_added)
{
    struct tsri_s3_index x;
    tsri_s3_index_init(&x, 10);
    for (uint32_t i = 0; i < 100; i++) {
        struct tsr_key key = key_of(i);
        tsri_s3_index_add(&x, &key, space, 1);
        CHECK_INT(tsri_s3_index_has(&x, &key, space), i < 10);
    }
    CHECK_INT(x.n, 10);
    struct tsr_key first = key_of(0);
    tsri_s3_index_add(&x, &first, space, 5); /* known already: its size is renewed */
    CHECK_INT(x.bytes, 14);
    tsri_s3_index_fini(&x);
    tsri_s3_index_init(&x, 0);
    tsri_s3_index_add(&x, &first, space, 5);
    CHECK(!tsri_s3_index_has(&x, &first, space));
    tsri_s3_index_remove(&x, &first, space);
    tsri_s3_index_begin(&x);
    tsri_s3_index_end(&x);
    tsri_s3_index_fini(&x);
}

int main(void)
{
    RUN(what_was_added_and_not_removed_is_known);
    RUN(a_complete_list_makes_it_forget_what_was_not_named);
    RUN(beyond_its_limit_nothing_is_added);
    return test_end();
}
