/* Changes below a folder are noticed. */
#include "search/search.h"

#include "folder_kit.h"
#include "support/test.h"

#include <pthread.h>

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

static void *wake(void *arg)
{
    usleep(20000);
    tsri_folder_watch_wake(arg);
    return NULL;
}

TEST(a_wait_can_be_ended)
{
    pthread_t thread;
    uint64_t start = tsri_now_ns();
    CHECK_INT(pthread_create(&thread, NULL, wake, w), 0);
    CHECK_INT(tsri_folder_watch_wait(w, 600000), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK(tsri_now_ns() - start < 300u * 1000000000ull);
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
    RUN(a_wait_can_be_ended);
    tsri_folder_watch_close(w);
    tmpdir_fini(&tmp);
    return test_end();
}
