/* remote.h - a server's cache, for the commands that take --connect[=SOCKET].
 *
 * Threads: one.
 * Memory:  a reply is borrowed until tsri_link_end().
 * Errors:  as in cli.h, unless it says otherwise. */
#ifndef TSRI_CLI_REMOTE_H
#define TSRI_CLI_REMOTE_H

#include "cli/cli.h"
#include "served/link.h"

struct tsri_remote {
    struct tsri_link *link;
    uint64_t session;
};

/* Is the command about a server? */
static inline bool tsri_remote_wanted(const struct tsri_cli *cli)
{
    return tsri_cli_flag(cli, "connect") != NULL;
}
/* Sets what cli->config needs for tsr_cache_open to connect to that server. These give 0, or the
 * exit status after having said why. */
int tsri_remote_config(struct tsri_cli *cli);
/* Connects to the socket of --connect, of option server_socket, or where a server of this user
 * would be. */
int tsri_remote_open(struct tsri_remote *r, struct tsri_cli *cli);
/* The same after tsri_cli_config, without a word: enum tsr_err, with a message. */
TSR_MUST int tsri_remote_try(struct tsri_remote *r, struct tsri_cli *cli);
/* Where that socket is. */
TSR_MUST int tsri_remote_path(struct tsri_cli *cli, char path[static TSRI_SOCKET_PATH_BYTES]);
void tsri_remote_close(struct tsri_remote *r);

/* All but its room for extras, zeroed. */
struct tsri_request *tsri_remote_clear(struct tsri_request *q, uint16_t type);
/* Sends and waits. The status of the reply, which is tsri_link_end()ed by the caller; below 0 after
 * having said why, and then *out is NULL. */
int tsri_remote_ask(struct tsri_remote *r, struct tsri_request *q, struct tsri_answer **out);
/* The same where the status is everything. */
int tsri_remote_call(struct tsri_remote *r, struct tsri_request *q);
/* Opens the space whose fingerprint begins with these digits (NULL: the only one there is); 0, or
 * the exit status after having said why. *bare: only a tier knows it, so that it can be cleared and
 * nothing else. */
int tsri_remote_space(struct tsri_remote *r, const char *hex, uint32_t *number, bool *bare);

/* What `ls`, `evict`, `clear`, `warm` and `inspect` do with --connect. */
int tsri_server_ls(struct tsri_cli *cli);
int tsri_server_evict(struct tsri_cli *cli);
int tsri_server_clear(struct tsri_cli *cli);
int tsri_server_warm(struct tsri_cli *cli);
int tsri_server_inspect(struct tsri_cli *cli);

#endif
