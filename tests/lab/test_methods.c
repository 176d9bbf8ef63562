/* test_methods.c - methods by their names. */
#include "lab/answers.h"

#include "support/test.h"

#include <math.h>

TEST(the_prefill_comes_first_named_or_not)
{
    struct tsri_methods m;
    CHECK_INT(tsri_methods_parse(&m, "reuse,tessera"), 0);
    CHECK(m.n == 3 && m.items[0].kind == TSRI_METHOD_PREFILL);
    CHECK_STR(m.items[2].name, "tessera");
    CHECK_INT(tsri_methods_parse(&m, "reuse,prefill,reuse"), 0);
    CHECK(m.n == 2 && m.items[1].kind == TSRI_METHOD_REUSE);
}

TEST(a_ratio_follows_the_name)
{
    struct tsri_methods m;
    CHECK_INT(tsri_methods_parse(&m, "cacheblend,tessera@0.05,tessera@0"), 0);
    CHECK(isnan(m.items[1].ratio) && m.items[2].ratio == 0.05 && m.items[3].ratio == 0);
    CHECK_STR(m.items[2].name, "tessera@0.05");
    CHECK_INT(tsri_methods_parse(&m, "rounds@0.05,rounds@0.15"), 0);
    CHECK(m.n == 3 && m.items[1].kind == TSRI_METHOD_ROUNDS && m.items[2].ratio == 0.15);
}

TEST(other_names_are_refused)
{
    static const char *const wrong[] = {"",          "magic",    "reuse,",      "reuse@0.1",
                                        "prefill@1", "tessera@", "tessera@1.1", "tessera@nan",
                                        "rounds",    "rounds@0", "rounds@1",    "tessera@x"};
    struct tsri_methods m;
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK_INT(tsri_methods_parse(&m, wrong[i]), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "tessera@x: must be prefill, reuse,");
}

int main(void)
{
    RUN(the_prefill_comes_first_named_or_not);
    RUN(a_ratio_follows_the_name);
    RUN(other_names_are_refused);
    return test_end();
}
