/* s3_stub.c - a small, faulty S3 server: a thread that accepts, and one for each connection. */
#include "support/s3_stub.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_MAX 16384
#define BODY_MAX ((size_t)256 << 20)

struct link {
    struct s3_stub *stub;
    int fd;
};

struct request {
    char method[8], path[1024], query[4096];
    bool has_range, close;
    unsigned long long begin, end; /* the last byte */
    uint8_t *body;
    size_t body_bytes;
};

/* ---- bytes in and out ---- */

/* Waits for bytes, a little at a time so that the stub can be stopped. */
static bool wait_readable(const struct link *l)
{
    while (!atomic_load(&l->stub->stop)) {
        struct pollfd p = {.fd = l->fd, .events = POLLIN};
        int n = poll(&p, 1, 20);
        if (n != 0) return n > 0;
    }
    return false;
}

static bool read_all(const struct link *l, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        if (!wait_readable(l)) return false;
        ssize_t n = recv(l->fd, (uint8_t *)to + done, bytes - done, 0);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool send_all(const struct link *l, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(l->fd, (const uint8_t *)from + done, bytes - done, MSG_NOSIGNAL);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* The head of a request, byte by byte: what follows belongs to its body. */
static bool read_head(const struct link *l, char *head)
{
    size_t n = 0;
    while (n + 1 < HEAD_MAX) {
        if (!read_all(l, head + n, 1)) return false;
        head[++n] = '\0';
        if (n >= 4 && strcmp(head + n - 4, "\r\n\r\n") == 0) return true;
    }
    return false;
}

static const char *header(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = strstr(head, "\r\n"); at; at = strstr(at, "\r\n")) {
        at += 2;
        if (strncasecmp(at, name, n) == 0 && at[n] == ':') return at + n + 1 + (at[n + 1] == ' ');
    }
    return NULL;
}

static bool read_request(const struct link *l, struct request *r)
{
    char head[HEAD_MAX], target[HEAD_MAX / 2];
    memset(r, 0, sizeof *r);
    if (!read_head(l, head)) return false;
    if (sscanf(head, "%7s %8191s", r->method, target) != 2) return false;
    const char *question = strchr(target, '?');
    size_t n = question ? (size_t)(question - target) : strlen(target);
    snprintf(r->path, sizeof r->path, "%.*s", (int)n, target);
    if (question) snprintf(r->query, sizeof r->query, "%s", question + 1);
    const char *range = header(head, "Range"), *length = header(head, "Content-Length");
    r->has_range = range && sscanf(range, "bytes=%llu-%llu", &r->begin, &r->end) == 2;
    r->body_bytes = length ? strtoull(length, NULL, 10) : 0;
    if (r->body_bytes > BODY_MAX) return false;
    if (r->body_bytes && header(head, "Expect") &&
        !send_all(l, "HTTP/1.1 100 Continue\r\n\r\n", 25))
        return false;
    r->body = malloc(r->body_bytes + 1);
    return read_all(l, r->body, r->body_bytes);
}

/* ---- answers ---- */

static bool answer(const struct link *l, int status, const char *more, const void *body,
                   size_t bytes, bool with_body)
{
    char head[1024];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%s\r\n", status,
                     bytes, more);
    return send_all(l, head, (size_t)n) && (!with_body || send_all(l, body, bytes));
}

static bool answer_text(const struct link *l, const struct request *r, int status, const char *text)
{
    return answer(l, status, "", text, strlen(text), strcmp(r->method, "HEAD") != 0);
}

static bool answer_error(const struct link *l, const struct request *r, int status,
                         const char *code)
{
    char text[256];
    snprintf(text, sizeof text,
             "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>to order</Message></Error>",
             code);
    return answer_text(l, r, status, text);
}

/* The lock is held. */
static struct s3_stub_object *find(struct s3_stub *s, const char *name)
{
    for (int i = 0; i < S3_STUB_OBJECTS; i++)
        if (s->objects[i].data && strcmp(s->objects[i].name, name) == 0) return &s->objects[i];
    return NULL;
}

static void set_object(struct s3_stub *s, const char *name, uint8_t *data, size_t bytes)
{
    struct s3_stub_object *o = find(s, name);
    for (int i = 0; !o && i < S3_STUB_OBJECTS; i++)
        if (!s->objects[i].data) o = &s->objects[i];
    if (!o) abort();
    free(o->data);
    snprintf(o->name, sizeof o->name, "%s", name);
    o->data = data;
    o->bytes = bytes;
    o->version = ++s->n_versions;
}

