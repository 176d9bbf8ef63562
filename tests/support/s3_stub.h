/* s3_stub.h - a small S3 server in the process of a test, with objects in memory and faults to
 * order: statuses, bodies that break off, answers to other questions, silence. It believes every
 * signature; whether they are right is what real servers are asked (s3_kit.h). */
#ifndef TSRI_S3_STUB_H
#define TSRI_S3_STUB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum s3_fault {
    S3_RIGHT,
    S3_STATUS,      /* `status`, and an error document */
    S3_CUT,         /* half of the body, then the connection is closed */
    S3_HANG_UP,     /* closes without an answer */
    S3_SILENT,      /* no answer at all, until it is healed */
    S3_NO_HTTP,     /* something else than HTTP */
    S3_NO_RANGE,    /* all of the object, with 200 */
    S3_OTHER_RANGE, /* the Content-Range of other bytes */
    S3_FLIP,        /* one bit of the body */
    S3_REPLACED,    /* another object each time: its ETag differs */
    S3_LATE_ERROR,  /* 200, and an error in the body (of an upload's end) */
    S3_BAD_LIST,    /* a list that breaks off, well within HTTP */
    S3_SAME_LIST,   /* the first page of a list again and again */
};

#define S3_STUB_OBJECTS 256
#define S3_STUB_PARTS 64
#define S3_STUB_UPLOADS 16

struct s3_stub {
    int port, listen_fd;
    char endpoint[64];
    pthread_t thread;
    _Atomic bool stop;
    _Atomic int n_links;
    pthread_mutex_t lock; /* objects and uploads */
    struct s3_stub_object {
        char name[512];
        uint8_t *data;
        size_t bytes;
        uint32_t version;
    } objects[S3_STUB_OBJECTS];
    struct s3_stub_upload {
        uint32_t id; /* 0: free */
        uint8_t *parts[S3_STUB_PARTS];
        size_t bytes[S3_STUB_PARTS];
    } uploads[S3_STUB_UPLOADS];
    uint32_t n_versions;

    _Atomic int fault; /* enum s3_fault */
    _Atomic int status;
    const char *_Atomic code; /* of the error document */
    _Atomic char method;      /* only requests of this first letter fail; 0: all */
    _Atomic int n_faults;     /* so many more; negative: all */
    _Atomic int page_names;   /* names of one page of a list */
    _Atomic uint64_t n_requests, n_get, n_head, n_put, n_list, n_uploads, n_aborts;
};

void s3_stub_init(struct s3_stub *s);
void s3_stub_fini(struct s3_stub *s);
void s3_stub_fail(struct s3_stub *s, enum s3_fault fault, char method, int n);
void s3_stub_heal(struct s3_stub *s);
/* What a stranger writes; the first object that there is when name is NULL. */
void s3_stub_overwrite(struct s3_stub *s, const char *name, const void *data, size_t bytes);
uint32_t s3_stub_count(struct s3_stub *s);

#endif
