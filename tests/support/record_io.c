/* record_io.c - system calls written down and replayed as a crash would leave them. */
#include "support/record_io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SECTOR_BYTES 512u

static void die(const char *what)
{
    fprintf(stderr, "record_io: %s\n", what);
    abort();
}

/* ---- writing down ---- */

static struct record_op *add(struct record_io *r, enum record_kind kind, uint32_t file)
{
    if (r->n_ops == r->ops_max) {
        r->ops_max = r->ops_max ? 2 * r->ops_max : 256;
        r->ops = realloc(r->ops, r->ops_max * sizeof r->ops[0]);
        if (!r->ops) die("no memory");
    }
    struct record_op *op = &r->ops[r->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->file = file;
    return op;
}

static struct record_name *find(struct record_io *r, const char *name)
{
    for (size_t i = 0; i < r->n_names; i++)
        if (strcmp(r->names[i].name, name) == 0) return &r->names[i];
    return NULL;
}

static void set_name(struct record_io *r, const char *name, uint32_t file)
{
    struct record_name *n = find(r, name);
    if (!n) {
        if (r->n_names == RECORD_NAMES) die("too many names");
        n = &r->names[r->n_names++];
        snprintf(n->name, sizeof n->name, "%s", name);
    }
    n->file = file;
}

static void remove_name(struct record_io *r, const char *name)
{
    struct record_name *n = find(r, name);
    if (n) *n = r->names[--r->n_names];
}

static int record_open(void *arg, int dir, const char *name, int flags, mode_t mode)
{
    struct record_io *r = arg;
    int fd = tsri_fileio_real.open(NULL, dir, name, flags, mode);
    if (fd < 0) return fd;
    if (fd >= RECORD_FDS) die("too many files");
    struct record_name *n = find(r, name);
    if (n && !(flags & O_TRUNC)) {
        r->by_fd[fd] = n->file;
        return fd;
    }
    /* A file that is emptied is taken for a new one under the old name. */
    r->by_fd[fd] = r->n_files++;
    struct record_op *op = add(r, RECORD_CREATE, r->by_fd[fd]);
    snprintf(op->name, sizeof op->name, "%s", name);
    set_name(r, name, r->by_fd[fd]);
    return fd;
}

static ssize_t record_preadv(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    (void)arg;
    return tsri_fileio_real.preadv(NULL, fd, iov, n, offset);
}

static ssize_t record_pwritev(void *arg, int fd, const struct iovec *iov, int n, off_t offset)
{
    struct record_io *r = arg;
    ssize_t moved = tsri_fileio_real.pwritev(NULL, fd, iov, n, offset);
    if (moved <= 0) return moved;
    struct record_op *op = add(r, RECORD_WRITE, r->by_fd[fd]);
    op->offset = (uint64_t)offset;
    op->bytes = (uint64_t)moved;
    op->data = malloc(op->bytes);
    if (!op->data) die("no memory");
    size_t at = 0;
    for (int i = 0; i < n && at < op->bytes; i++) {
        size_t part = op->bytes - at < iov[i].iov_len ? op->bytes - at : iov[i].iov_len;
        memcpy(op->data + at, iov[i].iov_base, part);
        at += part;
    }
    return moved;
}

static int record_close(void *arg, int fd)
{
    (void)arg;
    return tsri_fileio_real.close(NULL, fd);
}

/* What a sync promises holds from the moment it returns. */
static int record_fdatasync(void *arg, int fd)
{
    struct record_io *r = arg;
    add(r, RECORD_SYNC, r->by_fd[fd]);
    return 0;
}

static int record_fsync(void *arg, int fd)
{
    (void)fd;
    add(arg, RECORD_SYNC_DIR, 0);
    return 0;
}

static int record_rename(void *arg, int dir, const char *from, const char *to)
{
    struct record_io *r = arg;
    int err = tsri_fileio_real.rename(NULL, dir, from, to);
    struct record_name *n = find(r, from);
    if (err || !n) return err;
    struct record_op *op = add(r, RECORD_RENAME, n->file);
    snprintf(op->name, sizeof op->name, "%s", from);
    snprintf(op->to, sizeof op->to, "%s", to);
    set_name(r, to, n->file);
    remove_name(r, from);
    return 0;
}

static int record_unlink(void *arg, int dir, const char *name)
{
    struct record_io *r = arg;
    int err = tsri_fileio_real.unlink(NULL, dir, name);
    if (err) return err;
    struct record_op *op = add(r, RECORD_UNLINK, 0);
    snprintf(op->name, sizeof op->name, "%s", name);
    remove_name(r, name);
    return 0;
}

static int record_size(struct record_io *r, int fd, off_t bytes, int err)
{
    if (!err) add(r, RECORD_SIZE, r->by_fd[fd])->bytes = (uint64_t)bytes;
    return err;
}

static int record_ftruncate(void *arg, int fd, off_t bytes)
{
    return record_size(arg, fd, bytes, tsri_fileio_real.ftruncate(NULL, fd, bytes));
}

static int record_fallocate(void *arg, int fd, off_t bytes)
{
    return record_size(arg, fd, bytes, tsri_fileio_real.fallocate(NULL, fd, bytes));
}

void record_io_init(struct record_io *r)
{
    memset(r, 0, sizeof *r);
    r->io = (struct tsri_fileio){.open = record_open,
                                 .close = record_close,
                                 .preadv = record_preadv,
                                 .pwritev = record_pwritev,
                                 .fdatasync = record_fdatasync,
                                 .fsync = record_fsync,
                                 .rename = record_rename,
                                 .unlink = record_unlink,
                                 .ftruncate = record_ftruncate,
                                 .fallocate = record_fallocate,
                                 .arg = r};
}

void record_io_fini(struct record_io *r)
{
    for (size_t i = 0; i < r->n_ops; i++)
        free(r->ops[i].data);
    free(r->ops);
}

/* ---- replaying ---- */

struct file {
    uint8_t *data;
    uint64_t bytes, room;
};

static void resize(struct file *f, uint64_t bytes)
{
    if (bytes > f->room) {
        f->data = realloc(f->data, bytes);
        if (!f->data) die("no memory");
        f->room = bytes;
    }
    if (bytes > f->bytes) memset(f->data + f->bytes, 0, bytes - f->bytes);
    f->bytes = bytes;
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static bool is_about_names(enum record_kind kind)
{
    return kind == RECORD_CREATE || kind == RECORD_RENAME || kind == RECORD_UNLINK;
}

/* Whether a sync before `at` made op i survive. */
static bool is_synced(const struct record_io *r, size_t i, size_t at)
{
    const struct record_op *op = &r->ops[i];
    for (size_t k = i + 1; k < at; k++) {
        const struct record_op *s = &r->ops[k];
        if (is_about_names(op->kind) && s->kind == RECORD_SYNC_DIR) return true;
        if (!is_about_names(op->kind) && s->kind == RECORD_SYNC && s->file == op->file) return true;
    }
    return false;
}

static void apply_write(struct file *f, const struct record_op *op, bool torn, uint64_t *state)
{
    for (uint64_t at = 0; at < op->bytes; at += SECTOR_BYTES) {
        if (torn && draw(state) % 2) continue;
        uint64_t part = op->bytes - at < SECTOR_BYTES ? op->bytes - at : SECTOR_BYTES;
        if (f->bytes < op->offset + at + part) resize(f, op->offset + at + part);
        if (f->data) memcpy(f->data + op->offset + at, op->data + at, part);
    }
}

static void apply_name(struct record_io *dir, const struct record_op *op)
{
    struct record_name *n = find(dir, op->name);
    if (op->kind == RECORD_CREATE) set_name(dir, op->name, op->file);
    if (op->kind == RECORD_UNLINK) remove_name(dir, op->name);
    if (op->kind == RECORD_RENAME && n && n->file == op->file) {
        set_name(dir, op->to, op->file);
        remove_name(dir, op->name);
    }
}

static void write_directory(const struct record_io *dir, const struct file *files, const char *path)
{
    for (size_t i = 0; i < dir->n_names; i++) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", path, dir->names[i].name);
        const struct file *f = &files[dir->names[i].file];
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || (f->bytes && write(fd, f->data, f->bytes) != (ssize_t)f->bytes))
            die("cannot write a crash state");
        close(fd);
    }
}

void record_io_replay(const struct record_io *r, size_t at, enum record_luck luck, uint64_t seed,
                      const char *path)
{
    struct file *files = calloc(r->n_files + 1, sizeof files[0]);
    struct record_io *dir = calloc(1, sizeof *dir);
    if (!files || !dir) die("no memory");
    uint64_t state = seed * 2 + 1;
    for (size_t i = 0; i < at; i++) {
        const struct record_op *op = &r->ops[i];
        bool torn = false;
        if (!is_synced(r, i, at)) {
            uint64_t fate = luck == RECORD_ALL ? 0 : luck == RECORD_NONE ? 1 : draw(&state) % 3;
            if (fate == 1) continue;
            torn = fate == 2;
        }
        if (is_about_names(op->kind)) apply_name(dir, op);
        if (op->kind == RECORD_WRITE) apply_write(&files[op->file], op, torn, &state);
        if (op->kind == RECORD_SIZE) resize(&files[op->file], op->bytes);
    }
    write_directory(dir, files, path);
    for (uint32_t i = 0; i < r->n_files; i++)
        free(files[i].data);
    free(files);
    free(dir);
}
