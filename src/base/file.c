/* file.c - opening files whose place or content others may have a hand in: without waiting, and
 * with a look at what was opened before a byte of it is read. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

bool tsri_file_is_ours(const struct stat *st)
{
    return st->st_uid == geteuid() || st->st_uid == 0;
}

int tsri_file_open(const char *path, struct stat *st)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return -1;
    int error = fstat(fd, st) != 0 ? errno : S_ISREG(st->st_mode) ? 0 : EINVAL;
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}
