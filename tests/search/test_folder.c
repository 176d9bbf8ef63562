/* What is below a folder, and what is not. */
#include "search/inside.h"

#include "folder_kit.h"
#include "support/test.h"

#include <errno.h>

static struct tmpdir tmp;
static char folder[512];

static void begin(const char *name)
{
    snprintf(folder, sizeof folder, "%s/%s", tmp.path, name);
    CHECK_INT(mkdir(folder, 0700), 0);
}

static void link_to(const char *to, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK_INT(symlink(to, path), 0);
}

static const struct tsri_file *find(const struct tsri_files *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->items[i].name, name) == 0) return &f->items[i];
    return NULL;
}

TEST(files_of_all_folders_are_found_and_hidden_ones_are_not)
{
    struct tsri_files f = {0};
    begin("all");
    folder_say(folder, "a.txt", "one");
    folder_say(folder, "sub/deep/b.txt", "three");
    folder_say(folder, ".hidden", "x");
    folder_say(folder, ".git/config", "x");
    CHECK_INT(tsri_files_add(&f, folder, 7, NULL, NULL), 0);
    CHECK_INT(f.n, 2);
    CHECK_INT(f.n_bytes, 8);
    CHECK_INT(f.n_folders_seen, 3);
    CHECK(find(&f, "a.txt") && find(&f, "sub/deep/b.txt"));
    CHECK_INT(find(&f, "a.txt")->folder, 7);
    tsri_files_fini(&f);
    CHECK_INT(tsri_files_add(&f, "/nowhere/at/all", 0, NULL, NULL), TSR_ENOENT);
}

TEST(links_that_leave_the_folder_are_refused_by_name)
{
    struct tsri_files f = {0};
    begin("links");
    folder_say(folder, "a.txt", "one");
    folder_say(tmp.path, "links-secret", "secret");
    link_to("/etc/passwd", "out");
    link_to("..", "up");
    link_to("../links-secret", "beside");
    link_to("a.txt", "inside");
    link_to("nothing", "broken");
    CHECK_INT(tsri_files_add(&f, folder, 0, NULL, NULL), 0);
    CHECK_INT(f.n, 4);
    CHECK(!find(&f, "a.txt")->why);
    CHECK_HAS(find(&f, "out")->why, "leaves the folder");
    CHECK_HAS(find(&f, "up")->why, "leaves the folder");
    CHECK_HAS(find(&f, "beside")->why, "leaves the folder");
    tsri_files_fini(&f);
}

TEST(files_are_opened_through_no_link)
{
    begin("open");
    folder_say(folder, "sub/a.txt", "one");
    link_to("sub", "way");
    link_to("sub/a.txt", "file");
    int fd = tsri_file_below(folder, "sub/a.txt");
    CHECK(fd >= 0);
    close(fd);
    CHECK_INT(tsri_file_below(folder, "way/a.txt"), -1);
    CHECK_INT(tsri_file_below(folder, "file"), -1);
    CHECK_INT(tsri_file_below(folder, "../open/sub/a.txt"), -1);
    CHECK_INT(tsri_file_below(folder, "sub"), -1);
    CHECK_INT(tsri_file_below(folder, ""), -1);
    CHECK_INT(tsri_file_below(folder, "/etc/passwd"), -1);
}

TEST(a_pipe_keeps_nobody_waiting)
{
    struct tsri_files f = {0};
    char path[1024];
    begin("pipe");
    snprintf(path, sizeof path, "%s/p", folder);
    CHECK_INT(mkfifo(path, 0600), 0);
    CHECK_INT(tsri_files_add(&f, folder, 0, NULL, NULL), 0);
    CHECK_INT(f.n, 0);
    CHECK_INT(tsri_file_below(folder, "p"), -1);
    tsri_files_fini(&f);
}

TEST(depth_has_a_limit)
{
    struct tsri_files f = {0};
    char name[256] = "";
    begin("deep");
    for (int i = 0; i < 40; i++)
        strcat(name, "d/");
    strcat(name, "x");
    folder_say(folder, name, "deep");
    CHECK_INT(tsri_files_add(&f, folder, 0, NULL, NULL), 0);
    CHECK_INT(f.n, 1);
    CHECK_STR(f.items[0].why, "is nested too deep");
    tsri_files_fini(&f);
}

TEST(names_that_are_not_utf8_are_refused)
{
    struct tsri_files f = {0};
    begin("names");
    folder_say(folder, "\xFF", "x");
    CHECK_INT(tsri_files_add(&f, folder, 0, NULL, NULL), 0);
    CHECK_HAS(f.items[0].why, "not UTF-8");
    tsri_files_fini(&f);
}

int main(void)
{
    tmpdir_init(&tmp);
    RUN(files_of_all_folders_are_found_and_hidden_ones_are_not);
    RUN(links_that_leave_the_folder_are_refused_by_name);
    RUN(files_are_opened_through_no_link);
    RUN(a_pipe_keeps_nobody_waiting);
    RUN(depth_has_a_limit);
    RUN(names_that_are_not_utf8_are_refused);
    tmpdir_fini(&tmp);
    return test_end();
}