/* A copy of an object's bytes [begin, end], what there is of them. */
static uint8_t *copy_range(struct s3_stub *s, struct request *r, size_t *bytes, size_t *total,
                           uint32_t *version)
{
    uint8_t *copy = NULL;
    pthread_mutex_lock(&s->lock);
    const struct s3_stub_object *o = find(s, r->path);
    if (o) {
        if (!r->has_range) r->begin = 0, r->end = o->bytes ? o->bytes - 1 : 0;
        if (r->end >= o->bytes) r->end = o->bytes - 1;
        *bytes = r->begin < o->bytes ? (size_t)(r->end - r->begin + 1) : 0;
        *total = o->bytes;
        *version = o->version;
        copy = malloc(*bytes + 1);
        if (*bytes) memcpy(copy, o->data + r->begin, *bytes);
    }
    pthread_mutex_unlock(&s->lock);
    return copy;
}

static bool get(const struct link *l, struct request *r, enum s3_fault fault)
{
    struct s3_stub *s = l->stub;
    size_t bytes = 0, total = 0;
    uint32_t version = 0;
    bool head = strcmp(r->method, "HEAD") == 0;
    if (fault == S3_NO_RANGE) r->has_range = false;
    uint8_t *copy = copy_range(s, r, &bytes, &total, &version);
    if (!copy) return answer_error(l, r, 404, "NoSuchKey");
    if (r->has_range && bytes == 0) {
        free(copy);
        return answer_error(l, r, 416, "InvalidRange");
    }
    if (fault == S3_REPLACED) {
        pthread_mutex_lock(&s->lock);
        version = ++s->n_versions;
        pthread_mutex_unlock(&s->lock);
    }
    char more[256], range[128] = "";
    unsigned long long shift = fault == S3_OTHER_RANGE ? 1 : 0;
    if (r->has_range)
        snprintf(range, sizeof range, "Content-Range: bytes %llu-%llu/%llu\r\n", r->begin + shift,
                 r->end + shift, total + shift);
    snprintf(more, sizeof more, "ETag: \"v%u\"\r\n%s", version, range);
    if (fault == S3_FLIP && bytes) copy[bytes / 2] ^= 4;
    bool alive = answer(l, r->has_range ? 206 : 200, more, copy, bytes, false);
    if (!head && alive) alive = send_all(l, copy, fault == S3_CUT ? bytes / 2 : bytes);
    free(copy);
    return alive && fault != S3_CUT;
}

static bool list(const struct link *l, const struct request *r)
{
    struct s3_stub *s = l->stub;
    char *text = malloc((size_t)1 << 20);
    const char *token = strstr(r->query, "continuation-token=");
    bool again = atomic_load(&s->fault) == S3_SAME_LIST;
    int first = token && !again ? atoi(token + strlen("continuation-token=")) : 0;
    int n_max = atomic_load(&s->page_names) ? atomic_load(&s->page_names) : 1000, n = 0, i;
    size_t at = (size_t)sprintf(text, "<?xml version=\"1.0\"?>\n<ListBucketResult>");
    pthread_mutex_lock(&s->lock);
    for (i = first; i < S3_STUB_OBJECTS && n < n_max; i++) {
        const struct s3_stub_object *o = &s->objects[i];
        const char *name = strchr(o->name + (o->name[0] == '/'), '/'); /* behind the bucket */
        if (!o->data || !name) continue;
        at += (size_t)sprintf(text + at,
                              "<Contents><Key>%s</Key><ETag>&quot;v%u&quot;</ETag>"
                              "<Size>%zu</Size></Contents>",
                              name + 1, o->version, o->bytes);
        n++;
    }
    pthread_mutex_unlock(&s->lock);
    at += (size_t)sprintf(text + at, "<IsTruncated>%s</IsTruncated>",
                          i < S3_STUB_OBJECTS ? "true" : "false");
    if (i < S3_STUB_OBJECTS)
        at += (size_t)sprintf(text + at, "<NextContinuationToken>%d</NextContinuationToken>", i);
    if (atomic_load(&s->fault) != S3_BAD_LIST) sprintf(text + at, "</ListBucketResult>");
    bool alive = answer_text(l, r, 200, text);
    free(text);
    return alive;
}

