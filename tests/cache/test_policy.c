/* test_policy.c - the table of built-in policies agrees with the option that names them, and each
 * of them is complete. */
#include "cache/cache.h"

#include "support/test.h"

TEST(every_name_the_option_knows_is_a_policy)
{
    const struct tsri_option *o = tsri_option_find("policy");
    CHECK(o && o->names && o->names[0]);
    for (size_t i = 0; o->names[i]; i++) {
        const struct tsr_policy_ops *ops = tsri_policy_find(o->names[i]);
        CHECK(ops);
        CHECK_STR(ops->name, o->names[i]);
    }
}

TEST(a_policy_has_every_member_that_is_not_optional)
{
    const struct tsri_option *o = tsri_option_find("policy");
    for (size_t i = 0; o->names[i]; i++) {
        const struct tsr_policy_ops *ops = tsri_policy_find(o->names[i]);
        CHECK(ops);
        CHECK_INT(ops->abi, TSR_POLICY_ABI);
        CHECK(ops->open && ops->close && ops->insert && ops->touch && ops->remove && ops->victim);
    }
}

TEST(an_unknown_name_finds_nothing)
{
    CHECK(tsri_policy_find("lru ") == NULL);
    CHECK(tsri_policy_find("LRU") == NULL);
    CHECK(tsri_policy_find("") == NULL);
}

int main(void)
{
    RUN(every_name_the_option_knows_is_a_policy);
    RUN(a_policy_has_every_member_that_is_not_optional);
    RUN(an_unknown_name_finds_nothing);
    return test_end();
}
