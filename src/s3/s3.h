/* s3.h - the parts of the s3 tier, for its own files and their tests.
 *
 *   s3_names.c   where an object is: endpoint, bucket and name as a URL
 *   s3_login.c   keys from the configuration, the environment or a file
 *   s3_text.c    what a server writes: lists, upload ids, error codes, ranges
 *   s3_libraries.c  libcurl and expat, loaded when they are needed
 *   s3_http.c    requests, carried out by one thread that drives libcurl
 *   s3_index.c   which objects there are, as far as is known here
 *   s3_flow.c    runs of requests on behalf of one caller, and what their answers mean
 *   s3_get.c     get, contains and scan
 *   s3_put.c     put and drop
 *   s3_upkeep.c  asks a server that is down whether it is back, and lists the bucket
 *   s3.c         the table of operations, open and close
 *
 * An entry is one object, PREFIX/TENANT/SPACE/KEY: its record (parcel.h) and behind it its KV. A
 * server makes an object visible when all of it is there, so a reader sees all of one writer or
 * nothing; an object that is replaced between two ranges of one read is told by its ETag. libcurl
 * signs every request (CURLOPT_AWS_SIGV4); bodies are not part of the signature, they carry
 * checksums.
 *
 * Threads: a lane belongs to one caller between take and give; the index and the client may be used
 *          by any.
 * Memory:  a request and everything it points to stays in place until it has been answered.
 * Errors:  enum tsr_err. No message and no log line holds a key.
 */
#ifndef TSRI_S3_H
#define TSRI_S3_H

#include "config/config.h"
#include "tier/parcel.h"

#include <curl/curl.h>
#include <expat.h>

#define TSRI_S3_PREFIX_MAX 64u
#define TSRI_S3_DIR_MAX (TSRI_S3_PREFIX_MAX + 1 + TSRI_TENANT_MAX) /* PREFIX/TENANT */
#define TSRI_S3_NAME_BYTES 240u   /* that, space, key and what joins them */
#define TSRI_S3_BASE_BYTES 512u   /* endpoint and bucket */
#define TSRI_S3_URL_BYTES 4096u   /* and a name or a token */
#define TSRI_S3_TOKEN_BYTES 1024u /* page tokens, upload ids; longer ones are refused */
#define TSRI_S3_ETAG_BYTES 80u
#define TSRI_S3_CODE_BYTES 64u
#define TSRI_S3_REPLY_MAX ((size_t)2 << 20) /* a list of 1000 names is a quarter of this */
#define TSRI_S3_REQS 64u                    /* requests a lane has under way */
#define TSRI_S3_JOBS 8u                     /* entries a lane has under way */

/* ---- s3_names.c ---- */

/* What objects' URLs begin with: "https://bucket.s3.eu-central-1.amazonaws.com" or, in path style,
 * "http://10.0.0.1:8333/bucket". endpoint "": Amazon's of the region. TSR_ECONFIG. */
TSR_MUST int tsri_s3_base(char out[TSRI_S3_BASE_BYTES], const char *endpoint, const char *region,
                          const char *bucket, bool path_style);
TSR_MUST int tsri_s3_check_prefix(const char *prefix);
void tsri_s3_name(char name[TSRI_S3_NAME_BYTES], const char *dir, const uint8_t space[16],
                  const struct tsr_key *key);
/* The space and key of a name that is an entry's in dir; false for other names. */
bool tsri_s3_is_entry(const char *name, const char *dir, uint8_t space[16], struct tsr_key *key);
/* Text as it stands in a query: everything but letters, digits and -_.~ as %XX. False when there is
 * no room. */
bool tsri_s3_escape(char *out, size_t out_bytes, const char *text);

/* ---- s3_login.c ---- */

struct tsri_s3_login {
    char *access_key, *secret_key, *token; /* NULL: none; without the first nothing is signed */
};
/* The keys given, else those of the file, else AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
 * AWS_SESSION_TOKEN. TSR_EPERM for a file that others may read. */
TSR_MUST int tsri_s3_login_init(struct tsri_s3_login *l, const char *access_key,
                                const char *secret_key, const char *token, const char *file);
void tsri_s3_login_fini(struct tsri_s3_login *l);
/* The section [profile] of a credentials file's text; 0, TSR_ECONFIG or TSR_ENOMEM. */
TSR_MUST int tsri_s3_login_read(struct tsri_s3_login *l, const char *text, size_t bytes,
                                const char *profile);

/* ---- s3_libraries.c ---- */

