/* checks.c - the checks of `tessera doctor` about memory and disk. Limits are asked where they are
 * set: the machine, each control group from this process up to the root, the process. */
#include "cli/cli.h"
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- memory ---- */

#define LOCK_TRY_BYTES ((size_t)32 << 20)

/* The first number in a line "key number" of a file; false when there is none. */
static bool read_number(const char *path, const char *key, uint64_t *out)
{
    char line[256];
    size_t n = strlen(key);
    bool found = false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file))
        found = strncmp(line, key, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
    fclose(file);
    return found;
}

/* The pool asks for huge pages by madvise, so "advise" is enough. The kernel's default is never. */
void tsri_check_shared_pages(const char *path, const char *text, struct tsri_finding *f)
{
    char word[32] = "";
    const char *chosen = text ? strchr(text, '[') : NULL;
    if (chosen) sscanf(chosen, "[%31[a-z_]]", word);
    if (!word[0]) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "not known: %s %s", path,
                         text ? "has another form" : "cannot be read");
    } else if (strcmp(word, "never") == 0 || strcmp(word, "deny") == 0) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "%s: a server's pool has small pages", word);
        tsri_finding_advise(f,
                            "as root, before the server starts: echo advise > %s "
                            "(the pool was 1.46x as fast, measured on x86)",
                            path);
    } else {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", word);
    }
}

/* What a control group of version 2 lets its processes have, and how much of it is left; pages of
 * files count as used there, but give way. */
static void limit_by_group(const char *path, uint64_t *total, uint64_t *available)
{
    char file[PATH_MAX + 64];
    uint64_t limit, used = 0, cached = 0;
    snprintf(file, sizeof file, "%s/memory.max", path);
    if (!read_number(file, "", &limit)) return; /* "max", or no such file at the root */
    snprintf(file, sizeof file, "%s/memory.current", path);
    read_number(file, "", &used);
    snprintf(file, sizeof file, "%s/memory.stat", path);
    read_number(file, "inactive_file ", &cached);
    used -= cached < used ? cached : used;
    uint64_t left = used < limit ? limit - used : 0;
    if (limit < *total) *total = limit;
    if (left < *available) *available = left;
}

static void limit_by_groups(uint64_t *total, uint64_t *available)
{
    char line[PATH_MAX], path[PATH_MAX + 32];
    uint64_t limit;
    /* Version 1, as containers see it: their own group is the root. */
    if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &limit)) {
        if (limit < *total) *total = limit;
        if (limit < *available) *available = limit;
    }
    if (!tsri_read_line("/proc/self/cgroup", line, sizeof line)) return;
    bool below = strncmp(line, "0::/", 4) == 0 && !strstr(line, "/..");
    snprintf(path, sizeof path, "/sys/fs/cgroup%s", below ? line + 3 : "/");
    for (size_t root = strlen("/sys/fs/cgroup"); strlen(path) >= root;) {
        limit_by_group(path, total, available);
        *strrchr(path, '/') = 0;
    }
}

/* What this process may have at most, and now. */
static bool read_memory(uint64_t *total, uint64_t *available)
{
    if (!read_number("/proc/meminfo", "MemTotal:", total) ||
        !read_number("/proc/meminfo", "MemAvailable:", available))
        return false;
    *total *= 1024;
    *available *= 1024;
    limit_by_groups(total, available);
    return true;
}

void tsri_check_host_memory(const struct tsri_options *o, struct tsri_finding *f)
{
    char want[32], have[32];
    uint64_t total, available;
    tsri_cli_size(o->host_size, want);
    if (!read_memory(&total, &available)) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "not known: /proc/meminfo cannot be read");
        return;
    }
    if (o->host_size > total) {
        tsri_finding_say(f, TSRI_DOCTOR_FAIL, "host_size %s, but this machine has at most %s", want,
                         tsri_cli_size(total, have));
        tsri_finding_advise(f, "set host_size below %s",
                            tsri_cli_size(available < total ? available : total, have));
    } else if (o->host_size > available) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "host_size %s, but only %s is available now", want,
                         tsri_cli_size(available, have));
        tsri_finding_advise(f, "lower host_size or free memory");
    } else {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "host_size %s of %s available", want,
                         tsri_cli_size(available, have));
    }
}

void tsri_check_overcommit(const struct tsri_options *o, struct tsri_finding *f)
{
    const char *path = "/proc/sys/vm/overcommit_memory";
    uint64_t mode;
    (void)o;
    if (!read_number(path, "", &mode)) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "not known: %s cannot be read", path);
    } else if (mode == 2) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "never: all of host_size is reserved at open");
        tsri_finding_advise(f, "lower host_size if open fails, or as root: echo 0 > %s", path);
    } else {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s", mode == 0 ? "heuristic" : "always");
    }
}

