/* secret.c - files of passwords and keys: read only when nobody but their owner can, bounded, and
 * overwritten before their memory is given back. No message says what stands in them. */
#include "tier/parcel.h"

#include <errno.h>
#include <unistd.h>
#include <sys/stat.h>

void tsri_secret_free(char **text)
{
    if (*text) explicit_bzero(*text, strlen(*text));
    tsri_free(*text);
    *text = NULL;
}

int64_t tsri_secret_read(const char *option, const char *path, char *text, size_t bytes_max)
{
    struct stat st;
    int fd = tsri_file_open(path, &st);
    if (fd < 0 && errno == EINVAL)
        return tsri_fail(TSR_ECONFIG, "%s: %s is not a file", option, path);
    if (fd < 0) return tsri_fail(TSR_ECONFIG, "%s: %s: %s", option, path, strerror(errno));
    int64_t n = 0;
    if (!tsri_file_is_ours(&st))
        n = tsri_fail(TSR_EPERM, "%s: %s belongs to another user", option, path);
    else if (st.st_mode & (S_IRWXG | S_IRWXO))
        n = tsri_fail(TSR_EPERM, "%s: %s is accessible to others: run chmod 600", option, path);
    ssize_t got = 1;
    while (n >= 0 && (size_t)n < bytes_max && got > 0) {
        got = read(fd, text + n, bytes_max - (size_t)n);
        if (got > 0) n += got;
    }
    close(fd);
    if (n >= 0 && got < 0) n = tsri_fail(TSR_EIO, "%s: %s: %s", option, path, strerror(errno));
    if (n >= 0 && (size_t)n == bytes_max)
        n = tsri_fail(TSR_ECONFIG, "%s: %s is too large", option, path);
    return n;
}

int tsri_secret_line(const char *option, const char *path, char **out)
{
    char text[TSRI_SECRET_MAX + 1];
    *out = NULL;
    int64_t n = tsri_secret_read(option, path, text, sizeof text);
    int err = n < 0 ? (int)n : 0;
    if (!err) {
        while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
            n--;
        if (n == 0 || memchr(text, '\n', (size_t)n) || memchr(text, '\0', (size_t)n))
            err = tsri_fail(TSR_ECONFIG, "%s: %s is empty, or more than one line", option, path);
    }
    if (!err) {
        *out = tsri_alloc((size_t)n + 1, 1);
        if (*out)
            memcpy(*out, text, (size_t)n);
        else
            err = TSR_ENOMEM;
    }
    explicit_bzero(text, sizeof text);
    return err;
}
