/* top.h - what `tessera top` is made of: a source that asks a running server for its status, a
 * sample of that as numbers, and a report of two samples for a terminal or as JSON.
 *
 * Threads: one.
 * Memory:  a sample has no pointers; the caller that opens a source closes it.
 * Errors:  enum tsr_err with a message; nothing here prints but what writes to a FILE.
 */
#ifndef TSRI_CLI_TOP_H
#define TSRI_CLI_TOP_H

#include "cli/remote.h"

#define TSRI_TOP_TENANTS_MAX 64u
#define TSRI_TOP_TIERS_MAX 8u
#define TSRI_TOP_SLOW_MAX 16u
#define TSRI_TOP_NAME_BYTES 64u
#define TSRI_TOP_TEXT_MAX ((size_t)4 << 20) /* of a status; more is not read */

/* ---- top_sample.c: the JSON of a status as numbers ---- */

/* Of a tenant since its server started, but for sessions; the members are in `members`. */
#define TSRI_TOP_NUMBERS 14
struct tsri_top_numbers {
    union {
        struct {
            double asked, found, lookups, misses, out, in, tier_read, tier_written;
            double evicted, refused, tier_errors, tier_timeouts, corrupt, sessions;
        };
        double each[TSRI_TOP_NUMBERS];
    };
};
_Static_assert(sizeof(struct tsri_top_numbers) == TSRI_TOP_NUMBERS * sizeof(double),
               "each has all members");

struct tsri_top_tier {
    char name[TSRI_TOP_NAME_BYTES];
    double entries, tokens, used, size; /* size 0: no limit */
};
struct tsri_top_tenant {
    char name[TSRI_TOP_NAME_BYTES];
    struct tsri_top_numbers n;
    struct tsri_top_tier tiers[TSRI_TOP_TIERS_MAX];
    uint32_t n_tiers;
};
struct tsri_top_slow {
    char call[TSRI_TOP_NAME_BYTES], tenant[TSRI_TOP_NAME_BYTES];
    double seconds, ago;
};
/* Of `tessera serve`. */
struct tsri_top_serve {
    double requests, queued, reading, writing, prompt, recomputed, answer;
};
struct tsri_top_sample {
    double at_s; /* tsri_cli_now_s */
    char version[TSRI_TOP_NAME_BYTES];
    double uptime;
    struct tsri_top_tenant all; /* added up, tiers by name */
    struct tsri_top_tenant tenants[TSRI_TOP_TENANTS_MAX];
    uint32_t n_tenants;
    struct tsri_top_slow slow[TSRI_TOP_SLOW_MAX];
    uint32_t n_slow;
    struct tsri_top_serve serve;
    bool has_serve;
};
/* What is missing is 0, what does not fit is left out; TSR_EINVAL: no status of a server. */
TSR_MUST int tsri_top_sample_read(struct tsri_top_sample *s, const char *text, size_t bytes);

/* ---- top_source.c: where samples come from ---- */

struct tsri_top_source {
    struct tsri_cli *cli;
    char where[300];         /* for people: the socket or the address */
    char host[256], port[8]; /* host "": the socket */
    char *token;             /* of HTTP, or NULL */
    struct tsri_remote remote;
    bool connected;
    uint64_t patience_ns; /* for an answer */
};
/* Of --connect, the URL that is the argument, and --token-file; does not connect. 0, or the exit
 * status after having said why. */
int tsri_top_source_open(struct tsri_top_source *s, struct tsri_cli *cli);
void tsri_top_source_close(struct tsri_top_source *s);
/* Asks, connecting where it must; returns within a few seconds, with --once within a minute. */
TSR_MUST int tsri_top_source_next(struct tsri_top_source *s, struct tsri_top_sample *out);
/* "http://host:port", also with a path, which is ignored. */
TSR_MUST bool tsri_top_url_parse(const char *url, char host[static 256], char port[static 8]);
/* The body of a whole HTTP reply and its status, or NULL: it is none. */
const char *tsri_top_http_body(const char *reply, size_t bytes, int *status, size_t *body_bytes);

/* ---- top_report.c: two samples for people and programs ---- */

struct tsri_top_report {
    const char *where;
    const char *problem;                  /* NULL: `now` is of now */
    const struct tsri_top_sample *before; /* NULL: no rates yet */
    const struct tsri_top_sample *now;    /* NULL: nothing is known yet */
};
/* Whether rates between the two mean anything: the same life of one server. */
bool tsri_top_same_life(const struct tsri_top_sample *before, const struct tsri_top_sample *now);
/* As many lines as there are; rows 0: all of them, columns 0: whole lines. `live` overwrites
 * the screen and clears what was there. */
void tsri_top_report_print(const struct tsri_top_report *r, const struct tsri_cli *cli, FILE *out,
                           uint32_t rows, uint32_t columns, bool live);
/* One line. */
void tsri_top_report_json(const struct tsri_top_report *r, FILE *out);

#endif
