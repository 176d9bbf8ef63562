/* test_halves.c - a question is in one half, the same as bench/quality/halves.py says. */
#include "lab/answers.h"

#include "support/test.h"

TEST(names_of_halves)
{
    CHECK_INT(tsri_half_find("tune"), TSRI_HALF_TUNE);
    CHECK_INT(tsri_half_find("test"), TSRI_HALF_TEST);
    CHECK_INT(tsri_half_find("all"), TSRI_HALF_ALL);
    CHECK_INT(tsri_half_find("both"), -1);
}

TEST(a_question_is_in_the_half_of_its_hash)
{
    /* printf facts/train-0 | sha256sum: the last digit is odd or even */
    static const struct {
        const char *set, *id;
        enum tsri_half half;
    } known[] = {{"facts", "train-0", TSRI_HALF_TEST}, {"facts", "train-1", TSRI_HALF_TUNE},
                 {"facts", "ferry-0", TSRI_HALF_TEST}, {"nq-short", "17", TSRI_HALF_TUNE},
                 {"kv", "3", TSRI_HALF_TUNE},          {"musique-short", "0", TSRI_HALF_TEST}};
    for (size_t i = 0; i < TSRI_COUNT(known); i++) {
        enum tsri_half other = known[i].half == TSRI_HALF_TUNE ? TSRI_HALF_TEST : TSRI_HALF_TUNE;
        CHECK(tsri_half_has(known[i].half, known[i].set, known[i].id));
        CHECK(!tsri_half_has(other, known[i].set, known[i].id));
        CHECK(tsri_half_has(TSRI_HALF_ALL, known[i].set, known[i].id));
    }
}

TEST(the_halves_are_about_as_large)
{
    int n = 0;
    for (int i = 0; i < 1000; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        n += tsri_half_has(TSRI_HALF_TEST, "nq-short", id);
    }
    CHECK(n > 450 && n < 550);
}

int main(void)
{
    RUN(names_of_halves);
    RUN(a_question_is_in_the_half_of_its_hash);
    RUN(the_halves_are_about_as_large);
    return test_end();
}
