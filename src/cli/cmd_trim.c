/* cmd_trim.c - commands that change a store directory or bring it near: evict, clear, compact,
 * warm. */
#include "cli/remote.h"
#include "cli/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int say(const struct tsri_cli *cli, const char *what, size_t n, uint64_t bytes)
{
    char size[32];
    if (cli->json)
        printf("{\"%s\":%zu,\"bytes\":%llu}\n", what, n, (unsigned long long)bytes);
    else
        printf("%zu entries %s, %s\n", n, what, tsri_cli_size(bytes, size));
    return 0;
}

/* Drops entries in order as long as `goes` says so. */
static int drop_while(struct tsri_cli *cli, const char *what,
                      bool (*goes)(const struct tsri_store_entry *e, uint64_t dropped, void *arg),
                      void *arg)
{
    struct tsri_store s;
    int status = tsri_store_open(&s, cli, cli->args[0], true);
    if (status) return status;
    uint64_t bytes = 0;
    size_t n = 0;
    for (size_t i = 0; i < s.n_entries && !status; i++) {
        if (goes(&s.entries[i], bytes, arg)) {
            int e = tsri_store_drop(&s, &s.entries[i]);
            if (e < 0) status = tsri_cli_failed();
            bytes += e > 0 ? s.entries[i].bytes : 0;
            n += e > 0;
        }
        tsri_cli_progress(what, i + 1, s.n_entries);
    }
    if (!status) status = tsri_store_flush(&s);
    tsri_store_close(&s);
    return status ? status : say(cli, what, n, bytes);
}

static bool until_bytes(const struct tsri_store_entry *e, uint64_t dropped, void *arg)
{
    (void)e;
    return dropped < *(const uint64_t *)arg;
}

int tsri_cmd_evict(struct tsri_cli *cli)
{
    if (tsri_remote_wanted(cli)) return tsri_server_evict(cli);
    int status = tsri_cli_want_args(cli, 2, 2);
    if (status) return status;
    uint64_t want;
    if (!tsri_parse_size(cli->args[1], &want) || want == 0)
        return tsri_cli_usage(cli, "%s: not a size", cli->args[1]);
    return drop_while(cli, "evicted", until_bytes, &want);
}

static bool of_space(const struct tsri_store_entry *e, uint64_t dropped, void *arg)
{
    (void)dropped;
    char hex[33];
    tsri_hex(hex, e->head.space, 16);
    return !arg || strncmp(hex, arg, strlen(arg)) == 0;
}

int tsri_cmd_clear(struct tsri_cli *cli)
{
    if (tsri_remote_wanted(cli)) return tsri_server_clear(cli);
    const char *space;
    int status = tsri_cli_want_args(cli, 1, 1);
    if (!status) status = tsri_store_space(cli, &space);
    return status ? status : drop_while(cli, "cleared", of_space, (void *)(uintptr_t)space);
}

/* Bytes that the files of a directory take. */
static uint64_t disk_usage(const char *path)
{
    uint64_t bytes = 0;
    DIR *dir = opendir(path);
    struct dirent *e;
    while (dir && (e = readdir(dir))) {
        struct stat st;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    if (dir) closedir(dir);
    return bytes;
}

int tsri_cmd_compact(struct tsri_cli *cli)
{
    int status = tsri_cli_want_args(cli, 1, 1);
    if (status) return status;
    struct tsri_store s;
    uint64_t before = disk_usage(cli->args[0]);
    status = tsri_store_open(&s, cli, cli->args[0], true);
    if (status) return status;
    status = tsri_store_compact(&s);
    tsri_store_close(&s);
    if (status) return status;
    uint64_t after = disk_usage(cli->args[0]);
    char a[32], b[32];
    if (cli->json)
        printf("{\"before\":%llu,\"after\":%llu}\n", (unsigned long long)before,
               (unsigned long long)after);
    else
        printf("%s before, %s after\n", tsri_cli_size(before, a), tsri_cli_size(after, b));
    return 0;
}

/* Reads a file through the page cache; bytes read, or -1. */
static int64_t read_through(int dir, const char *name, uint8_t *buf, size_t bytes)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | TSRI_FILE_SAFE);
    if (fd < 0) return -1;
    int64_t sum = 0;
    ssize_t n;
    while ((n = read(fd, buf, bytes)) > 0 || (n < 0 && errno == EINTR))
        sum += n > 0 ? n : 0;
    close(fd);
    return n < 0 ? -1 : sum;
}

#define WARM_BYTES ((size_t)4 << 20)

int tsri_cmd_warm(struct tsri_cli *cli)
{
    if (tsri_remote_wanted(cli)) return tsri_server_warm(cli);
    int status = tsri_cli_want_args(cli, 1, 1);
    if (status) return status;
    DIR *dir = opendir(cli->args[0]);
    if (!dir) return tsri_cli_fail("%s: %s", cli->args[0], strerror(errno));
    uint8_t *buf = tsri_alloc(WARM_BYTES, 1);
    size_t n_files = 0, n_all = 0;
    uint64_t bytes = 0;
    struct dirent *e;
    while (buf && (e = readdir(dir)))
        n_all += e->d_type == DT_REG;
    rewinddir(dir);
    while (buf && (e = readdir(dir))) {
        if (e->d_type != DT_REG) continue;
        int64_t n = read_through(dirfd(dir), e->d_name, buf, WARM_BYTES);
        if (n < 0) status = tsri_cli_fail("%s: %s", e->d_name, strerror(errno));
        bytes += n > 0 ? (uint64_t)n : 0;
        tsri_cli_progress("warm", ++n_files, n_all);
    }
    if (!buf) status = tsri_cli_failed();
    tsri_free(buf);
    closedir(dir);
    if (status) return status;
    char size[32];
    if (cli->json)
        printf("{\"files\":%zu,\"bytes\":%llu}\n", n_files, (unsigned long long)bytes);
    else
        printf("%zu files, %s in the page cache\n", n_files, tsri_cli_size(bytes, size));
    return 0;
}
