/* wire.h - what a client and the server of a store say to each other: frames over a Unix socket,
 * written down byte by byte in docs/format.md ("Wire").
 *
 * A frame is a head of 24 bytes and a body of a multiple of 8. Everything in a body stands on its
 * natural boundary, so that a decoded message points into the buffer it came in: tokens and keys
 * are not copied. Each body is described by one function that reads or writes, so the two sides
 * cannot differ. Decoding accepts exactly what encoding makes: fields that are not used and bytes
 * that only fill up are zero.
 *
 * Threads: no shared state; a codec belongs to who uses it.
 * Memory:  a decoded message borrows from the frame it was decoded from; an encoded one copies.
 * Errors:  TSR_EINVAL for bytes that are no message, TSR_ERANGE beyond a limit. Nothing is
 *          allocated here.
 */
#ifndef TSRI_WIRE_H
#define TSRI_WIRE_H

#include "base/base.h"
#include "chunk/chunk.h"

#include <sys/types.h>
#include <sys/uio.h>

/* ---- frames ---- */

#define TSRI_WIRE_MAGIC 0x57525354u /* "TSRW" */
#define TSRI_WIRE_VERSION_MIN 3u
#define TSRI_WIRE_VERSION_MAX 3u
#define TSRI_WIRE_VERSION_HELLO 1u /* in the head of a hello and its reply, for ever */
#define TSRI_WIRE_HEAD_BYTES 24u
/* What a server takes at most unless it says less: a prompt of 16 million tokens. */
#define TSRI_WIRE_BODY_MAX (64u << 20)
#define TSRI_WIRE_REPLY 0x8000u /* in the type of a reply */
#define TSRI_WIRE_QUIET 1       /* status of a request that wants no reply */

/* X(NAME, number, name). Numbers are never used again for something else. */
/* clang-format off */
#define TSRI_WIRE_TYPES(X)                                                                         \
    X(HELLO,       1,  "hello")                                                                    \
    X(PING,        2,  "ping")                                                                     \
    X(SPACE_OPEN,  3,  "space_open")                                                               \
    X(SPACE_CLOSE, 4,  "space_close")                                                              \
    X(LOOKUP,      5,  "lookup")                                                                   \
    X(RETRIEVE,    6,  "retrieve")                                                                 \
    X(RELEASE,     7,  "release")                                                                  \
    X(STORE,       8,  "store")                                                                    \
    X(PUT_OPEN,    9,  "put_open")                                                                 \
    X(PUT_LAYERS,  10, "put_layers")                                                               \
    X(PUT_COMMIT,  11, "put_commit")                                                               \
    X(PUT_ABORT,   12, "put_abort")                                                                \
    X(KEYS,        13, "keys")                                                                     \
    X(CONTAINS,    14, "contains")                                                                 \
    X(PREFETCH,    15, "prefetch")                                                                 \
    X(PIN,         16, "pin")                                                                      \
    X(UNPIN,       17, "unpin")                                                                    \
    X(TOUCH,       18, "touch")                                                                    \
    X(CLEAR,       19, "clear")                                                                    \
    X(EVICT,       20, "evict")                                                                    \
    X(FREEZE,      21, "freeze")                                                                   \
    X(FLUSH,       22, "flush")                                                                    \
    X(STATS,       23, "stats")                                                                    \
    X(EVENTS,      24, "events")                                                                   \
    X(DISCOVER,    25, "discover")                                                                 \
    X(LIST,        26, "list")                                                                     \
    X(SPACES,      27, "spaces")                                                                   \
    X(SPACE_FIND,  28, "space_find")                                                               \
    X(WARM,        29, "warm")                                                                     \
    X(ORDER,       30, "order")                                                                    \
    X(EVICT_KEYS,  31, "evict_keys")
/* clang-format on */

enum tsri_wire_type {
#define TSRI_WIRE_ENUM(NAME, number, name) TSRI_WIRE_##NAME = number,
    TSRI_WIRE_TYPES(TSRI_WIRE_ENUM)
#undef TSRI_WIRE_ENUM
};

struct tsri_wire_head {
    uint16_t version, type;
    uint64_t id;         /* of the call; a reply has its request's */
    uint32_t body_bytes; /* a multiple of 8 */
    int32_t status;      /* request: 0 or TSRI_WIRE_QUIET; reply: a count, or enum tsr_err */
};

