/* remote.c - the program as a client of a server: one connection, one request after the other. It
 * speaks the protocol itself, because most of what it asks (which entries, which spaces) is nothing
 * that an engine would. */
#include "cli/remote.h"
#include "cli/store.h"

#include <unistd.h>

#define CONNECT_NS 2000000000u
#define ANSWER_NS 600000000000u /* a flush of a slow disk, a clear of all of it */
#define SPACES_TOLD 8u

static const char *socket_of(struct tsri_cli *cli)
{
    const char *given = tsri_cli_flag(cli, "connect");
    return given && given[0] ? given : tsr_config_get(cli->config, "server_socket");
}

int tsri_remote_path(struct tsri_cli *cli, char path[static TSRI_SOCKET_PATH_BYTES])
{
    return tsri_socket_path(socket_of(cli), path);
}

/* Does anybody listen there? Then it is worth waiting for an answer. */
static int look_for(struct tsri_cli *cli)
{
    char path[TSRI_SOCKET_PATH_BYTES];
    uint32_t owner;
    int fd = tsri_remote_path(cli, path);
    if (fd == 0) fd = tsri_socket_owner(tsri_config_options(cli->config)->server_owner, &owner);
    if (fd == 0) fd = tsri_socket_connect(path, owner);
    if (fd == TSR_EAGAIN) return tsri_fail(TSR_EAGAIN, "no server answers at %s", path);
    if (fd < 0) return fd;
    close(fd);
    return 0;
}

int tsri_remote_config(struct tsri_cli *cli)
{
    int status = tsri_cli_config(cli);
    if (!status) status = tsri_cli_check(look_for(cli));
    if (status) return status;
    if (tsr_config_set(cli->config, "server_socket", socket_of(cli)) < 0 ||
        tsr_config_set(cli->config, "owner", "daemon") < 0 ||
        tsr_config_set(cli->config, "server_deadline", "2000") < 0)
        return tsri_cli_failed();
    return 0;
}

int tsri_remote_try(struct tsri_remote *r, struct tsri_cli *cli)
{
    memset(r, 0, sizeof *r);
    int e = look_for(cli);
    if (e) return e;
    const struct tsri_options *o = tsri_config_options(cli->config);
    struct tsri_link_desc desc = {.path = socket_of(cli),
                                  .token = o->server_token,
                                  .patience_ms = (uint32_t)(ANSWER_NS / 1000000)};
    e = tsri_socket_owner(o->server_owner, &desc.owner);
    if (!e) e = tsri_link_open(&r->link, &desc);
    if (!e) e = tsri_link_await(r->link, tsri_now_ns() + CONNECT_NS);
    if (e) {
        tsri_remote_close(r);
        return e;
    }
    r->session = tsri_link_session(r->link);
    return 0;
}

int tsri_remote_open(struct tsri_remote *r, struct tsri_cli *cli)
{
    int status = tsri_cli_config(cli);
    memset(r, 0, sizeof *r);
    return status ? status : tsri_cli_check(tsri_remote_try(r, cli));
}

void tsri_remote_close(struct tsri_remote *r)
{
    tsri_link_close(r->link);
    memset(r, 0, sizeof *r);
}

struct tsri_request *tsri_remote_clear(struct tsri_request *q, uint16_t type)
{
    memset(q, 0, offsetof(struct tsri_request, extra));
    q->type = type;
    return q;
}

int tsri_remote_ask(struct tsri_remote *r, struct tsri_request *q, struct tsri_answer **out)
{
    uint64_t until_ns = tsri_now_ns() + ANSWER_NS;
    int n = tsri_link_start(r->link, r->session, q, until_ns, out);
    if (n == 0) n = tsri_link_wait(*out, until_ns);
    if (n >= 0) return n;
    if (n == TSR_EUNSUP)
        tsri_cli_fail("the server is too old for %s", tsri_wire_name(q->type));
    else
        tsri_cli_failed();
    tsri_link_end(*out);
    *out = NULL;
    return n;
}

int tsri_remote_call(struct tsri_remote *r, struct tsri_request *q)
{
    struct tsri_answer *a;
    int n = tsri_remote_ask(r, q, &a);
    tsri_link_end(a);
    return n;
}

/* ---- spaces ---- */

static int fail_spaces(const struct tsri_reply *reply, const char *why)
{
    char line[SPACES_TOLD * 10 + 8] = "", hex[9];
    for (uint32_t i = 0; i < reply->n && i < SPACES_TOLD; i++) {
        tsri_hex(hex, reply->spaces[i].fingerprint, 4);
        strcat(strcat(line, i ? ", " : " "), hex);
    }
    if (reply->n == 0) return tsri_cli_fail("the server has no spaces yet");
    return tsri_cli_fail("%s; choose one with --space:%s%s", why, line,
                         reply->n > SPACES_TOLD ? " ..." : "");
}

/* The one space that is meant, or NULL after having said why. */
static const struct tsri_wire_space_row *choose(const struct tsri_reply *reply, const char *hex)
{
    const struct tsri_wire_space_row *found = NULL;
    for (uint32_t i = 0; i < reply->n; i++) {
        char own[33];
        tsri_hex(own, reply->spaces[i].fingerprint, 16);
        if (hex && strncmp(own, hex, strlen(hex)) != 0) continue;
        if (found) {
            fail_spaces(reply, hex ? "several spaces match" : "the server has several spaces");
            return NULL;
        }
        found = &reply->spaces[i];
    }
    if (!found) fail_spaces(reply, "the server has no such space");
    return found;
}

int tsri_remote_space(struct tsri_remote *r, const char *hex, uint32_t *number, bool *bare)
{
    struct tsri_request q;
    struct tsri_answer *a;
    if (tsri_remote_ask(r, tsri_remote_clear(&q, TSRI_WIRE_SPACES), &a) < 0) return CLI_FAILED;
    const struct tsri_wire_space_row *row = choose(&a->reply, hex);
    if (row) {
        tsri_remote_clear(&q, TSRI_WIRE_SPACE_FIND);
        memcpy(q.fingerprint, row->fingerprint, sizeof q.fingerprint);
    }
    tsri_link_end(a);
    if (!row || tsri_remote_ask(r, &q, &a) < 0) return CLI_FAILED;
    *number = a->reply.space.space;
    *bare = a->reply.space.n_layers == 0;
    tsri_link_end(a);
    return 0;
}
