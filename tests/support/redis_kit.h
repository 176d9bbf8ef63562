/* redis_kit.h - real servers for tests and benches, each in a directory of its own, listening on
 * loopback and on a Unix socket there and nowhere else, and gone with the process that started it.
 * Entries are put and got by their seeds. */
#ifndef TSRI_REDIS_KIT_H
#define TSRI_REDIS_KIT_H

#include "support/kv_tier.h"
#include "support/tmpdir.h"
#include "redis/redis.h"

#include <sys/types.h>

/* The line to skip with, or NULL when there is a server to start. */
const char *redis_kit_missing(void);

struct redis_server {
    struct tmpdir dir;
    pid_t pid; /* 0: not running */
    int port;
    char tcp[64], unix_[300]; /* addresses */
    const char *args[16];     /* more arguments, ended by NULL */
};

/* A fresh, empty server; more: its arguments besides the usual ones, ended by NULL. Stops the
 * program when it does not come up. */
void redis_server_init(struct redis_server *s, const char *const *more);
void redis_server_fini(struct redis_server *s);
/* Kills it without a goodbye; starts it again in the same place. */
void redis_server_kill(struct redis_server *s);
void redis_server_start(struct redis_server *s);
/* A command by redis-cli's protocol on a connection of its own; "+..", "-..", ":..", "$value" or ""
 * when nothing answered. */
const char *redis_server_do(const struct redis_server *s, const char *const *args);
#define REDIS_DO(server, ...) redis_server_do(server, (const char *const[]){__VA_ARGS__, NULL})

/* Tiers on such servers. */
struct redis_kit {
    struct tsri_redis_setup setup;
    struct tsr_tier *tier;
    uint32_t n_threads;
    const char *tenant; /* NULL: this user */
};
int redis_kit_open(struct redis_kit *kit, const char *address);
void redis_kit_close(struct redis_kit *kit);
/* Names of an entry's record (part TSRI_REDIS_RECORD) and, by what the record says, of its parts.
 */
void redis_kit_name(struct redis_kit *kit, const struct redis_server *s,
                    const struct kv_shape *shape, uint64_t seed, uint32_t part,
                    char name[TSRI_REDIS_NAME_BYTES]);

#endif
