/* Changes below a folder are noticed. */
#include "search/search.h"

#include "folder_kit.h"
#include "support/test.h"

#include <sys/stat.h>

static struct tmpdir tmp;
static struct tsri_folder_watch *w;

TEST(nothing_happens_while_nothing_changes)
{
    CHECK_INT(tsri_folder_watch_wait(w, 50), 0);
}

TEST(files_that_come_change_and_go_are_noticed)
{
    folder_say(tmp.path, "a.txt", "one");
    CHECK_INT(tsri_folder_watch_wait(w, 300000), 1);
    folder_say(tmp.path, "a.txt", "two");
    CHECK_INT(tsri_folder_watch_wait(w, 300000), 1);
    folder_remove(tmp.path, "a.txt");
    CHECK_INT(tsri_folder_watch_wait(w, 300000), 1);
    CHECK_INT(tsri_folder_watch_wait(w, 50), 0);
}

TEST(folders_that_come_are_watched_too)
{
    folder_say(tmp.path, "new/deep/a.txt", "one");
    CHECK_INT(tsri_folder_watch_wait(w, 300000), 1);
    folder_say(tmp.path, "new/deep/b.txt", "two");
    CHECK_INT(tsri_folder_watch_wait(w, 300000), 1);
}

/* More folders than are watched. A wait is shorter than the time between two such looks. */
TEST(where_not_all_is_watched_a_look_is_due_now_and_then)
{
    struct tmpdir many;
    struct tsri_folder_watch *partly = NULL;
    char path[512];
    tmpdir_init(&many);
    for (int i = 0; i < 8200; i++) {
        snprintf(path, sizeof path, "%s/%d", many.path, i);
        CHECK_INT(mkdir(path, 0700), 0);
    }
    const char *folders[] = {many.path};
    CHECK_INT(tsri_folder_watch_open(&partly, folders, 1), 0);
    CHECK_INT(tsri_folder_watch_wait(partly, 0), 0);
    int noticed = 0;
    for (uint64_t start = tsri_now_ns(); !noticed && tsri_now_ns() - start < 300 * 1000000000ull;)
        noticed = tsri_folder_watch_wait(partly, 250);
    CHECK_INT(noticed, 1);
    CHECK_INT(tsri_folder_watch_wait(partly, 0), 0);
    tsri_folder_watch_close(partly);
    tmpdir_fini(&many);
}

int main(void)
{
    tmpdir_init(&tmp);
    const char *folders[] = {tmp.path};
    if (tsri_folder_watch_open(&w, folders, 1)) {
        puts(tsr_errmsg());
        return 1;
    }
    RUN(nothing_happens_while_nothing_changes);
    RUN(files_that_come_change_and_go_are_noticed);
    RUN(folders_that_come_are_watched_too);
    RUN(where_not_all_is_watched_a_look_is_due_now_and_then);
    tsri_folder_watch_close(w);
    tmpdir_fini(&tmp);
    return test_end();
}