/* Nanoseconds to lock and unlock a little memory, for each byte; 0 when it is refused. Locking
 * makes pages resident, which is what it costs. */
static double lock_ns(uint64_t most)
{
    size_t bytes = most < LOCK_TRY_BYTES ? (size_t)most & ~(size_t)0xffff : LOCK_TRY_BYTES;
    if (bytes == 0) return 0;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 0;
    uint64_t begin = tsri_now_ns();
    bool locked = mlock(p, bytes) == 0;
    uint64_t took = tsri_now_ns() - begin;
    munmap(p, bytes);
    return locked ? (double)(took ? took : 1) / (double)bytes : 0;
}

/* Will a device have host_size page-locked? One that cannot be opened here is taken for one. */
static bool is_locked(const struct tsri_options *o)
{
    struct tsr_device_desc desc = {.size = sizeof desc, .ordinal = o->device_number};
    struct tsri_device *d;
    if (!o->device[0] || o->owner == TSRI_OWNER_DAEMON) return false;
    if (tsri_device_open(&d, o->device, &desc) != 0) return true;
    bool locked = tsri_device_caps(d) & TSR_DEVICE_NEEDS_LOCK;
    tsri_device_close(d);
    return locked;
}

/* " for device cuda, and stays resident; 20.0 GiB available"; false: not so much is available. */
static bool name_locked(const struct tsri_options *o, char *out, size_t bytes)
{
    uint64_t total, available;
    char have[32];
    if (!read_memory(&total, &available)) {
        snprintf(out, bytes, " for device %s, and stays resident", o->device);
        return true;
    }
    snprintf(out, bytes, " for device %s, and stays resident; %s available", o->device,
             tsri_cli_size(available, have));
    return o->host_size <= available;
}

/* What a device copies from and to must be page-locked, in the background. That makes all of
 * host_size resident, whatever it holds. */
void tsri_check_memlock(const struct tsri_options *o, struct tsri_finding *f)
{
    struct rlimit limit;
    char size[32], want[32], cost[64] = "", use[128] = "";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "not known: %s", strerror(errno));
        tsri_finding_advise(f, "check the limit with ulimit -l");
        return;
    }
    bool endless = limit.rlim_cur == RLIM_INFINITY, locked = is_locked(o);
    bool fits = !locked || name_locked(o, use, sizeof use);
    double ns = lock_ns(limit.rlim_cur);
    double ms = ns * (double)o->host_size / 1e6;
    if (ns > 0)
        snprintf(cost, sizeof cost, " in about %.1f %s", ms < 1000 ? ms : ms / 1000,
                 ms < 1000 ? "ms" : "s");
    tsri_cli_size(limit.rlim_cur, size);
    bool enough = endless || limit.rlim_cur >= o->host_size;
    tsri_finding_say(f, enough && fits ? TSRI_DOCTOR_OK : TSRI_DOCTOR_WARN,
                     "%s%s; host_size %s %s page-locked%s%s", endless ? "no limit" : "limit ",
                     endless ? "" : size, tsri_cli_size(o->host_size, want),
                     locked ? "is" : "would be", cost, use);
    if (!fits)
        tsri_finding_advise(f, "set host_size to less than is available");
    else if (!enough)
        tsri_finding_advise(f, "only matters if a device copies from host memory and its driver "
                               "respects the limit: ulimit -l unlimited, or "
                               "LimitMEMLOCK=infinity in a systemd unit");
}

/* ---- disk ---- */

struct tsri_checked_disk tsri_checked_disk(const struct tsri_options *o, bool second)
{
    const char *path = second ? o->disk2_path : o->disk_path;
    return (struct tsri_checked_disk){.name = second ? "disk2" : "disk",
                                      .path = o->disk_enabled && path[0] ? path : NULL,
                                      .bytes = second ? o->disk2_size : o->disk_size,
                                      .direct = o->disk_direct};
}

static bool has_disk(const struct tsri_checked_disk *d, struct tsri_finding *f)
{
    if (d->path) return true;
    tsri_finding_say(f, TSRI_DOCTOR_OK, "no disk tier is configured");
    return false;
}

/* The path of the tier, or the directory it would be made in. */
static void existing_directory(const struct tsri_checked_disk *d, char out[PATH_MAX])
{
    struct stat st;
    snprintf(out, PATH_MAX, "%s", d->path);
    if (stat(out, &st) == 0) return;
    char copy[PATH_MAX];
    memcpy(copy, out, sizeof copy);
    snprintf(out, PATH_MAX, "%s", dirname(copy));
}