/* What stands in the head of a message of that type. */
static inline uint16_t tsri_wire_version(uint16_t type)
{
    return type == TSRI_WIRE_HELLO ? TSRI_WIRE_VERSION_HELLO : TSRI_WIRE_VERSION_MAX;
}

/* ---- frame.c ---- */

/* "lookup", also for its reply; NULL for a number that means nothing. */
const char *tsri_wire_name(uint16_t type);
/* Reads a head. TSR_EINVAL when this is no frame of ours: the stream cannot be followed any
 * further. The version is not judged here. */
TSR_MUST int tsri_wire_head_get(const uint8_t bytes[TSRI_WIRE_HEAD_BYTES],
                                struct tsri_wire_head *out);
void tsri_wire_head_put(const struct tsri_wire_head *head, uint8_t out[TSRI_WIRE_HEAD_BYTES]);

/* A message of which long arrays are sent from where they are, without being copied first. */
#define TSRI_WIRE_PARTS_MAX 12u
#define TSRI_WIRE_PART_BYTES 4096u /* shorter ones are copied */
struct tsri_wire_parts {
    struct iovec list[TSRI_WIRE_PARTS_MAX];
    uint32_t n;
    size_t left_out; /* bytes that are not in `out` */
    size_t begin;    /* in `out`: of the part that is being written */
};

/* Reads or writes one body; the functions below do either. `bad` sticks: what follows reads as
 * zero and writes nothing. */
struct tsri_wire {
    const uint8_t *in;             /* NULL: writing */
    uint8_t *out;                  /* NULL when writing: only the length is counted */
    struct tsri_wire_parts *parts; /* writing: or NULL, then everything is copied */
    size_t at, end;
    bool bad;
};
void tsri_wire_read_init(struct tsri_wire *w, const uint8_t *body, size_t bytes);
void tsri_wire_write_init(struct tsri_wire *w, uint8_t *body, size_t room);
/* True when everything was read, or everything fitted. */
bool tsri_wire_done(const struct tsri_wire *w);

void tsri_wire_u32(struct tsri_wire *w, uint32_t *v);
void tsri_wire_i32(struct tsri_wire *w, int32_t *v);
void tsri_wire_u64(struct tsri_wire *w, uint64_t *v);
/* A field that has no meaning yet. */
void tsri_wire_zero_u32(struct tsri_wire *w);
/* n elements, filled up to 8 bytes. Writing: copies them and returns `from`. Reading: returns where
 * they stand in the body, NULL for none. */
const void *tsri_wire_array(struct tsri_wire *w, const void *from, size_t n, size_t size);
#define TSRI_WIRE_ARRAY(w, field, n) ((field) = tsri_wire_array((w), (field), (n), sizeof *(field)))
/* Bad when v is beyond max, reading and writing. */
void tsri_wire_limit(struct tsri_wire *w, uint64_t v, uint64_t max);

/* ---- messages.c: requests ---- */

#define TSRI_WIRE_TOKEN_MAX 256u
#define TSRI_WIRE_SPACES_MAX 64u     /* of one lookup */
#define TSRI_WIRE_SEGMENTS_MAX 4096u /* of one prompt */
#define TSRI_WIRE_RECIPE_MAX 65536u
#define TSRI_WIRE_ITEMS_MAX 65536u /* of a retrieve, a release, a contains */
#define TSRI_WIRE_SPACE_ALL UINT32_MAX

struct tsri_wire_hello {
    uint32_t version_min, version_max;
    uint64_t staging_bytes; /* of the descriptor that comes along; 0: none */
    uint32_t token_bytes;
    const char *token; /* of the tenant; not ended by a zero */
};

/* Which rows of the client's staging area hold KV, as struct tsr_view does. */
struct tsri_wire_view {
    uint64_t offset, bytes, layer_stride, plane_stride, token_stride;
};

enum { TSRI_WIRE_LOOKUP_PREFETCH = 1 /* start bringing up what lower tiers have */ };
struct tsri_wire_lookup {
    uint64_t lease; /* 0: none */
    uint32_t n_spaces, matches_max, flags;
    const uint32_t *spaces;
};

