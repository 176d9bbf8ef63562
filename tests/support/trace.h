/* trace.h - access traces: which pieces of text a series of requests asks for, for cache_sim.h to
 * replay through an eviction policy. Built piece by piece, or made by code from a seed. Tests and
 * benches only: without memory they end the program with a line. */
#ifndef TSRI_TRACE_H
#define TSRI_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define TRACE_NONE UINT32_MAX
#define TRACE_BLOCK_TOKENS 512u

struct trace_object {
    uint32_t n_tokens;
    uint32_t parent; /* the block before it, or TRACE_NONE */
};

/* Request r asks for refs[starts[r]] .. refs[starts[r + 1] - 1], in this order. */
struct trace {
    char name[48];
    bool chained; /* a request is a prefix: a block counts only behind all those before it */
    struct trace_object *objects;
    uint32_t n_objects, objects_max;
    uint32_t *starts, n_requests, requests_max;
    uint32_t *refs, n_refs, refs_max;
};

/* A new piece, numbered from 0 on; a parent comes before its children. */
uint32_t trace_add_object(struct trace *t, uint32_t n_tokens, uint32_t parent);
/* A request: its pieces, then its end. */
void trace_add_ref(struct trace *t, uint32_t object);
void trace_end_request(struct trace *t);
void trace_fini(struct trace *t);

/* ---- made by code ---- */

/* Popularity by Zipf's law, for ever the same. */
void trace_zipf(struct trace *t, uint64_t seed);
/* The same with, now and then, a long row of pieces that are never asked for again. */
void trace_scan(struct trace *t, uint64_t seed);
/* A short, a longer and a long row of pieces, in turns, each again and again. */
void trace_loop(struct trace *t, uint64_t seed);
/* Zipf's law, but who is popular changes from time to time. */
void trace_shift(struct trace *t, uint64_t seed);
/* The requests of `from` as a service would see them: some are asked often, by Zipf's law. */
void trace_redraw(struct trace *t, const struct trace *from, uint32_t n_requests, uint64_t seed);
/* Conversations that take turns, each request one turn longer than the last; some are given up
 * after every turn, and all begin with one of a few system prompts. */
void trace_chat(struct trace *t, uint64_t seed);

#endif
