/* s3_kit.h - a real S3 server for tests and benches (SeaweedFS, by tools/setup --s3), which checks
 * signatures and clocks; in a directory of its own, on loopback, gone with the process that started
 * it. And tiers on it or on a stub, with entries put and got by their seeds. */
#ifndef TSRI_S3_KIT_H
#define TSRI_S3_KIT_H

#include "support/kv_tier.h"
#include "support/tmpdir.h"
#include "s3/s3.h"

#include <sys/types.h>

#define S3_KIT_KEY "tessera-tests"
#define S3_KIT_SECRET "a-secret-of-the-tests"
#define S3_KIT_BUCKET "kv-cache"

/* The line to skip with, or NULL when there is a server to start. */
const char *s3_kit_missing(void);

struct s3_server {
    struct tmpdir dir;
    pid_t pid;          /* 0: not running */
    int port;           /* of S3 */
    int inner_ports[3]; /* its other parts */
    char endpoint[64];
};
/* A fresh server with an empty bucket. Stops the program when it does not come up. */
void s3_server_init(struct s3_server *s);
void s3_server_fini(struct s3_server *s);
/* Kills it without a goodbye; starts it again in the same place. */
void s3_server_kill(struct s3_server *s);
void s3_server_start(struct s3_server *s);
/* One signed request; path: "/bucket/name?query". The status, 0 when there was none. The answer's
 * body, at most reply_bytes - 1 of it, as text. */
long s3_server_do(const char *endpoint, enum tsri_s3_http_method method, const char *path,
                  const void *body, size_t bytes, char *reply, size_t reply_bytes);

/* The log from here on, or again from nothing. The number of lines, when it has become n or a
 * second has passed: a line comes a moment after the change it tells of. And their text, until the
 * next call. */
void s3_kit_log_begin(void);
int s3_kit_log_lines(int n);
const char *s3_kit_log(void);

struct s3_kit {
    struct tsri_s3_setup setup; /* keys and bucket are those above unless set */
    struct tsr_tier *tier;
    uint32_t n_threads;
    const char *tenant; /* NULL: this user */
};
int s3_kit_open(struct s3_kit *kit, const char *endpoint);
void s3_kit_close(struct s3_kit *kit);
/* "/bucket/name" of an entry. */
void s3_kit_path(const struct s3_kit *kit, const struct kv_shape *shape, uint64_t seed,
                 char path[TSRI_S3_URL_BYTES]);
/* Until the bucket has been listed that often. */
bool s3_kit_listed(const struct s3_kit *kit, uint32_t n, uint32_t ms);

#endif
