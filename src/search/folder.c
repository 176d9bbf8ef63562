/* folder.c - what is below a folder. Every step goes from an open folder to a name in it and through
 * no link, so nothing outside can be reached, whatever is moved meanwhile. */
#include "search/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMES_MAX 200000u /* in one folder */

struct walking {
    struct tsri_files *files;
    const char *root; /* without links */
    uint32_t folder;
    tsri_folder_fn each_folder;
    void *arg;
};

static int keep(struct walking *w, const char *name, const struct stat *st, const char *why)
{
    struct tsri_files *f = w->files;
    if (f->n == TSRI_SEARCH_FILES_MAX) f->limit = "files";
    if (!why && f->n_bytes + (uint64_t)st->st_size > TSRI_SEARCH_BYTES_MAX) f->limit = "bytes";
    if (f->limit) return 0;
    if (f->n == f->n_room) {
        size_t room = f->n_room ? 2 * f->n_room : 64;
        void *more = realloc(f->items, room * sizeof *f->items);
        if (!more) return tsri_fail(TSR_ENOMEM, "search: no memory for %zu files", room);
        f->items = more;
        f->n_room = room;
    }
    char *copy = strdup(name);
    if (!copy) return tsri_fail(TSR_ENOMEM, "search: no memory");
    f->items[f->n++] = (struct tsri_file){
        .name = copy,
        .folder = w->folder,
        .bytes = (uint64_t)st->st_size,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .why = why,
    };
    if (!why) f->n_bytes += (uint64_t)st->st_size;
    return 0;
}

/* A link to something inside is left out too: that is read under its own name. */
static bool leads_out(const struct walking *w, int at, const char *entry)
{
    char link[64], from[PATH_MAX], to[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t n = readlink(link, from, sizeof from - 1);
    if (n < 0) return true;
    from[n] = 0;
    size_t used = (size_t)n;
    if (snprintf(from + used, sizeof from - used, "/%s", entry) >= (int)(sizeof from - used))
        return true;
    if (!realpath(from, to)) return false; /* leads nowhere */
    size_t root = strlen(w->root);
    return strncmp(to, w->root, root) != 0 || (to[root] != '/' && root > 1);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* The names in a folder, sorted; hidden ones are left out. */
static int read_names(DIR *d, char ***out, size_t *n_out)
{
    size_t n = 0, room = 0;
    char **names = NULL;
    for (struct dirent *e = readdir(d); e && n < NAMES_MAX; e = readdir(d)) {
        if (e->d_name[0] == '.') continue;
        if (n == room) {
            room = room ? 2 * room : 32;
            char **more = realloc(names, room * sizeof *names);
            if (!more) break;
            names = more;
        }
        names[n] = strdup(e->d_name);
        if (!names[n]) break;
        n++;
    }
    if (n) qsort(names, n, sizeof *names, by_name);
    *out = names;
    *n_out = n;
    return 0;
}

static int walk_folder(struct walking *w, int fd, const char *prefix, uint32_t depth);

static int walk_entry(struct walking *w, int fd, const char *prefix, const char *entry,
                      uint32_t depth)
{
    char name[PATH_MAX];
    struct stat st;
    if (snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "/" : "", entry) >=
        (int)sizeof name)
        return 0;
    if (fstatat(fd, entry, &st, AT_SYMLINK_NOFOLLOW) != 0) return 0; /* gone */
    /* Names go into prompts and JSON. */
    if (!tsri_is_utf8(entry, strlen(entry)))
        return keep(w, name, &st, "has a name that is not UTF-8");
    if (S_ISREG(st.st_mode)) return keep(w, name, &st, NULL);
    if (S_ISLNK(st.st_mode))
        return leads_out(w, fd, entry) ? keep(w, name, &st, "is a link that leaves the folder") : 0;
    if (!S_ISDIR(st.st_mode)) return 0;
    if (depth == TSRI_SEARCH_DEPTH_MAX) return keep(w, name, &st, "is nested too deep");
    int below = openat(fd, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0) return keep(w, name, &st, "cannot be opened");
    return walk_folder(w, below, name, depth + 1);
}

/* Takes over fd. */
static int walk_folder(struct walking *w, int fd, const char *prefix, uint32_t depth)
{
    DIR *d = fdopendir(fd);
    char **names = NULL;
    size_t n = 0;
    if (!d) {
        close(fd);
        return tsri_fail(TSR_EIO, "%s/%s: %s", w->root, prefix, strerror(errno));
    }
    w->files->n_folders_seen++;
    if (w->each_folder) w->each_folder(w->arg, fd, prefix);
    int err = read_names(d, &names, &n);
    for (size_t i = 0; i < n && !err && !w->files->limit; i++)
        err = walk_entry(w, fd, prefix, names[i], depth);
    free_names(names, n);
    closedir(d);
    return err;
}

int tsri_files_add(struct tsri_files *f, const char *folder, uint32_t index,
                   tsri_folder_fn each_folder, void *arg)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return tsri_fail(TSR_ENOENT, "%s: %s", folder, strerror(errno));
    struct walking w = {f, folder, index, each_folder, arg};
    return walk_folder(&w, fd, "", 0);
}

void tsri_files_fini(struct tsri_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->items[i].name);
    free(f->items);
    memset(f, 0, sizeof *f);
}

int tsri_file_below(const char *folder, const char *name)
{
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (at >= 0) {
        char part[NAME_MAX + 1];
        size_t n = strcspn(name, "/");
        int flags = O_RDONLY | O_CLOEXEC | TSRI_FILE_SAFE | (name[n] ? O_DIRECTORY : 0);
        if (n == 0 || n > NAME_MAX || (n == 2 && memcmp(name, "..", 2) == 0)) {
            close(at);
            errno = EINVAL;
            return -1;
        }
        memcpy(part, name, n);
        part[n] = 0;
        int next = openat(at, part, flags);
        int error = errno;
        close(at);
        errno = error;
        at = next;
        if (!name[n]) break;
        name += n + 1;
    }
    struct stat st;
    if (at >= 0 && (fstat(at, &st) != 0 || !S_ISREG(st.st_mode))) {
        close(at);
        errno = EINVAL;
        at = -1;
    }
    return at;
}
