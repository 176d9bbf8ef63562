/* Keys: where they come from, who may read them, and that files say what they say. */
#include "support/test.h"
#include "support/tmpdir.h"
#include "s3/s3.h"

#include <sys/stat.h>

static struct tmpdir dir;
static char file[300];

static void write_file(const char *text, mode_t mode)
{
    snprintf(file, sizeof file, "%s/credentials", dir.path);
    unlink(file);
    FILE *f = fopen(file, "w");
    fputs(text, f);
    fclose(f);
    chmod(file, mode);
}

static void clear_environment(void)
{
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_PROFILE");
}

static const char two_profiles[] = "# mine\n"
                                   "[default]\n"
                                   "aws_access_key_id = AKIA1\n"
                                   "aws_secret_access_key=s3cr/et+1=\n"
                                   "region = eu-central-1\n"
                                   "\n"
                                   "[ other ]\r\n"
                                   "aws_access_key_id=AKIA2\r\n"
                                   "aws_secret_access_key = second\r\n"
                                   "aws_session_token = tok/en==\r\n";

TEST(what_is_given_comes_before_the_file_and_that_before_the_environment)
{
    struct tsri_s3_login l;
    clear_environment();
    setenv("AWS_ACCESS_KEY_ID", "from-environment", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("AWS_SESSION_TOKEN", "token", 1);
    write_file(two_profiles, 0600);
    CHECK_INT(tsri_s3_login_init(&l, "given", "too", "", file), 0);
    CHECK_STR(l.access_key, "given");
    CHECK_STR(l.secret_key, "too");
    CHECK(l.token == NULL);
    tsri_s3_login_fini(&l);
    CHECK_INT(tsri_s3_login_init(&l, "", "", "", file), 0);
    CHECK_STR(l.access_key, "AKIA1");
    CHECK_STR(l.secret_key, "s3cr/et+1=");
    tsri_s3_login_fini(&l);
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, ""), 0);
    CHECK_STR(l.access_key, "from-environment");
    CHECK_STR(l.secret_key, "secret");
    CHECK_STR(l.token, "token");
    tsri_s3_login_fini(&l);
    clear_environment();
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, NULL), 0);
    CHECK(l.access_key == NULL && l.secret_key == NULL);
    tsri_s3_login_fini(&l);
}

TEST(the_profile_of_the_environment_is_read)
{
    struct tsri_s3_login l;
    clear_environment();
    write_file(two_profiles, 0600);
    setenv("AWS_PROFILE", "other", 1);
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, file), 0);
    CHECK_STR(l.access_key, "AKIA2");
    CHECK_STR(l.secret_key, "second");
    CHECK_STR(l.token, "tok/en==");
    tsri_s3_login_fini(&l);
    setenv("AWS_PROFILE", "nobody", 1);
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, file), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "nobody");
    clear_environment();
}

TEST(a_file_that_others_may_read_is_refused)
{
    static const mode_t modes[] = {0640, 0604, 0660, 0644, 0601};
    struct tsri_s3_login l;
    for (size_t i = 0; i < TSRI_COUNT(modes); i++) {
        write_file(two_profiles, modes[i]);
        CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, file), TSR_EPERM);
        CHECK_HAS(tsr_errmsg(), "chmod 600");
        CHECK(strstr(tsr_errmsg(), "s3cr") == NULL);
    }
    write_file(two_profiles, 0400);
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, file), 0);
    tsri_s3_login_fini(&l);
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, dir.path), TSR_ECONFIG);
    CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, "/nonexistent/file"), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "/nonexistent/file");
}

TEST(files_and_keys_that_make_no_sense_are_refused_without_being_shown)
{
    static const char *const texts[] = {
        "",
        "[default]\n",
        "[default]\naws_access_key_id = A\n",
        "[default\naws_access_key_id = A\naws_secret_access_key = hidden\n",
        "[default]\nhidden\n",
        "[default]\naws_access_key_id = A\naws_secret_access_key = hid den\n",
        "[default]\naws_access_key_id = A\naws_secret_access_key = hid\tden\n",
        "aws_access_key_id = A\naws_secret_access_key = hidden\n",
    };
    struct tsri_s3_login l;
    for (size_t i = 0; i < TSRI_COUNT(texts); i++) {
        write_file(texts[i], 0600);
        CHECK_INT(tsri_s3_login_init(&l, NULL, NULL, NULL, file), TSR_ECONFIG);
        CHECK(strstr(tsr_errmsg(), "hid") == NULL);
        CHECK(l.secret_key == NULL);
    }
    CHECK_INT(tsri_s3_login_init(&l, "only", "", NULL, NULL), TSR_ECONFIG);
    CHECK_INT(tsri_s3_login_init(&l, "", "only", NULL, NULL), TSR_ECONFIG);
    CHECK_INT(tsri_s3_login_init(&l, "a\r\nx-evil: 1", "b", NULL, NULL), TSR_ECONFIG);
}

int main(void)
{
    tmpdir_init(&dir);
    RUN(what_is_given_comes_before_the_file_and_that_before_the_environment);
    RUN(the_profile_of_the_environment_is_read);
    RUN(a_file_that_others_may_read_is_refused);
    RUN(files_and_keys_that_make_no_sense_are_refused_without_being_shown);
    tmpdir_fini(&dir);
    return test_end();
}