#define TSRI_S3_CURL_LIBRARY "libcurl.so.4"
#define TSRI_S3_CURL_VERSION 0x075500u /* 7.85: signatures as they should be, safe in threads */
/* clang-format off */
#define TSRI_S3_CURL_FUNCTIONS(X) \
    X(version_info) X(global_init) X(global_cleanup) X(slist_append) X(slist_free_all) \
    X(easy_init) X(easy_reset) X(easy_cleanup) X(easy_setopt) X(easy_getinfo) X(easy_strerror) \
    X(multi_init) X(multi_cleanup) X(multi_setopt) X(multi_add_handle) X(multi_remove_handle) \
    X(multi_perform) X(multi_poll) X(multi_wakeup) X(multi_info_read)
/* clang-format on */

/* curl_easy_init is curl->easy_init. */
struct tsri_s3_curl {
#define X(name) __typeof__(curl_##name) *name;
    TSRI_S3_CURL_FUNCTIONS(X)
#undef X
};
#define TSRI_S3_EXPAT_LIBRARY "libexpat.so.1"
/* clang-format off */
#define TSRI_S3_EXPAT_FUNCTIONS(X) \
    X(ExpatVersion) X(ParserCreate) X(ParserFree) X(SetUserData) X(SetElementHandler) \
    X(SetCharacterDataHandler) X(SetStartDoctypeDeclHandler) X(StopParser) X(Parse)
/* clang-format on */

/* XML_Parse is expat->Parse. */
struct tsri_s3_expat {
#define X(name) __typeof__(XML_##name) *name;
    TSRI_S3_EXPAT_FUNCTIONS(X)
#undef X
};
/* TSR_EUNSUP when there is no such library, or an old one. */
TSR_MUST int tsri_s3_curl_load(struct tsri_s3_curl *curl, const char *path);
TSR_MUST int tsri_s3_expat_load(struct tsri_s3_expat *expat, const char *path);

/* ---- s3_text.c ---- */

typedef void (*tsri_s3_object_fn)(void *arg, const char *name, uint64_t bytes);
/* A page of ListObjectsV2. Names that do not fit TSRI_S3_NAME_BYTES are none of ours and left out.
 * token: of the next page, "" when this is the last. How many objects, or TSR_ECORRUPT. */
TSR_MUST int tsri_s3_read_list(const struct tsri_s3_expat *expat, const char *text, size_t bytes,
                               tsri_s3_object_fn fn, void *arg, char token[TSRI_S3_TOKEN_BYTES]);
/* The text of the first element of that name; false when there is none before the text ends or is
 * no XML, it holds other elements, or does not fit. */
bool tsri_s3_element(const struct tsri_s3_expat *expat, const char *text, size_t bytes,
                     const char *name, char *out, size_t out_bytes);
/* "bytes 0-9/100"; false for anything else. end is behind the last byte. */
bool tsri_s3_content_range(const char *text, struct tsri_extent *extent, uint64_t *total);

/* ---- s3_http.c ---- */

enum tsri_s3_http_method {
    TSRI_S3_HTTP_GET,
    TSRI_S3_HTTP_HEAD,
    TSRI_S3_HTTP_PUT,
    TSRI_S3_HTTP_POST,
    TSRI_S3_HTTP_DELETE
};

enum tsri_s3_http_end {
    TSRI_S3_HTTP_ANSWERED,  /* status says how */
    TSRI_S3_HTTP_UNREACHED, /* nobody took the connection */
    TSRI_S3_HTTP_BROKEN,    /* the connection broke, or the answer is none */
    TSRI_S3_HTTP_SILENT,    /* nothing moved for too long */
    TSRI_S3_HTTP_LATE,      /* its deadline has passed */
    TSRI_S3_HTTP_CANCELLED,
};

struct tsri_s3_http;
struct tsri_s3_http_batch;
/* A request and its answer. The owner fills the first part and keeps it in place until it comes
 * back from tsri_s3_http_next. */
