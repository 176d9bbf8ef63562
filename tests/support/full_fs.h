/* full_fs.h - a small file system for one program, to be filled up and given room again: a tmpfs in
 * a mount namespace of its own, and a user namespace where the program is not root. Machines that
 * refuse namespaces skip what needs it. */
#ifndef TSRI_FULL_FS_H
#define TSRI_FULL_FS_H

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define FULL_FS_REFUSED "mount namespaces are refused here"

static inline bool full_fs_spill(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return done;
}

/* Once, before the program has a second thread. False where it is refused. */
static inline bool full_fs_enter(void)
{
    char map[64];
    unsigned uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
        snprintf(map, sizeof map, "0 %u 1", uid);
        if (!full_fs_spill("/proc/self/uid_map", map)) return false;
        snprintf(map, sizeof map, "0 %u 1", gid);
        if (!full_fs_spill("/proc/self/setgroups", "deny") ||
            !full_fs_spill("/proc/self/gid_map", map))
            return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static inline bool full_fs_size(const char *path, unsigned kib, unsigned long flags)
{
    char options[64];
    snprintf(options, sizeof options, "size=%uk,mode=0700", kib);
    return mount("none", path, "tmpfs", flags, options) == 0;
}

static inline bool full_fs_mount(const char *path, unsigned kib)
{
    return full_fs_size(path, kib, 0);
}

/* It has that many KiB from now on. False when more are in use. */
static inline bool full_fs_resize(const char *path, unsigned kib)
{
    return full_fs_size(path, kib, MS_REMOUNT);
}

static inline void full_fs_umount(const char *path)
{
    umount2(path, MNT_DETACH);
}

#endif
