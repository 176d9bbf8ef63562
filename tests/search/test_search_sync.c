/* The database follows the folders. */
#include "search/inside.h"

#include "folder_kit.h"
#include "support/test.h"

#include <fcntl.h>
#include <sys/wait.h>

static struct tmpdir tmp;
static char folder[512], home[512];
static struct tsri_sync_result r;

static struct tsri_search *begin(const char *name)
{
    const char *folders[] = {folder};
    struct tsri_search *s = NULL;
    snprintf(folder, sizeof folder, "%s/%s", tmp.path, name);
    snprintf(home, sizeof home, "%s/%s-home", tmp.path, name);
    mkdir(folder, 0700);
    CHECK_INT(tsri_search_open(&s, home, folders, 1), 0);
    return s;
}

static void synced(struct tsri_search *s, uint64_t n_new, uint64_t n_changed, uint64_t n_gone)
{
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, &r), 0);
    CHECK_INT(r.n_new, n_new);
    CHECK_INT(r.n_changed, n_changed);
    CHECK_INT(r.n_gone, n_gone);
}

static size_t n_found(struct tsri_search *s, const char *question)
{
    struct tsri_passages found;
    CHECK_INT(tsri_search_find(s, question, 100, 1 << 20, &found), 0);
    size_t n = found.n;
    tsri_passages_fini(&found);
    return n;
}

TEST(new_changed_and_gone_files_are_noticed)
{
    struct tsri_search *s = begin("follow");
    folder_say(folder, "a.txt", "apples");
    folder_say(folder, "b/c.txt", "cherries");
    folder_say(folder, "b.txt", "bananas");
    synced(s, 3, 0, 0);
    synced(s, 0, 0, 0);
    folder_say(folder, "a.txt", "apricots");
    synced(s, 0, 1, 0);
    CHECK_INT(n_found(s, "apples"), 0);
    CHECK_INT(n_found(s, "apricots"), 1);
    folder_remove(folder, "b.txt");
    folder_say(folder, "d.txt", "dates");
    synced(s, 1, 0, 1);
    CHECK_INT(n_found(s, "bananas"), 0);
    CHECK_INT(n_found(s, "cherries dates"), 2);
    tsri_search_close(s);
}

TEST(a_change_under_the_same_time_and_size_is_noticed_while_it_is_fresh)
{
    char path[600];
    struct tsri_search *s = begin("fresh");
    folder_say(folder, "a.txt", "apples");
    snprintf(path, sizeof path, "%s/a.txt", folder);
    CHECK_INT(utimes(path, NULL), 0);
    synced(s, 1, 0, 0);
    struct stat st;
    CHECK_INT(stat(path, &st), 0);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("grapes", f) >= 0 && fclose(f) == 0);
    struct timespec times[2] = {st.st_mtim, st.st_mtim};
    CHECK_INT(utimensat(AT_FDCWD, path, times, 0), 0);
    synced(s, 0, 1, 0);
    CHECK_INT(n_found(s, "grapes"), 1);
    tsri_search_close(s);
}

TEST(a_touched_file_is_not_written_again)
{
    char path[600];
    struct tsri_search *s = begin("touch");
    folder_say(folder, "a.txt", "apples");
    synced(s, 1, 0, 0);
    snprintf(path, sizeof path, "%s/a.txt", folder);
    CHECK_INT(utimes(path, NULL), 0);
    synced(s, 0, 0, 0);
    tsri_search_close(s);
}

struct heard {
    int n, n_skipped;
    char why[256];
    bool stops;
    atomic_bool stop;
};

static void hear(void *arg, const struct tsri_sync_state *state)
{
    struct heard *h = arg;
    h->n++;
    if (state->skipped) {
        h->n_skipped++;
        snprintf(h->why, sizeof h->why, "%s %s", state->skipped, state->why);
    }
    if (h->stops) atomic_store(&h->stop, true);
}

TEST(skipped_files_are_named_once_and_counted_always)
{
    struct tsri_search *s = begin("skip");
    struct heard h = {0};
    folder_say(folder, "a.txt", "apples");
    folder_put(folder, "b.bin", "\0\1\2", 3);
    CHECK_INT(tsri_search_sync(s, hear, &h, NULL, &r), 0);
    CHECK_INT(h.n_skipped, 1);
    CHECK_STR(h.why, "b.bin is binary");
    CHECK_INT(r.n_skipped, 1);
    h = (struct heard){0};
    CHECK_INT(tsri_search_sync(s, hear, &h, NULL, &r), 0);
    CHECK_INT(h.n_skipped, 0);
    CHECK_INT(r.n_skipped, 1);
    folder_say(folder, "b.bin", "text now");
    synced(s, 0, 1, 0);
    CHECK_INT(r.n_skipped, 0);
    folder_put(folder, "b.bin", "\0\1", 2);
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, &r), 0);
    CHECK_INT(n_found(s, "text"), 0);
    tsri_search_close(s);
}

