/* replay.h - one replay of a trace against a real cache, and how it is shown. cmd_replay.c puts
 * them together.
 *
 * Threads: one.
 * Memory:  results and plots hold pointers of the caller.
 * Errors:  enum tsr_err, with tsr_errmsg. */
#ifndef TSRI_REPLAY_H
#define TSRI_REPLAY_H

#include "lab/lab.h"

/* ---- replay.c ---- */

/* Called after every request. */
typedef void (*tsri_replay_fn)(void *arg, uint64_t n_done);

struct tsri_replay {
    const struct tsri_trace *trace;
    struct tsr_config *config; /* of the cache: sizes, policy and all else */
    bool as_prefix;            /* all requests as plain prompts */
    const char *disk;          /* (optional) a disk tier, in a directory made below this one */
    const char *redis;         /* (optional) a redis tier, at this address */
    const char *s3;            /* (optional) an s3 tier, ENDPOINT/BUCKET */
    const char *keep;          /* (optional) a disk tier, in this directory, which stays */
    tsri_replay_fn progress;   /* (optional) */
    void *arg;
};
struct tsri_replay_result {
    uint64_t requests, tokens_asked, tokens_reused;
    uint64_t tokens_from_disk; /* of those reused */
    uint64_t host_write_bytes, host_read_bytes, disk_write_bytes, disk_read_bytes;
    uint64_t evicted, refused;
    double seconds;
};
/* After a mistake, out->requests tells how far it came. */
TSR_MUST int tsri_replay_run(const struct tsri_replay *replay, struct tsri_replay_result *out);

/* ---- plot.c: hit rate against size, one line a policy, as SVG ---- */

#define TSRI_PLOT_SIZES_MAX 16u
#define TSRI_PLOT_LINES_MAX 8u

struct tsri_plot {
    const char *title, *note;
    uint64_t sizes[TSRI_PLOT_SIZES_MAX]; /* in bytes, in any order */
    size_t n_sizes, n_lines;
    struct tsri_plot_line {
        const char *name;
        double rates[TSRI_PLOT_SIZES_MAX]; /* 0 to 1, one a size */
    } lines[TSRI_PLOT_LINES_MAX];
};
TSR_MUST int tsri_plot_write(const struct tsri_plot *p, const char *path);

#endif
