/* tmpdir.h - an empty directory for one test, below TMPDIR, removed with everything in it. */
#ifndef TSRI_TMPDIR_H
#define TSRI_TMPDIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct tmpdir {
    char path[256];
};

static inline void tmpdir_init_below(struct tmpdir *d, const char *base)
{
    snprintf(d->path, sizeof d->path, "%s/tessera-test-XXXXXX", base);
    if (!mkdtemp(d->path)) {
        perror(d->path);
        abort();
    }
}

static inline void tmpdir_init(struct tmpdir *d)
{
    const char *base = getenv("TMPDIR");
    tmpdir_init_below(d, base && *base ? base : "/tmp");
}

/* In memory where that is possible: for tests that sync a lot and whose subject is not the disk. */
static inline void tmpdir_init_fast(struct tmpdir *d)
{
    if (access("/dev/shm", W_OK) == 0)
        tmpdir_init_below(d, "/dev/shm");
    else
        tmpdir_init(d);
}

static inline int tmpdir_remove(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static inline void tmpdir_fini(struct tmpdir *d)
{
    nftw(d->path, tmpdir_remove, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
