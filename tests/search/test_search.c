/* The database: who may read it, and what happens to one that cannot be trusted. */
#include "search/inside.h"

#include "folder_kit.h"
#include "support/test.h"

#include <fcntl.h>
#include <glob.h>

static struct tmpdir tmp;
static char folder[512], home[512], file[600];

static void begin(const char *name)
{
    snprintf(folder, sizeof folder, "%s/%s", tmp.path, name);
    snprintf(home, sizeof home, "%s/%s-home", tmp.path, name);
    CHECK_INT(mkdir(folder, 0700), 0);
    folder_say(folder, "harbor.txt", "The ferry sails at six.");
    folder_say(folder, "garden.txt", "Roses need water.");
    folder_say(folder, "kitchen.txt", "Bread needs an hour.");
}

static struct tsri_search *opened(void)
{
    const char *folders[] = {folder};
    struct tsri_search *s = NULL;
    if (tsri_search_open(&s, home, folders, 1) != 0) printf("    %s\n", tsr_errmsg());
    CHECK(s);
    return s;
}

static const char *database(void)
{
    glob_t g;
    char pattern[600];
    snprintf(pattern, sizeof pattern, "%s/search-*.db", home);
    CHECK_INT(glob(pattern, 0, NULL, &g), 0);
    CHECK_INT(g.gl_pathc, 1);
    snprintf(file, sizeof file, "%s", g.gl_pathv[0]);
    globfree(&g);
    return file;
}

static void answers(struct tsri_search *s)
{
    struct tsri_passages found;
    CHECK_INT(tsri_search_find(s, "When does the ferry sail?", 4, 1 << 20, &found), 0);
    CHECK_INT(found.n, 1);
    CHECK_STR(found.items[0].name, "harbor.txt");
    CHECK_STR(found.items[0].text, "The ferry sails at six.");
    tsri_passages_fini(&found);
}

TEST(the_database_is_of_its_user_alone)
{
    struct stat st;
    begin("mode");
    umask(0);
    struct tsri_search *s = opened();
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, NULL), 0);
    CHECK_INT(stat(home, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0700);
    glob_t g;
    char pattern[600];
    snprintf(pattern, sizeof pattern, "%s/*", home);
    CHECK_INT(glob(pattern, 0, NULL, &g), 0);
    CHECK(g.gl_pathc >= 3);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        CHECK_INT(stat(g.gl_pathv[i], &st), 0);
        CHECK_INT(st.st_mode & 0777, 0600);
    }
    globfree(&g);
    tsri_search_close(s);
    CHECK_INT(chmod(database(), 0644), 0);
    tsri_search_close(opened());
    CHECK_INT(stat(file, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0600);
}

TEST(a_link_in_its_place_is_refused)
{
    const char *folders[] = {folder};
    struct tsri_search *s = NULL;
    begin("link");
    tsri_search_close(opened());
    CHECK_INT(rename(database(), "/dev/null/x"), -1);
    CHECK_INT(unlink(file), 0);
    CHECK_INT(symlink("/dev/null", file), 0);
    CHECK_INT(tsri_search_open(&s, home, folders, 1), TSR_EPERM);
    CHECK(!s);
}

TEST(what_was_read_stays)
{
    struct tsri_sync_result r;
    begin("stays");
    struct tsri_search *s = opened();
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, &r), 0);
    CHECK_INT(r.n_new, 3);
    tsri_search_close(s);
    s = opened();
    answers(s);
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, &r), 0);
    CHECK_INT(r.n_new + r.n_changed + r.n_gone, 0);
    tsri_search_close(s);
}

/* Damages the closed database in some way and sees that answers come all the same. */
static void survives(size_t at, size_t n, bool cuts)
{
    struct stat st;
    struct tsri_search *s = opened();
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, NULL), 0);
    tsri_search_close(s);
    int fd = open(database(), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_INT(fstat(fd, &st), 0);
    for (size_t i = at; i < at + n && i < (size_t)st.st_size; i++)
        CHECK_INT(pwrite(fd, "\xA5", 1, (off_t)i), 1);
    if (cuts) CHECK_INT(ftruncate(fd, (off_t)at), 0);
    close(fd);
    s = opened();
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, NULL), 0);
    answers(s);
    tsri_search_close(s);
}

TEST(a_damaged_database_is_made_again)
{
    begin("damage");
    survives(0, 16, false);
    survives(0, 4096, false);
    survives(4096, 0, true);
    survives(20000, 0, true);
    survives(4096, 1 << 20, false);
}

TEST(a_changed_passage_is_noticed)
{
    begin("flip");
    struct tsri_search *s = opened();
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, NULL), 0);
    CHECK_INT(tsri_db_run(s, "UPDATE passages SET text = 'The ferry sails at ten.' WHERE text LIKE "
                             "'%ferry%'"),
              0);
    answers(s);
    tsri_search_close(s);
}

TEST(another_version_and_other_folders_begin_anew)
{
    begin("version");
    struct tsri_search *s = opened();
    CHECK_INT(tsri_db_run(s, "PRAGMA user_version = 99"), 0);
    tsri_search_close(s);
    s = opened();
    CHECK_INT(tsri_search_sync(s, NULL, NULL, NULL, NULL), 0);
    CHECK_INT(tsri_db_run(s, "UPDATE home SET folders = 'x'"), 0);
    tsri_search_close(s);
    s = opened();
    struct tsri_search_stats stats;
    CHECK_INT(tsri_search_stats(s, &stats), 0);
    CHECK_INT(stats.n_files, 0);
    tsri_search_close(s);
}

TEST(folders_are_checked)
{
    struct tsri_search *s = NULL;
    begin("check");
    char path[600];
    snprintf(path, sizeof path, "%s/harbor.txt", folder);
    const char *missing[] = {"/nowhere/at/all"}, *plain[] = {path};
    CHECK_INT(tsri_search_open(&s, NULL, missing, 1), TSR_ENOENT);
    CHECK_INT(tsri_search_open(&s, NULL, plain, 1), TSR_EINVAL);
    CHECK_INT(tsri_search_open(&s, NULL, plain, 0), TSR_ERANGE);
    tsri_search_close(NULL);
}

int main(void)
{
    tmpdir_init(&tmp);
    RUN(the_database_is_of_its_user_alone);
    RUN(a_link_in_its_place_is_refused);
    RUN(what_was_read_stays);
    RUN(a_damaged_database_is_made_again);
    RUN(a_changed_passage_is_noticed);
    RUN(another_version_and_other_folders_begin_anew);
    RUN(folders_are_checked);
    tmpdir_fini(&tmp);
    return test_end();
}