struct tsri_s3_http_req {
    enum tsri_s3_http_method method;
    char url[TSRI_S3_URL_BYTES];
    struct tsri_extent range; /* of a GET; end 0: all of it */
    /* The body of a PUT or POST, the one and then the other. */
    struct tsri_stream bodies[2];
    /* Where the body of an answer goes, the one and then the other. A longer one breaks it off. */
    struct tsri_stream sinks[2];
    uint64_t deadline_ns; /* 0: none */
    struct tsri_s3_http_batch *batch;
    uint32_t number;
    void *arg;
    /* the answer */
    enum tsri_s3_http_end end;
    long status;
    uint64_t bytes; /* of the body, that went to the sinks */
    uint64_t total; /* of the object */
    char etag[TSRI_S3_ETAG_BYTES];
    char why[160];   /* in a few words, where something went wrong */
    char text[1024]; /* of an answer that is an error */
    size_t text_bytes;
    /* the client's */
    struct tsri_s3_http *http;
    struct tsri_s3_http_req *next;
    CURL *easy;
    struct tsri_stream sent[2];
    struct tsri_extent got; /* as Content-Range says */
    uint64_t active_ns;
    bool wrong; /* not what was asked for */
    _Atomic bool cancelled;
};
/* Where a caller's requests come back. */
struct tsri_s3_http_batch {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct tsri_s3_http_req *done;
};
void tsri_s3_http_batch_init(struct tsri_s3_http_batch *b);
void tsri_s3_http_batch_fini(struct tsri_s3_http_batch *b);

struct tsri_s3_http_setup {
    const struct tsri_s3_login *login; /* borrowed as long as the client is open */
    const char *region, *ca_file;
    uint32_t connections, timeout_ms;
    struct tsri_throttle *throttle; /* borrowed */
};
TSR_MUST int tsri_s3_http_open(struct tsri_s3_http **out, const struct tsri_s3_http_setup *setup);
/* What answers are read with, as long as the client is open. */
const struct tsri_s3_expat *tsri_s3_http_expat(const struct tsri_s3_http *h);
/* Accepts NULL. Nothing may be under way. in_child: the thread is the parent's, and so are the
 * connections: only memory is freed that no other thread may hold. */
void tsri_s3_http_close(struct tsri_s3_http *h, bool in_child);
void tsri_s3_http_send(struct tsri_s3_http *h, struct tsri_s3_http_req *req);
/* Waits for one of the batch's requests; somebody must have sent one. It does not wait for ever:
 * each ends at its deadline, or when nothing moves. */
struct tsri_s3_http_req *tsri_s3_http_next(struct tsri_s3_http_batch *b);
/* Soon, with TSRI_S3_HTTP_CANCELLED, unless it ends otherwise before. */
void tsri_s3_http_cancel(struct tsri_s3_http *h, struct tsri_s3_http_req *req);

/* ---- s3_index.c ---- */

/* Which objects are known to be there: written or met by this cache, or listed. Grows up to a
 * limit, beyond which nothing is added: what is not known is asked for. */
struct tsri_s3_index {
    pthread_mutex_t lock;
    struct tsri_s3_known {
        uint64_t tag[2]; /* of key and space; both 0: free */
        uint64_t bytes;
        uint32_t listing; /* the last one before it was known to be there */
    } * table;            /* open addressing, a power of two */
    uint64_t mask, n, n_max, bytes;
    uint32_t listing;
};
void tsri_s3_index_init(struct tsri_s3_index *x, uint64_t n_max);
void tsri_s3_index_fini(struct tsri_s3_index *x);
void tsri_s3_index_add(struct tsri_s3_index *x, const struct tsr_key *key, const uint8_t space[16],
                       uint64_t bytes);
void tsri_s3_index_remove(struct tsri_s3_index *x, const struct tsr_key *key,
                          const uint8_t space[16]);
bool tsri_s3_index_has(struct tsri_s3_index *x, const struct tsr_key *key, const uint8_t space[16]);
/* A listing of everything begins; it has ended, complete: what it did not name and was not added
 * since it began is gone. */
void tsri_s3_index_begin(struct tsri_s3_index *x);
void tsri_s3_index_end(struct tsri_s3_index *x);

/* ---- the tier ---- */

/* What one caller works with. */
struct tsri_s3_lane {
    bool taken;
    struct tsri_s3_http_batch batch;
    struct tsri_s3_http_req *reqs; /* TSRI_S3_REQS */
    struct tsri_s3_http_req *free;
    struct tsri_region records[TSRI_S3_JOBS], reply;
};

/* What env.arg may point to: overrides the configuration; tests use it. Zero: as configured. */
struct tsri_s3_setup {
    const char *endpoint, *bucket, *region, *prefix;
    const char *access_key, *secret_key, *token, *credentials_file, *ca_file;
    uint32_t path_style; /* 1: yes, 2: no */
    uint32_t connections, timeout_ms, absent_ms, list_s, index_max;
    uint64_t part_bytes, upload_bytes, bytes_per_s;
};