/* struct tsr_match as it crosses the wire: a struct of its own, so that the public one may grow. */
struct tsri_wire_match {
    uint64_t entry, epoch;
    uint32_t prompt_offset, entry_offset, n_tokens;
    uint8_t kind, context, tier, verified;
    uint32_t base, freq_set;
    uint32_t entry_tokens; /* of the whole entry; 0: not told */
    uint8_t coverage;      /* how much of the entry this is; 0: not told */
    uint8_t edits;         /* found around frequent edits */
    uint8_t reserved[2];
};
void tsri_wire_match_put(const struct tsr_match *m, struct tsri_wire_match *out);
void tsri_wire_match_get(const struct tsri_wire_match *m, struct tsr_match *out);

/* One range to lend: part of a match. */
struct tsri_wire_want {
    struct tsri_wire_match match;
    uint32_t space, offset, n_tokens, reserved;
};
struct tsri_wire_retrieve {
    uint64_t lease; /* under which the entries are held; never 0 */
    uint32_t deadline_ms, n_wants, has_prompt;
    const struct tsri_wire_want *wants;
};

struct tsri_wire_put_layers {
    uint32_t put, layer_first, n_layers;
};

enum tsri_wire_stats_form {
    TSRI_WIRE_STATS_NUMBERS,
    TSRI_WIRE_STATS_PROMETHEUS,
    TSRI_WIRE_STATS_JSON,
    TSRI_WIRE_STATS_STATUS /* the server: its tenants, tiers and slow calls */
};

/* Any request. Which members mean something is in docs/format.md and in messages.c. */
struct tsri_request {
    uint16_t type;
    struct tsri_wire_hello hello;
    struct tsr_space_desc desc; /* SPACE_OPEN */
    uint32_t space;             /* by the number that SPACE_OPEN gave */
    struct tsr_prompt prompt;
    struct tsri_wire_lookup lookup;
    struct tsri_wire_retrieve retrieve;
    struct tsr_store_desc store; /* STORE, PUT_OPEN; its space and view are those below */
    struct tsri_wire_view view;
    struct tsri_wire_put_layers put;
    const uint64_t *ids; /* RELEASE */
    const struct tsr_key *keys;
    uint32_t n;   /* of ids or keys; KEYS, EVENTS, LIST, ORDER, EVICT_KEYS: how many at most */
    int32_t tier; /* CLEAR */
    uint32_t has_prompt;     /* CLEAR */
    uint64_t bytes;          /* EVICT, EVICT_KEYS, WARM */
    uint32_t value;          /* FREEZE, STATS; LIST, ORDER: where to go on */
    uint8_t fingerprint[16]; /* SPACE_FIND */
    /* Where prompt.extra or store.extra of a decoded request are. */
    struct tsr_extra extra[TSRI_EXTRA_ITEMS_MAX];
};

/* Decodes a body; it must lie on a boundary of 8. TSR_EUNSUP: a type unknown here. */
TSR_MUST int tsri_request_decode(struct tsri_request *r, uint16_t type, const uint8_t *body,
                                 size_t bytes);
/* Bytes of the whole frame. TSR_ERANGE with a message when the request is beyond a limit. */
TSR_MUST int tsri_request_bytes(struct tsri_request *r, size_t *bytes);
/* The whole frame into `out`, which has room for tsri_request_bytes. */
void tsri_request_encode(struct tsri_request *r, uint64_t id, int32_t status, uint8_t *out,
                         size_t bytes);

/* The same in parts, of which long arrays are the caller's own: small_bytes is the room that the
 * rest needs. */
TSR_MUST int tsri_request_parts_bytes(struct tsri_request *r, size_t *small_bytes);
void tsri_request_encode_parts(struct tsri_request *r, uint64_t id, int32_t status, uint8_t *out,
                               struct tsri_wire_parts *parts);

/* ---- replies.c ---- */

struct tsri_wire_welcome {
    uint32_t version;
    uint32_t slot; /* of the session, in the control page */
    uint64_t word; /* leases hold as long as the slot has it */
    uint64_t pool_bytes, control_bytes;
    uint32_t page_bytes, block_tokens;
    uint32_t body_max, leases_max, calls_max;
    uint32_t hash;    /* enum tsri_hash */
    uint64_t boot_id; /* another one: another server, or the same one started again */
    uint64_t n_lost;  /* as FLUSH says, by now */
};

struct tsri_wire_space {
    uint32_t space, block_tokens;
    uint8_t fingerprint[16];
    uint32_t n_layers, n_planes, row_bytes[2], cell_tokens, page_bytes;
};

