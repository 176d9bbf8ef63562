/* watch.c - notices that something below the folders has changed. The kernel says so (inotify) for
 * every folder that is watched; what has changed is found by the sync that follows. Where folders
 * cannot be watched, or there are too many of them, a sync is asked for from time to time. */
#include "search/inside.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

/* Changes come in bursts: an editor writes, renames and removes. */
#define QUIET_MS 300
#define QUIET_MAX_MS 5000
#define RESCAN_MS 10000u
#define WATCHES_MAX 8192u
#define EVENTS \
    (IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | \
     IN_MOVE_SELF | IN_ATTRIB | IN_ONLYDIR)

struct tsri_folder_watch {
    char **folders;
    uint32_t n_folders;
    int notify; /* -1: folders cannot be watched */
    uint32_t n_watches;
    bool partly;        /* some folders are not watched */
    uint64_t looked_ns; /* when a sync was last asked for */
};

static void watch_folder(void *arg, int fd, const char *name)
{
    struct tsri_folder_watch *w = arg;
    char path[64];
    (void)name;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (w->notify < 0 || w->n_watches == WATCHES_MAX ||
        inotify_add_watch(w->notify, path, EVENTS) < 0)
        w->partly = true;
    else
        w->n_watches++;
}

/* Again from the beginning: folders come and go, and a folder that is watched twice is watched once. */
static void watch_all(struct tsri_folder_watch *w)
{
    w->partly = w->notify < 0;
    w->n_watches = 0;
    for (uint32_t i = 0; i < w->n_folders; i++) {
        struct tsri_files files = {0};
        if (tsri_files_add(&files, w->folders[i], 0, watch_folder, w) != 0) w->partly = true;
        w->partly |= files.limit != NULL;
        tsri_files_fini(&files);
    }
}

int tsri_folder_watch_open(struct tsri_folder_watch **out, const char *const *folders,
                           uint32_t n_folders)
{
    struct tsri_folder_watch *w = tsri_alloc(1, sizeof *w);
    *out = NULL;
    if (!w) return TSR_ENOMEM;
    w->notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    w->folders = tsri_alloc(n_folders, sizeof *w->folders);
    int err = w->folders ? 0 : TSR_ENOMEM;
    for (uint32_t i = 0; i < n_folders && !err; i++) {
        w->folders[i] = tsri_strdup(folders[i]);
        if (!w->folders[i]) err = TSR_ENOMEM;
        w->n_folders++;
    }
    if (err) {
        tsri_folder_watch_close(w);
        return err;
    }
    watch_all(w);
    w->looked_ns = tsri_now_ns();
    *out = w;
    return 0;
}

void tsri_folder_watch_close(struct tsri_folder_watch *w)
{
    if (!w) return;
    if (w->notify >= 0) close(w->notify);
    for (uint32_t i = 0; w->folders && i < w->n_folders; i++)
        tsri_free(w->folders[i]);
    tsri_free(w->folders);
    tsri_free(w);
}

static void drain(int fd)
{
    char buf[16384];
    while (read(fd, buf, sizeof buf) > 0)
        continue;
}

/* Whether something has changed. */
static bool wait_once(const struct tsri_folder_watch *w, uint32_t timeout_ms)
{
    struct pollfd p = {.fd = w->notify, .events = POLLIN};
    uint64_t end = tsri_now_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        uint64_t now = tsri_now_ns();
        int left = now < end ? (int)((end - now + 999999) / 1000000) : 0;
        int n = poll(&p, 1, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        drain(w->notify);
        return true;
    }
}

int tsri_folder_watch_wait(struct tsri_folder_watch *w, uint32_t timeout_ms)
{
    uint32_t wait_ms = w->partly && timeout_ms > RESCAN_MS ? RESCAN_MS : timeout_ms;
    bool changed = wait_once(w, wait_ms);
    bool due = w->partly && tsri_now_ns() - w->looked_ns >= RESCAN_MS * (uint64_t)1000000;
    if (!changed && !due) return 0;
    for (uint32_t waited = 0; waited < QUIET_MAX_MS && wait_once(w, QUIET_MS);)
        waited += QUIET_MS;
    watch_all(w);
    w->looked_ns = tsri_now_ns();
    return 1;
}