struct tsri_s3 {
    struct tsr_tier base; /* first */
    struct tsri_fork_guard guard;
    char url[TSRI_S3_BASE_BYTES];
    char *dir; /* PREFIX/TENANT: what names begin with */
    struct tsri_s3_login login;
    uint32_t connections, timeout_ms, list_s;
    uint64_t part_bytes, upload_bytes; /* of a range that is read, of a part that is written */
    bool read_only, path_style;
    struct tsri_s3_http *http;
    struct tsri_s3_index index;
    struct tsri_absent absent;
    struct tsri_throttle throttle;
    struct tsri_breaker reach;  /* open: the server does not answer, or refuses us */
    struct tsri_breaker writes; /* open: it takes no writes now */

    pthread_mutex_t lock; /* lanes */
    pthread_cond_t freed;
    struct tsri_s3_lane *lanes;
    uint32_t n_lanes;

    pthread_t upkeep;
    bool has_upkeep, closing; /* closing: under upkeep_lock */
    pthread_mutex_t upkeep_lock;
    pthread_cond_t upkeep_more;
    _Atomic uint32_t n_listings; /* complete */

    _Atomic uint64_t nonce;
    _Atomic uint64_t read_bytes, written_bytes, errors, corrupt, n_requests;
};

/* ---- s3_flow.c ---- */

/* Whether it is worth trying at all: 0, TSR_EFORK, or TSR_EIO while the server is down. */
TSR_MUST int tsri_s3_usable(struct tsri_s3 *s);
/* One for each caller, and one for upkeep. */
TSR_MUST int tsri_s3_lanes_init(struct tsri_s3 *s, uint32_t n);
void tsri_s3_lanes_fini(struct tsri_s3 *s);
/* Waits for a lane; NULL after the deadline (0: none). */
struct tsri_s3_lane *tsri_s3_lane_take(struct tsri_s3 *s, uint64_t deadline_ns);
void tsri_s3_lane_give(struct tsri_s3 *s, struct tsri_s3_lane *lane);
/* When a call that has no deadline of its own must have been answered. */
uint64_t tsri_s3_deadline(const struct tsri_s3 *s);

/* A request, cleared; its URL that of an entry. */
void tsri_s3_req_entry(const struct tsri_s3 *s, struct tsri_s3_http_req *req,
                       enum tsri_s3_http_method method, const struct tsr_key *key,
                       const uint8_t space[16]);
/* What an answer means: 0 for 2xx, else enum tsr_err. Tells the breakers. */
TSR_MUST int tsri_s3_error(struct tsri_s3 *s, const struct tsri_s3_http_req *req);
/* One request, which is lane->free, and waits for its answer. */
TSR_MUST int tsri_s3_ask(struct tsri_s3 *s, struct tsri_s3_lane *lane,
                         struct tsri_s3_http_req *req);

enum tsri_s3_make { TSRI_S3_MADE, TSRI_S3_LATER, TSRI_S3_END };
/* A run of requests, some under way at once. */
struct tsri_s3_flow {
    struct tsri_s3 *s;
    struct tsri_s3_lane *lane;
    uint32_t window;
    void *arg;
    /* Fills the next request. LATER: only after another was answered. END: there are no more. */
    enum tsri_s3_make (*make)(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req);
    void (*answered)(struct tsri_s3_flow *flow, struct tsri_s3_http_req *req);
};
void tsri_s3_flow_run(struct tsri_s3_flow *flow);
/* Those under way whose arg it is need not go on. */
void tsri_s3_flow_cancel(struct tsri_s3_flow *flow, const void *arg);

/* ---- s3_get.c, s3_put.c, s3_upkeep.c ---- */

int tsri_s3_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
int tsri_s3_contains(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n,
                     uint8_t *found);
int tsri_s3_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg);
int tsri_s3_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n);
int tsri_s3_drop(struct tsr_tier *tier, const struct tsr_tier_ref *refs, size_t n);
/* One page of the names in dir; token: of this page in, of the next out. */
TSR_MUST int tsri_s3_list_page(struct tsri_s3 *s, struct tsri_s3_lane *lane, uint32_t n_max,
                               char token[TSRI_S3_TOKEN_BYTES], tsri_s3_object_fn fn, void *arg);
/* The server failed once more: tells the breaker and, where it opens, the thread that asks when it
 * is back. */
void tsri_s3_failed(struct tsri_s3 *s, bool no_doubt, const char *why);
TSR_MUST int tsri_s3_upkeep_start(struct tsri_s3 *s);
void tsri_s3_upkeep_stop(struct tsri_s3 *s);

#endif
