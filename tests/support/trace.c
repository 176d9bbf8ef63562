/* trace.c - making access traces. See trace.h. */
#include "support/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(void)
{
    fprintf(stderr, "trace: no memory\n");
    exit(1);
}

static void *grow(void *at, uint32_t *max, uint32_t n, size_t bytes)
{
    if (n < *max) return at;
    *max = *max ? *max * 2 : 1024;
    at = realloc(at, *max * bytes);
    if (!at) die();
    return at;
}

uint32_t trace_add_object(struct trace *t, uint32_t n_tokens, uint32_t parent)
{
    t->objects = grow(t->objects, &t->objects_max, t->n_objects, sizeof t->objects[0]);
    t->objects[t->n_objects] = (struct trace_object){n_tokens, parent};
    return t->n_objects++;
}

void trace_add_ref(struct trace *t, uint32_t object)
{
    t->refs = grow(t->refs, &t->refs_max, t->n_refs, sizeof t->refs[0]);
    t->refs[t->n_refs++] = object;
}

void trace_end_request(struct trace *t)
{
    t->starts = grow(t->starts, &t->requests_max, t->n_requests + 1, sizeof t->starts[0]);
    t->starts[0] = 0;
    t->starts[++t->n_requests] = t->n_refs;
}

void trace_fini(struct trace *t)
{
    free(t->objects);
    free(t->starts);
    free(t->refs);
    *t = (struct trace){.name = ""};
}

/* ---- generators ---- */

static uint64_t next_random(uint64_t *s)
{
    uint64_t x = *s += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double unit_random(uint64_t *s)
{
    return (double)(next_random(s) >> 11) * 0x1p-53;
}

/* Sums of 1 / rank^exponent; a draw is a binary search. */
struct zipf {
    double *sums;
    uint32_t n;
};

static struct zipf zipf_make(uint32_t n, double exponent)
{
    struct zipf z = {malloc(n * sizeof(double)), n};
    if (!z.sums) die();
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        z.sums[i] = sum += pow(i + 1.0, -exponent);
    return z;
}

static uint32_t zipf_draw(const struct zipf *z, uint64_t *seed)
{
    double x = unit_random(seed) * z->sums[z->n - 1];
    uint32_t low = 0, high = z->n - 1;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (z->sums[mid] <= x)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static uint32_t *shuffled(uint32_t n, uint64_t *seed)
{
    uint32_t *a = calloc(n, sizeof a[0]);
    if (!a) die();
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)(next_random(seed) % (i + 1));
        a[i] = a[j];
        a[j] = i;
    }
    return a;
}

#define PIECES 20000u
#define REQUESTS 40000u
#define REQUEST_PIECES 5u

/* Passages of 16 to 511 tokens, most of them short. */
static void add_pieces(struct trace *t, const char *name, uint32_t n, uint64_t *seed)
{
    *t = (struct trace){.name = ""};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (uint32_t i = 0; i < n; i++)
        trace_add_object(t, (uint32_t)(16 * pow(2, 5 * unit_random(seed))), TRACE_NONE);
}

void trace_zipf(struct trace *t, uint64_t seed)
{
    add_pieces(t, "zipf", PIECES, &seed);
    struct zipf z = zipf_make(PIECES, 0.9);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        for (uint32_t i = 0; i < REQUEST_PIECES; i++)
            trace_add_ref(t, zipf_draw(&z, &seed));
        trace_end_request(t);
    }
    free(z.sums);
}

void trace_scan(struct trace *t, uint64_t seed)
{
    add_pieces(t, "scan", PIECES / 2, &seed);
    struct zipf z = zipf_make(PIECES / 2, 0.9);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        /* Every 2000 requests, 500 that nobody repeats. */
        bool scan = r % 2000 >= 1500;
        for (uint32_t i = 0; i < REQUEST_PIECES; i++)
            trace_add_ref(
                t, scan ? trace_add_object(t, 64 + (uint32_t)(next_random(&seed) % 256), TRACE_NONE)
                        : zipf_draw(&z, &seed));
        trace_end_request(t);
    }
    free(z.sums);
}