void tsri_check_disk_path(const struct tsri_checked_disk *d, struct tsri_finding *f)
{
    if (!has_disk(d, f)) return;
    char at[PATH_MAX], shown[256];
    struct stat st;
    existing_directory(d, at);
    tsri_printable(at, shown, sizeof shown);
    bool exists = strcmp(at, d->path) == 0;
    if (stat(at, &st) != 0) {
        tsri_finding_say(f, TSRI_DOCTOR_FAIL, "%s: %s", shown, strerror(errno));
        tsri_finding_advise(f, "create the directory, or change %s_path", d->name);
    } else if (!S_ISDIR(st.st_mode)) {
        tsri_finding_say(f, TSRI_DOCTOR_FAIL, "%s is not a directory", shown);
        tsri_finding_advise(f, "set %s_path to a directory", d->name);
    } else if (access(at, R_OK | W_OK | X_OK) != 0) {
        tsri_finding_say(f, TSRI_DOCTOR_FAIL, "%s: %s", shown, strerror(errno));
        tsri_finding_advise(f, "make it readable and writable for this user");
    } else if (exists && (st.st_mode & 0077)) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "%s is open to other users (mode %04o)", shown,
                         (unsigned)st.st_mode & 07777);
        tsri_finding_advise(f, "tokens and KV are user data: run chmod 700");
    } else {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s%s", exists ? "" : "will be created in ", shown);
    }
}

void tsri_check_disk_space(const struct tsri_checked_disk *d, struct tsri_finding *f)
{
    if (!has_disk(d, f)) return;
    char at[PATH_MAX], want[32], have[32];
    struct statvfs fs;
    existing_directory(d, at);
    if (statvfs(at, &fs) != 0) {
        tsri_finding_say(f, TSRI_DOCTOR_FAIL, "not known: %s", strerror(errno));
        return;
    }
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    tsri_cli_size(d->bytes, want);
    tsri_cli_size(free_bytes, have);
    if (free_bytes >= d->bytes) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s_size %s, %s free", d->name, want, have);
        return;
    }
    /* What the tier holds already counts against its size too, so this need not be a mistake. */
    tsri_finding_say(f, TSRI_DOCTOR_WARN, "%s_size %s, but only %s free", d->name, want, have);
    tsri_finding_advise(f, "lower %s_size, unless the tier's own files fill the disk", d->name);
}

/* Writes and reads one block with O_DIRECT into a file without a name. 0 or errno. */
static int try_direct(const char *directory)
{
    enum { BLOCK = 4096 };
    void *block;
    int err = 0;
    int fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    if (posix_memalign(&block, BLOCK, BLOCK) != 0) {
        close(fd);
        return ENOMEM;
    }
    memset(block, 0x5a, BLOCK);
    errno = 0;
    if (pwrite(fd, block, BLOCK, 0) != BLOCK || pread(fd, block, BLOCK, 0) != BLOCK)
        err = errno ? errno : EIO;
    free(block);
    close(fd);
    return err;
}

void tsri_check_direct(const struct tsri_checked_disk *d, struct tsri_finding *f)
{
    if (!has_disk(d, f)) return;
    char at[PATH_MAX];
    existing_directory(d, at);
    if (!d->direct) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "off (disk_direct is false)");
        return;
    }
    int err = try_direct(at);
    if (err == 0) {
        tsri_finding_say(f, TSRI_DOCTOR_OK, "works");
        return;
    }
    tsri_finding_say(f, TSRI_DOCTOR_WARN, "refused: %s", strerror(err));
    tsri_finding_advise(f,
                        "reads and writes go through the page cache instead; for speed put "
                        "%s_path on ext4 or xfs",
                        d->name);
}

void tsri_check_io_uring(const struct tsri_options *o, struct tsri_finding *f)
{
    struct io_uring_params params = {0};
    long fd = syscall(SYS_io_uring_setup, 4, &params);
    bool disk = o->disk_enabled && (o->disk_path[0] || o->disk2_path[0]);
    if (fd >= 0) {
        close((int)fd);
        tsri_finding_say(f, TSRI_DOCTOR_OK, "allowed");
        return;
    }
    bool asked = disk && o->disk_io == TSRI_DISK_IO_URING;
    tsri_finding_say(f, asked ? TSRI_DOCTOR_FAIL : TSRI_DOCTOR_WARN, "refused: %s",
                     strerror(errno));
    tsri_finding_advise(f,
                        "%s; to allow it: sysctl kernel.io_uring_disabled=0, or a container "
                        "profile that permits it",
                        asked ? "set disk_io to auto" : "threads are used instead");
}
