/* test_shared_pages.c - what doctor says about huge pages of shared memory. */
#include "cli/cli.h"

#include "support/test.h"

static struct tsri_finding finding_of(const char *text)
{
    struct tsri_finding f = {0};
    tsri_check_shared_pages("/sys/of/the/kernel", text, &f);
    return f;
}

TEST(a_kernel_that_allows_them_is_ok)
{
    static const char *const allowed[][2] = {
        {"always within_size [advise] never deny force", "advise"},
        {"[always] within_size advise never deny force", "always"},
        {"always [within_size] advise never deny force", "within_size"},
        {"always within_size advise never deny [force]", "force"},
    };
    for (size_t i = 0; i < TSRI_COUNT(allowed); i++) {
        struct tsri_finding f = finding_of(allowed[i][0]);
        CHECK_INT(f.status, TSRI_DOCTOR_OK);
        CHECK_STR(f.found, allowed[i][1]);
        CHECK_STR(f.advice, "");
    }
}

TEST(a_kernel_that_refuses_them_is_a_warning_with_what_to_write)
{
    static const char *const refused[] = {"always within_size advise [never] deny force",
                                          "always within_size advise never [deny] force"};
    for (size_t i = 0; i < TSRI_COUNT(refused); i++) {
        struct tsri_finding f = finding_of(refused[i]);
        CHECK_INT(f.status, TSRI_DOCTOR_WARN);
        CHECK(strstr(f.found, i ? "deny" : "never") != NULL);
        CHECK(strstr(f.advice, "echo advise > /sys/of/the/kernel") != NULL);
        CHECK(strstr(f.advice, "1.46x as fast, measured on x86") != NULL);
    }
}

TEST(a_kernel_without_the_file_is_no_warning)
{
    CHECK_INT(finding_of(NULL).status, TSRI_DOCTOR_OK);
    CHECK(strstr(finding_of(NULL).found, "cannot be read") != NULL);
    CHECK_INT(finding_of("").status, TSRI_DOCTOR_OK);
    CHECK_INT(finding_of("[").status, TSRI_DOCTOR_OK);
}

int main(void)
{
    RUN(a_kernel_that_allows_them_is_ok);
    RUN(a_kernel_that_refuses_them_is_a_warning_with_what_to_write);
    RUN(a_kernel_without_the_file_is_no_warning);
    return test_end();
}