/* An entry lent: pages of the cells that hold the range, as cells.c lays them out. */
struct tsri_wire_lent {
    int32_t result; /* 0, or why not */
    uint32_t entry_tokens, cell_first, n_pages;
    uint32_t base, freq_set;
};

/* A row of LIST and ORDER. `tiers`: bit t is set when tier t has it, 0 being host memory. */
struct tsri_wire_entry {
    uint64_t entry;
    uint8_t key[16], space[16];
    uint64_t bytes; /* of KV; 0: the size of a token is not known */
    uint32_t n_tokens, pins;
    uint16_t user_pins;
    uint8_t kind, tiers;
    uint32_t reserved;
};
#define TSRI_WIRE_LIST_END UINT32_MAX

/* A row of SPACES. */
struct tsri_wire_space_row {
    uint8_t fingerprint[16];
    char model[64];       /* its beginning; zeros behind it */
    uint64_t token_bytes; /* of KV; 0: seen in a tier only, not opened yet */
    uint32_t refs, entries;
};

struct tsri_reply {
    uint16_t type; /* of the request */
    int32_t status;
    /* status < 0 */
    uint32_t version_min, version_max; /* of the server */
    uint32_t text_bytes;               /* also of STATS */
    const char *text;                  /* not ended by a zero */
    /* else */
    struct tsri_wire_welcome welcome;
    struct tsri_wire_space space;
    uint32_t n_prefix_tokens, n_spaces, n; /* n: of what follows */
    const struct tsri_wire_match *matches; /* n rows of n_spaces */
    const struct tsri_wire_lent *lent;
    uint32_t n_pages;
    const uint32_t *pages;
    uint64_t n_lost;        /* FLUSH: entries, since the server started */
    uint32_t put, n_blocks; /* PUT_OPEN: n_blocks 0: all is there already, give no layers */
    const struct tsr_key *keys;
    const int8_t *tiers;
    const uint64_t *numbers; /* STATS: struct tsr_stats without its size */
    const struct tsr_event *events;
    const struct tsri_wire_entry *entries;
    uint32_t next; /* LIST, ORDER: where to go on, or TSRI_WIRE_LIST_END */
    const struct tsri_wire_space_row *spaces;
};

/* `type` as in the head, with TSRI_WIRE_REPLY. */
TSR_MUST int tsri_reply_decode(struct tsri_reply *r, const struct tsri_wire_head *head,
                               const uint8_t *body);
TSR_MUST int tsri_reply_bytes(struct tsri_reply *r, size_t *bytes);
void tsri_reply_encode(struct tsri_reply *r, uint64_t id, uint8_t *out, size_t bytes);

/* ---- socket.c ---- */

#define TSRI_SOCKET_PATH_BYTES 108
#define TSRI_SOCKET_FDS_MAX 4u

/* The option's path; without one, where a server of this user would be: below XDG_RUNTIME_DIR, in
 * /run for root, else in a folder of /tmp that bears the uid. */
TSR_MUST int tsri_socket_path(const char *option, char out[TSRI_SOCKET_PATH_BYTES]);
/* Option server_owner to a uid; ours when it is empty. */
TSR_MUST int tsri_socket_owner(const char *option, uint32_t *uid);
/* Is the folder of this socket one of theirs, and can nobody else write to it? TSR_EAGAIN: it is
 * not there. */
TSR_MUST int tsri_socket_check_folder(const char *path, const uint32_t *uids, uint32_t n);
/* A connected descriptor that does not block. TSR_EAGAIN: nobody there now. TSR_EPERM: folder or
 * server belong to somebody who is neither this user, nor root, nor `owner`. */
TSR_MUST int tsri_socket_connect(const char *path, uint32_t owner);
/* Room for large frames on their way. */
void tsri_socket_widen(int fd);
/* As sendmsg and recvmsg, never waiting; descriptors go with the first byte. Received ones are
 * added to fds[*n], at most `max` of them, and are the caller's; others are closed. */
ssize_t tsri_socket_send_fds(int fd, const void *data, size_t bytes, const int *fds, uint32_t n);
ssize_t tsri_socket_send_parts(int fd, const struct iovec *parts, uint32_t n);
ssize_t tsri_socket_recv_fds(int fd, void *data, size_t bytes, int *fds, uint32_t max, uint32_t *n);

#endif