/* Also one that takes the place of a file that was read, and is one again. */
TEST(links_that_leave_the_folder_are_named_once)
{
    struct tsri_search *s = begin("links");
    char link[4200];
    folder_say(folder, "out.txt", "An ocelot.");
    synced(s, 1, 0, 0);
    folder_remove(folder, "out.txt");
    snprintf(link, sizeof link, "%s/out.txt", folder);
    CHECK_INT(symlink("/etc/passwd", link), 0);
    for (int i = 0; i < 3; i++) {
        struct heard h = {0};
        CHECK_INT(tsri_search_sync(s, hear, &h, NULL, &r), 0);
        CHECK_INT(h.n_skipped, i == 0);
        if (i == 0) CHECK_STR(h.why, "out.txt is a link that leaves the folder");
        CHECK_INT(r.n_skipped, 1);
        CHECK_INT(r.n_gone, i == 0);
        CHECK_INT(r.n_new + r.n_changed, 0);
        CHECK_INT(n_found(s, "ocelot"), 0);
    }
    folder_remove(folder, "out.txt");
    folder_say(folder, "out.txt", "An ocelot.");
    synced(s, 0, 1, 0);
    CHECK_INT(r.n_skipped, 0);
    CHECK_INT(n_found(s, "ocelot"), 1);
    tsri_search_close(s);
}

TEST(a_sync_can_be_stopped_and_goes_on_later)
{
    struct tsri_search *s = begin("stop");
    struct heard h = {.stops = true};
    char name[32];
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "%d.txt", i);
        folder_say(folder, name, "apples");
    }
    CHECK_INT(tsri_search_sync(s, hear, &h, &h.stop, &r), 0);
    CHECK_INT(r.n_new, 1);
    synced(s, 9, 0, 0);
    tsri_search_close(s);
}

TEST(passages_of_a_long_file_are_in_order_and_complete)
{
    static char text[60000];
    struct tsri_search *s = begin("long");
    size_t n = folder_prose(text, sizeof text, 5, 30);
    folder_put(folder, "long.txt", text, n);
    synced(s, 1, 0, 0);
    struct tsri_passages found;
    CHECK_INT(tsri_search_list(s, NULL, 1000, &found), 0);
    CHECK(found.n > 20);
    for (size_t i = 0; i < found.n; i++) {
        const struct tsri_passage *p = &found.items[i];
        CHECK_INT(p->number, i);
        CHECK_INT(p->n_in_file, found.n);
        CHECK(memcmp(text + p->first_byte, p->text, p->bytes) == 0);
        if (i > 0) CHECK(p->first_byte - (p[-1].first_byte + p[-1].bytes) <= 4);
    }
    tsri_passages_fini(&found);
    tsri_search_close(s);
}

TEST(two_processes_may_sync_at_the_same_time)
{
    char name[32];
    struct tsri_search *s = begin("two");
    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "%d.txt", i);
        folder_say(folder, name, i % 2 ? "apples" : "bananas");
    }
    pid_t child = fork();
    if (child == 0) {
        const char *folders[] = {folder};
        struct tsri_search *mine = NULL;
        int err = tsri_search_open(&mine, home, folders, 1);
        if (!err) err = tsri_search_sync(mine, NULL, NULL, NULL, NULL);
        tsri_search_close(mine);
        _exit(err ? 1 : 0);
    }
    int status = 1;
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, NULL), 0);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    struct tsri_search_stats stats;
    CHECK_INT(tsri_search_stats(s, &stats), 0);
    CHECK_INT(stats.n_files, 60);
    CHECK_INT(stats.n_passages, 60);
    CHECK_INT(n_found(s, "apples"), 30);
    tsri_search_close(s);
}

TEST(several_folders_are_one_collection)
{
    char other[600];
    struct tsri_search *s = begin("first");
    tsri_search_close(s);
    snprintf(other, sizeof other, "%s/second", tmp.path);
    CHECK_INT(mkdir(other, 0700), 0);
    folder_say(folder, "a.txt", "apples");
    folder_say(other, "a.txt", "bananas");
    const char *folders[] = {folder, other};
    CHECK_INT(tsri_search_open(&s, home, folders, 2), 0);
    synced(s, 2, 0, 0);
    struct tsri_passages found;
    CHECK_INT(tsri_search_list(s, NULL, 10, &found), 0);
    CHECK_INT(found.n, 2);
    CHECK_INT(found.items[0].folder, 0);
    CHECK_INT(found.items[1].folder, 1);
    CHECK_STR(found.items[1].text, "bananas");
    tsri_passages_fini(&found);
    tsri_search_close(s);
}

int main(void)
{
    tmpdir_init_fast(&tmp);
    RUN(new_changed_and_gone_files_are_noticed);
    RUN(a_change_under_the_same_time_and_size_is_noticed_while_it_is_fresh);
    RUN(a_touched_file_is_not_written_again);
    RUN(links_that_leave_the_folder_are_named_once);
    RUN(skipped_files_are_named_once_and_counted_always);
    RUN(a_sync_can_be_stopped_and_goes_on_later);
    RUN(passages_of_a_long_file_are_in_order_and_complete);
    RUN(two_processes_may_sync_at_the_same_time);
    RUN(several_folders_are_one_collection);
    tmpdir_fini(&tmp);
    return test_end();
}