void trace_loop(struct trace *t, uint64_t seed)
{
    add_pieces(t, "loop", PIECES, &seed);
    /* Three loops in turns, of 5, 25 and 70 hundredths of the pieces. */
    const uint32_t ends[] = {0, PIECES / 20, PIECES * 3 / 10, PIECES};
    uint32_t at[3] = {0};
    for (uint32_t r = 0; r < REQUESTS; r++) {
        uint32_t loop = r % 3, n = ends[loop + 1] - ends[loop];
        for (uint32_t i = 0; i < REQUEST_PIECES; i++)
            trace_add_ref(t, ends[loop] + at[loop]++ % n);
        trace_end_request(t);
    }
}

void trace_shift(struct trace *t, uint64_t seed)
{
    add_pieces(t, "shift", PIECES, &seed);
    struct zipf z = zipf_make(PIECES, 1.0);
    uint32_t *who = NULL;
    for (uint32_t r = 0; r < REQUESTS; r++) {
        if (r % (REQUESTS / 8) == 0) {
            free(who);
            who = shuffled(PIECES, &seed);
        }
        for (uint32_t i = 0; i < REQUEST_PIECES; i++)
            trace_add_ref(t, who[zipf_draw(&z, &seed)]);
        trace_end_request(t);
    }
    free(who);
    free(z.sums);
}

void trace_redraw(struct trace *t, const struct trace *from, uint32_t n_requests, uint64_t seed)
{
    *t = (struct trace){.chained = from->chained};
    snprintf(t->name, sizeof t->name, "%.40s again", from->name);
    for (uint32_t i = 0; i < from->n_objects; i++)
        trace_add_object(t, from->objects[i].n_tokens, from->objects[i].parent);
    struct zipf z = zipf_make(from->n_requests, 0.9);
    uint32_t *who = shuffled(from->n_requests, &seed);
    for (uint32_t i = 0; i < n_requests; i++) {
        uint32_t r = who[zipf_draw(&z, &seed)];
        for (uint32_t j = from->starts[r]; j < from->starts[r + 1]; j++)
            trace_add_ref(t, from->refs[j]);
        trace_end_request(t);
    }
    free(who);
    free(z.sums);
}

/* ---- conversations ---- */

#define CHAT_OPEN 400u
#define CHAT_SYSTEMS 8u
#define CHAT_BLOCKS_MAX 250u

struct chat {
    uint32_t blocks[CHAT_BLOCKS_MAX];
    uint32_t n;
};

static void chat_grow(struct trace *t, struct chat *c, uint32_t n)
{
    for (; n && c->n < CHAT_BLOCKS_MAX; n--, c->n++)
        c->blocks[c->n] =
            trace_add_object(t, TRACE_BLOCK_TOKENS, c->n ? c->blocks[c->n - 1] : TRACE_NONE);
}

void trace_chat(struct trace *t, uint64_t seed)
{
    *t = (struct trace){.name = "chat", .chained = true};
    struct chat systems[CHAT_SYSTEMS] = {{.n = 0}};
    struct chat *open = calloc(CHAT_OPEN, sizeof *open);
    if (!open) die();
    for (uint32_t i = 0; i < CHAT_SYSTEMS; i++)
        chat_grow(t, &systems[i], 1 + i);
    struct zipf z = zipf_make(CHAT_OPEN, 0.6); /* some people answer at once */
    for (uint32_t r = 0; r < 12000; r++) {
        struct chat *c = &open[zipf_draw(&z, &seed)];
        if (c->n == 0 || c->n >= CHAT_BLOCKS_MAX || unit_random(&seed) < 0.35)
            *c = systems[next_random(&seed) % CHAT_SYSTEMS];
        chat_grow(t, c, 1 + (uint32_t)(pow(unit_random(&seed), 4) * 60));
        for (uint32_t i = 0; i < c->n; i++)
            trace_add_ref(t, c->blocks[i]);
        trace_end_request(t);
    }
    free(z.sums);
    free(open);
}