/* ---- uploads in parts ---- */

static struct s3_stub_upload *upload_of(struct s3_stub *s, const char *query)
{
    const char *at = strstr(query, "uploadId=");
    uint32_t id = at ? (uint32_t)atoi(at + 9) : 0;
    for (int i = 0; id && i < S3_STUB_UPLOADS; i++)
        if (s->uploads[i].id == id) return &s->uploads[i];
    return NULL;
}

static void free_upload(struct s3_stub_upload *u)
{
    for (int i = 0; i < S3_STUB_PARTS; i++)
        free(u->parts[i]);
    memset(u, 0, sizeof *u);
}

static bool begin_upload(const struct link *l, const struct request *r)
{
    struct s3_stub *s = l->stub;
    uint32_t id = 0;
    char text[256];
    pthread_mutex_lock(&s->lock);
    for (int i = 0; !id && i < S3_STUB_UPLOADS; i++)
        if (!s->uploads[i].id) id = s->uploads[i].id = ++s->n_versions;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&s->n_uploads, 1);
    snprintf(text, sizeof text,
             "<InitiateMultipartUploadResult><UploadId>%u</UploadId>"
             "</InitiateMultipartUploadResult>",
             id);
    return answer_text(l, r, 200, text);
}

static bool put_part(const struct link *l, struct request *r)
{
    struct s3_stub *s = l->stub;
    const char *at = strstr(r->query, "partNumber=");
    int part = at ? atoi(at + 11) - 1 : -1;
    pthread_mutex_lock(&s->lock);
    struct s3_stub_upload *u = upload_of(s, r->query);
    bool right = u && part >= 0 && part < S3_STUB_PARTS;
    if (right) {
        free(u->parts[part]);
        u->parts[part] = r->body;
        u->bytes[part] = r->body_bytes;
        r->body = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    if (!right) return answer_error(l, r, 404, "NoSuchUpload");
    return answer(l, 200, "ETag: \"part\"\r\n", "", 0, true);
}

static bool end_upload(const struct link *l, const struct request *r, enum s3_fault fault)
{
    struct s3_stub *s = l->stub;
    if (fault == S3_LATE_ERROR) return answer_error(l, r, 200, "InternalError");
    pthread_mutex_lock(&s->lock);
    struct s3_stub_upload *u = upload_of(s, r->query);
    if (u) {
        size_t bytes = 0, at = 0;
        for (int i = 0; i < S3_STUB_PARTS; i++)
            bytes += u->bytes[i];
        uint8_t *data = malloc(bytes + 1);
        for (int i = 0; i < S3_STUB_PARTS; i++)
            if (u->bytes[i]) {
                memcpy(data + at, u->parts[i], u->bytes[i]);
                at += u->bytes[i];
            }
        free_upload(u);
        set_object(s, r->path, data, bytes);
    }
    pthread_mutex_unlock(&s->lock);
    return u ? answer_text(l, r, 200, "<CompleteMultipartUploadResult/>")
             : answer_error(l, r, 404, "NoSuchUpload");
}

static bool delete_one(const struct link *l, const struct request *r)
{
    struct s3_stub *s = l->stub;
    pthread_mutex_lock(&s->lock);
    struct s3_stub_upload *u = upload_of(s, r->query);
    struct s3_stub_object *o = u ? NULL : find(s, r->path);
    if (u) {
        free_upload(u);
        atomic_fetch_add(&s->n_aborts, 1);
    }
    if (o) {
        free(o->data);
        o->data = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return answer(l, 204, "", "", 0, true);
}

/* ---- the server ---- */

/* The fault of this request, if it is its turn. */
static enum s3_fault fault_of(struct s3_stub *s, const struct request *r)
{
    char method = atomic_load(&s->method);
    if (method && method != r->method[0]) return S3_RIGHT;
    int n = atomic_load(&s->n_faults);
    if (n == 0) return S3_RIGHT;
    if (n > 0) atomic_fetch_sub(&s->n_faults, 1);
    return (enum s3_fault)atomic_load(&s->fault);
}

static bool serve(const struct link *l, struct request *r, enum s3_fault fault)
{
    struct s3_stub *s = l->stub;
    switch (r->method[0]) {
    case 'G':
        if (strstr(r->query, "list-type=2")) {
            atomic_fetch_add(&s->n_list, 1);
            return list(l, r);
        }
        atomic_fetch_add(&s->n_get, 1);
        return get(l, r, fault);
    case 'H':
        atomic_fetch_add(&s->n_head, 1);
        return get(l, r, fault);
    case 'P':
        if (r->method[1] == 'O')
            return strstr(r->query, "uploads=") ? begin_upload(l, r) : end_upload(l, r, fault);
        atomic_fetch_add(&s->n_put, 1);
        if (strstr(r->query, "partNumber=")) return put_part(l, r);
        pthread_mutex_lock(&s->lock);
        set_object(s, r->path, r->body, r->body_bytes);
        pthread_mutex_unlock(&s->lock);
        r->body = NULL;
        return answer(l, 200, "ETag: \"whole\"\r\n", "", 0, true);
    default:
        return delete_one(l, r);
    }
}

static bool serve_or_fail(const struct link *l, struct request *r)
{
    struct s3_stub *s = l->stub;
    enum s3_fault fault = fault_of(s, r);
    atomic_fetch_add(&s->n_requests, 1);
    switch (fault) {
    case S3_STATUS:
        return answer_error(l, r, atomic_load(&s->status), atomic_load(&s->code));
    case S3_HANG_UP:
        return false;
    case S3_NO_HTTP:
        (void)!send_all(l, "+OK hello, this is another protocol\r\n", 37);
        return false;
    case S3_SILENT:
        while (!atomic_load(&s->stop) && atomic_load(&s->fault) == S3_SILENT)
            usleep(5000);
        return false;
    default:
        return serve(l, r, fault);
    }
}

static void *serve_link(void *arg)
{
    struct link *l = arg;
    struct request r;
    bool alive = true;
    while (alive && wait_readable(l)) {
        alive = read_request(l, &r) && serve_or_fail(l, &r);
        free(r.body);
    }
    close(l->fd);
    atomic_fetch_sub(&l->stub->n_links, 1);
    free(l);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct s3_stub *s = arg;
    while (!atomic_load(&s->stop)) {
        struct pollfd p = {.fd = s->listen_fd, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0) continue;
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC), on = 1;
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct link *l = malloc(sizeof *l);
        *l = (struct link){s, fd};
        pthread_t thread;
        atomic_fetch_add(&s->n_links, 1);
        if (pthread_create(&thread, NULL, serve_link, l) != 0) abort();
        pthread_detach(thread);
    }
    return NULL;
}

void s3_stub_init(struct s3_stub *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    atomic_store(&s->code, "InternalError");
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(s->listen_fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(s->listen_fd, 64) != 0 ||
        getsockname(s->listen_fd, (struct sockaddr *)&a, &bytes) != 0)
        abort();
    s->port = ntohs(a.sin_port);
    snprintf(s->endpoint, sizeof s->endpoint, "http://127.0.0.1:%d", s->port);
    if (pthread_create(&s->thread, NULL, accept_all, s) != 0) abort();
}

void s3_stub_fini(struct s3_stub *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    while (atomic_load(&s->n_links))
        usleep(1000);
    close(s->listen_fd);
    for (int i = 0; i < S3_STUB_OBJECTS; i++)
        free(s->objects[i].data);
    for (int i = 0; i < S3_STUB_UPLOADS; i++)
        free_upload(&s->uploads[i]);
    pthread_mutex_destroy(&s->lock);
}

void s3_stub_fail(struct s3_stub *s, enum s3_fault fault, char method, int n)
{
    atomic_store(&s->method, method);
    atomic_store(&s->fault, (int)fault);
    atomic_store(&s->n_faults, n);
}

void s3_stub_heal(struct s3_stub *s)
{
    s3_stub_fail(s, S3_RIGHT, 0, 0);
}

void s3_stub_overwrite(struct s3_stub *s, const char *name, const void *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; !name && i < S3_STUB_OBJECTS; i++)
        if (s->objects[i].data) name = s->objects[i].name;
    if (!name) abort();
    char target[512];
    snprintf(target, sizeof target, "%s", name);
    set_object(s, target, copy, bytes);
    pthread_mutex_unlock(&s->lock);
}

uint32_t s3_stub_count(struct s3_stub *s)
{
    uint32_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < S3_STUB_OBJECTS; i++)
        n += s->objects[i].data != NULL;
    pthread_mutex_unlock(&s->lock);
    return n;
}
