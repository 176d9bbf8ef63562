/* Files that somebody else may have a hand in. */
#include "base/base.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>

static struct tmpdir dir;

static const char *at(const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", dir.path, name);
    return path;
}

TEST(a_regular_file_is_opened_also_behind_a_link)
{
    struct stat st;
    int fd = open(at("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK_INT(write(fd, "abc", 3), 3);
    close(fd);
    CHECK_INT(symlink("file", at("link")), 0);
    const char *const names[] = {"file", "link"};
    for (size_t i = 0; i < TSRI_COUNT(names); i++) {
        fd = tsri_file_open(at(names[i]), &st);
        CHECK(fd >= 0);
        CHECK_INT(st.st_size, 3);
        char got[4];
        CHECK_INT(read(fd, got, sizeof got), 3);
        close(fd);
    }
    CHECK_INT(tsri_file_open(at("none"), &st), -1);
    CHECK_INT(errno, ENOENT);
}

/* A FIFO without a writer would keep a plain open() waiting for ever. */
TEST(what_is_no_file_is_refused_at_once)
{
    struct stat st;
    CHECK_INT(mkfifo(at("fifo"), 0600), 0);
    CHECK_INT(tsri_file_open(at("fifo"), &st), -1);
    CHECK_INT(errno, EINVAL);
    CHECK_INT(tsri_file_open(dir.path, &st), -1);
    CHECK_INT(errno, EINVAL);
    CHECK_INT(tsri_file_open("/dev/zero", &st), -1);
    CHECK_INT(errno, EINVAL);
}

TEST(files_of_this_user_and_of_root_are_ours)
{
    struct stat st = {.st_uid = geteuid()};
    CHECK(tsri_file_is_ours(&st));
    st.st_uid = 0;
    CHECK(tsri_file_is_ours(&st));
    st.st_uid = geteuid() + 1;
    CHECK(!tsri_file_is_ours(&st));
}

int main(void)
{
    tmpdir_init(&dir);
    RUN(a_regular_file_is_opened_also_behind_a_link);
    RUN(what_is_no_file_is_refused_at_once);
    RUN(files_of_this_user_and_of_root_are_ours);
    tmpdir_fini(&dir);
    return test_end();
}
