/* test_tenant.c - names of tenants: which there are, and whose it is where none is set. */
#include "config/config.h"
#include "support/test.h"

#include <unistd.h>

TEST(a_part_is_safe_in_paths_patterns_and_urls)
{
    static const char *const right[] = {"a", "uid-0", "Team_7", "abcdefghijklmnopqrstuvwxyz012345"};
    static const char *const wrong[] = {"",
                                        ".",
                                        "..",
                                        "a.b",
                                        "a/b",
                                        "a:b",
                                        "a*",
                                        "a b",
                                        "{a}",
                                        "a\n",
                                        "\xc3\xa4",
                                        "a%2F",
                                        "abcdefghijklmnopqrstuvwxyz0123456"};
    for (size_t i = 0; i < TSRI_COUNT(right); i++)
        CHECK(tsri_tenant_is_part(right[i]) && tsri_tenant_is_name(right[i]));
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK(!tsri_tenant_is_part(wrong[i]));
}

TEST(a_name_is_parts_joined_by_dots)
{
    CHECK(tsri_tenant_is_name("fleet.alice"));
    CHECK(tsri_tenant_is_name("uid-0.0123456789abcdef.uid-1001"));
    static const char *const wrong[] = {
        "", ".", "..", ".a", "a.", "a..b", "a/b", "a.b c", "a.abcdefghijklmnopqrstuvwxyz0123456"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++)
        CHECK(!tsri_tenant_is_name(wrong[i]));
    char longest[TSRI_TENANT_MAX + 2];
    for (size_t i = 0; i <= TSRI_TENANT_MAX; i++)
        longest[i] = i % 2 ? '.' : 'a';
    longest[TSRI_TENANT_MAX + 1] = '\0';
    CHECK(!tsri_tenant_is_name(longest));
    longest[TSRI_TENANT_MAX - 1] = '\0';
    CHECK(tsri_tenant_is_name(longest));
}

TEST(without_a_name_it_is_the_user)
{
    char name[TSRI_TENANT_MAX + 1], user[32];
    struct tsr_config *cfg;
    snprintf(user, sizeof user, "uid-%u", (unsigned)geteuid());
    tsri_tenant_of(name, NULL);
    CHECK_STR(name, user);
    CHECK_INT(tsr_config_open(&cfg), 0);
    tsri_tenant_of(name, cfg);
    CHECK_STR(name, user);
    CHECK_INT(tsr_config_set(cfg, "tenant", "fleet"), 0);
    tsri_tenant_of(name, cfg);
    CHECK_STR(name, "fleet");
    tsr_config_close(cfg);
}

TEST(a_configuration_with_no_name_is_refused)
{
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    static const char *const wrong[] = {"a b", "a*", "../a", "a:b", "a.", "\x1b[2J"};
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        CHECK_INT(tsr_config_set(cfg, "tenant", wrong[i]), 0);
        CHECK_INT(tsri_config_check(cfg), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), "tenant");
    }
    CHECK_INT(tsr_config_set(cfg, "tenant", ""), 0);
    CHECK_INT(tsri_config_check(cfg), 0);
    tsr_config_close(cfg);
}

int main(void)
{
    RUN(a_part_is_safe_in_paths_patterns_and_urls);
    RUN(a_name_is_parts_joined_by_dots);
    RUN(without_a_name_it_is_the_user);
    RUN(a_configuration_with_no_name_is_refused);
    return test_end();
}
