/* Files of passwords and keys. */
#include "support/test.h"
#include "support/tmpdir.h"
#include "tier/parcel.h"

static struct tmpdir dir;
static char file[300];

static void write_file(const char *text, size_t bytes, mode_t mode)
{
    snprintf(file, sizeof file, "%s/secret", dir.path);
    unlink(file);
    FILE *f = fopen(file, "w");
    fwrite(text, 1, bytes, f);
    fclose(f);
    chmod(file, mode);
}

TEST(the_only_line_of_a_file_is_the_password)
{
    static const char *const texts[] = {"open sesame", "open sesame\n", "open sesame\r\n"};
    char *out;
    for (size_t i = 0; i < TSRI_COUNT(texts); i++) {
        write_file(texts[i], strlen(texts[i]), 0600);
        CHECK_INT(tsri_secret_line("redis_password_file", file, &out), 0);
        CHECK_STR(out, "open sesame");
        tsri_secret_free(&out);
        CHECK(out == NULL);
    }
    tsri_secret_free(&out);
}

TEST(what_others_may_read_is_refused_with_the_remedy)
{
    static const mode_t modes[] = {0640, 0604, 0660, 0644, 0601};
    char *out;
    for (size_t i = 0; i < TSRI_COUNT(modes); i++) {
        write_file("hidden", 6, modes[i]);
        CHECK_INT(tsri_secret_line("redis_password_file", file, &out), TSR_EPERM);
        CHECK_HAS(tsr_errmsg(), "redis_password_file");
        CHECK_HAS(tsr_errmsg(), "chmod 600");
        CHECK(out == NULL);
    }
}

TEST(a_file_of_another_user_or_no_file_at_all_is_refused)
{
    char *out;
    write_file("hidden", 6, 0600);
    unlink(file);
    CHECK_INT(mkfifo(file, 0600), 0); /* nobody writes to it: a plain open would wait */
    CHECK_INT(tsri_secret_line("redis_password_file", file, &out), TSR_ECONFIG);
    CHECK_HAS(tsr_errmsg(), "is not a file");
    write_file("hidden", 6, 0600);
    if (geteuid() != 0 || chown(file, 12345, 12345) != 0) SKIP("only root can give files away");
    CHECK_INT(tsri_secret_line("redis_password_file", file, &out), TSR_EPERM);
    CHECK_HAS(tsr_errmsg(), "another user");
}

TEST(what_is_no_password_is_refused_without_being_shown)
{
    static char longer[4096];
    memset(longer, 'x', sizeof longer);
    static const struct {
        const char *text;
        size_t bytes;
    } wrong[] = {
        {"", 0}, {"\n", 1}, {"hidden\nsecond", 13}, {"hid\0den", 7}, {longer, sizeof longer}};
    char *out, text[16];
    for (size_t i = 0; i < TSRI_COUNT(wrong); i++) {
        write_file(wrong[i].text, wrong[i].bytes, 0600);
        CHECK_INT(tsri_secret_line("redis_password_file", file, &out), TSR_ECONFIG);
        CHECK(strstr(tsr_errmsg(), "hid") == NULL);
    }
    CHECK_INT(tsri_secret_line("option", "/nonexistent", &out), TSR_ECONFIG);
    CHECK_INT(tsri_secret_line("option", dir.path, &out), TSR_ECONFIG);
    write_file("0123456789abcdef", 16, 0400);
    CHECK_INT(tsri_secret_read("option", file, text, 16), TSR_ECONFIG); /* there may be more */
    write_file("0123456789abcde", 15, 0400);
    CHECK_INT(tsri_secret_read("option", file, text, 16), 15);
}

int main(void)
{
    tmpdir_init(&dir);
    RUN(the_only_line_of_a_file_is_the_password);
    RUN(what_others_may_read_is_refused_with_the_remedy);
    RUN(a_file_of_another_user_or_no_file_at_all_is_refused);
    RUN(what_is_no_password_is_refused_without_being_shown);
    tmpdir_fini(&dir);
    return test_end();
}
