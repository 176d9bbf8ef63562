/* device.h - moving KV: devices by name, checked layouts and cells, batches, and rotation
 * tables. Callers use the functions here and never call through a device's table themselves.
 *
 * A load or a save is a batch: opened once with limits, set for every request (this is where
 * everything is checked and where rotation tables are made), then moved layer by layer with nothing
 * left to check but the layer numbers. After tsri_batch_open nothing here allocates.
 *
 * Threads: as in <tessera/device.h>: devices from any thread, one stream, event or batch from one
 *          thread at a time. rope and layout functions have no state.
 * Memory:  what a batch is set with stays the caller's and in place until the batch is set again or
 *          closed and its stream has passed.
 * Errors:  everything is checked before a byte is written; the message names what was wrong.
 */
#ifndef TSRI_DEVICE_H
#define TSRI_DEVICE_H

#include "base/base.h"

#include <tessera/device.h>

#include <stdio.h>

/* ---- devices ---- */

/* Only device.c and batch.c look inside. */
struct tsri_device {
    const struct tsr_device_ops *ops;
    struct tsr_device *impl;
    void *library; /* of dlopen; NULL for built-in devices */
};
/* "cpu", or any name N that libtessera-N.so provides. config NULL: all defaults. */
TSR_MUST int tsri_device_open(struct tsri_device **out, const char *name,
                              const struct tsr_device_desc *desc);
/* Everything opened on it must be closed first. Accepts NULL. */
void tsri_device_close(struct tsri_device *d);
/* Names worth trying, for lists: built in and known by name; NULL after the last. */
const char *tsri_device_known(uint32_t i);
const char *tsri_device_name(const struct tsri_device *d);
uint32_t tsri_device_caps(const struct tsri_device *d);
TSR_MUST int tsri_device_info(struct tsri_device *d, struct tsr_device_info *out);

TSR_MUST int tsri_device_alloc(struct tsri_device *d, void **out, size_t bytes);
void tsri_device_free(struct tsri_device *d, void *p);
TSR_MUST int tsri_device_host_alloc(struct tsri_device *d, void **out, size_t bytes);
void tsri_device_host_free(struct tsri_device *d, void *p);
TSR_MUST int tsri_device_host_register(struct tsri_device *d, void *p, size_t bytes);
void tsri_device_host_unregister(struct tsri_device *d, void *p);

/* On a device without streams and events these succeed and give NULL handles. */
TSR_MUST int tsri_stream_open(struct tsr_device_stream **out, struct tsri_device *d, void *native,
                              uint32_t flags);
void tsri_stream_close(struct tsri_device *d, struct tsr_device_stream *s);
TSR_MUST int tsri_stream_sync(struct tsri_device *d, struct tsr_device_stream *s);
TSR_MUST int tsri_event_open(struct tsr_device_event **out, struct tsri_device *d);
void tsri_event_close(struct tsri_device *d, struct tsr_device_event *e);
TSR_MUST int tsri_event_record(struct tsri_device *d, struct tsr_device_event *e,
                               struct tsr_device_stream *s);
TSR_MUST int tsri_event_wait(struct tsri_device *d, struct tsr_device_event *e,
                             struct tsr_device_stream *s);
TSR_MUST int tsri_event_sync(struct tsri_device *d, struct tsr_device_event *e);

/* Copies of zero bytes are skipped; NULL with bytes is refused before any is made. */
TSR_MUST int tsri_device_copy(struct tsri_device *d, struct tsr_device_stream *s,
                              const struct tsr_copy *copies, size_t n);
TSR_MUST int tsri_device_top_k(struct tsri_device *d, struct tsr_device_stream *s,
                               const struct tsr_top_k *t);

/* ---- batches ---- */

enum tsri_batch_direction {
    TSRI_BATCH_SCATTER = 1, /* cells to the engine; a slot may occur once */
    TSRI_BATCH_GATHER = 2   /* the engine to cells; a row of a cell may occur once */
};

struct tsri_batch_desc {
    uint32_t direction;
    uint32_t n_runs;
    const struct tsr_kv_layout *layout;
    const struct tsr_kv_run *runs;
    const struct tsr_rope *rope; /* NULL: no run has a delta */
    uint32_t freq_set;           /* of the prompt: tsri_rope_set_id */
};

struct tsri_batch;
TSR_MUST int tsri_batch_open(struct tsri_batch **out, struct tsri_device *d,
                             const struct tsr_batch_limits *limits);
void tsri_batch_close(struct tsri_batch *b);
/* Checks everything and binds the batch to the stream. After a failure the batch is empty. */
TSR_MUST int tsri_batch_set(struct tsri_batch *b, struct tsr_device_stream *s,
                            const struct tsri_batch_desc *desc);
/* n_layers 0: to the last. The direction must be the one the batch was set for. */
TSR_MUST int tsri_batch_scatter(struct tsri_batch *b, uint32_t layer_first, uint32_t n_layers);
TSR_MUST int tsri_batch_gather(struct tsri_batch *b, uint32_t layer_first, uint32_t n_layers);
/* How many layers to move together from `layer` on. Where a device queues operations and reads the
 * cells from its own memory, starting one costs more than a layer: steps grow, 1, 1, 2, 4, 8, 8 ..,
 * so that the first layer comes at once and the whole is a few of them. 1 everywhere else. */
uint32_t tsri_batch_step(const struct tsri_batch *b, uint32_t layer);

/* ---- layouts and cells ---- */

#define TSRI_KV_LAYERS_MAX 1024u
/* Of planes that are rotated or quantised: their rows pass through buffers on the stack. */
#define TSRI_KV_DIM_MAX 1024u

/* Bytes of an element; 0 for a dtype that planes cannot have. */
uint32_t tsri_dtype_bytes(uint32_t dtype);
/* Elements that share a scale in the int8 form of a head. */
uint32_t tsri_quant_group(uint32_t dim);
/* Bytes of a plane's row in cells. */
size_t tsri_row_bytes(const struct tsr_kv_plane *p);
size_t tsri_row_bytes_int8(uint32_t n_heads, uint32_t dim);

/* Counts, dtypes, alignment, strides that overlap, memory that does not suffice. */
TSR_MUST int tsri_layout_check(const struct tsr_kv_layout *l);
/* Cells against the layout they shall be exchanged with. */
TSR_MUST int tsri_cells_check(const struct tsr_kv_cells *c, const struct tsr_kv_layout *l);

static inline uint8_t *tsri_layer_base(const struct tsr_kv_plane *p, uint32_t layer)
{
    if (p->layers) return (uint8_t *)p->layers[layer];
    return (uint8_t *)p->base + layer * p->layer_stride;
}
/* block_tokens is a power of two, or 0 for contiguous memory. */
static inline uint64_t tsri_slot_offset(const struct tsr_kv_layout *l, const struct tsr_kv_plane *p,
                                        uint64_t slot)
{
    if (!l->block_tokens) return slot * p->token_stride;
    uint32_t shift = (uint32_t)__builtin_ctz(l->block_tokens);
    return (slot >> shift) * p->block_stride + (slot & (l->block_tokens - 1)) * p->token_stride;
}

/* ---- slots ---- */

/* What a load must ask for when chunks are fixed blocks and n_cached tokens are there already: it
 * begins on the chunk boundary at or before them, and its first n_pad slots are -1. */
struct tsri_span {
    uint32_t first, n_pad, n_tokens;
};
struct tsri_span tsri_span_align(uint32_t n_cached, uint32_t n_total, uint32_t chunk_tokens);
/* Slots of tokens [first, first + n) of a sequence that stands in these blocks. */
TSR_MUST int tsri_slots_of_blocks(int64_t *out, const int64_t *blocks, uint32_t n_blocks,
                                  uint32_t block_tokens, uint32_t first, uint32_t n);

/* A set of numbers that is emptied in O(1) and answers "seen before?" in O(1). Holds n_max numbers
 * at most between two clears. */
struct tsri_slot_set {
    struct tsri_slot_word {
        uint64_t key, mask;
        uint64_t epoch;
    } * words;
    uint64_t n_words; /* a power of two */
    uint64_t epoch;
};
TSR_MUST int tsri_slot_set_init(struct tsri_slot_set *s, uint32_t n_max);
void tsri_slot_set_fini(struct tsri_slot_set *s);
void tsri_slot_set_clear(struct tsri_slot_set *s);
/* Adds those of word * 64 + (0 .. 63) whose bit is set in mask; true when one was there. */
bool tsri_slot_set_add(struct tsri_slot_set *s, uint64_t word, uint64_t mask);
/* Every slot is -1 or below n_slots; with a set, none is in it, and all are added. Neighbours are
 * taken together, so block tables cost about a nanosecond a token. */
TSR_MUST int tsri_slots_check(const int64_t *slots, uint32_t n, uint64_t n_slots,
                              struct tsri_slot_set *once);

/* ---- rotation ---- */

#define TSRI_ROPE_PAIRS_MAX 256u

/* The frequencies of one set: pair i turns by position * freq[i]; cos and sin are scaled by
 * attention_factor when K is first made (a shift must not scale again). */
struct tsri_rope_set {
    uint32_t id, n_pairs;
    double attention_factor;
    double freq[TSRI_ROPE_PAIRS_MAX];
};
TSR_MUST int tsri_rope_check(const struct tsr_rope *r);
/* The set that a prompt of n_tokens uses: 0, or for DYNAMIC the length, for LONGROPE 1, where the
 * prompt is longer than `trained`. K of different sets cannot be turned into each other. */
uint32_t tsri_rope_set_id(const struct tsr_rope *r, uint64_t n_tokens);
void tsri_rope_set_init(struct tsri_rope_set *set, const struct tsr_rope *r, uint32_t id);
/* cos and sin of delta positions, computed in double and rounded once: n_pairs cos, n_pairs sin. */
void tsri_rope_table(const struct tsri_rope_set *set, int64_t delta, float *table);
/* The parameters as canonical text, for struct tsr_space_desc.rope: equal models give equal bytes.
 * Returns the length it needs, like snprintf. */
TSR_MUST int tsri_rope_text(const struct tsr_rope *r, char *buf, size_t bytes);
/* That text read back; its rope points into it, so it stays where it is. */
struct tsri_rope_read {
    struct tsr_rope rope;
    double short_factors[TSRI_ROPE_PAIRS_MAX], long_factors[TSRI_ROPE_PAIRS_MAX];
};
/* Words may be in any order, and numbers decimals. Without a word of their own: plain, neox, and the
 * given dims. */
TSR_MUST int tsri_rope_read(struct tsri_rope_read *out, const char *text, uint32_t dims);

/* ---- numbers ---- */

float tsri_f16_to_f32(uint16_t h);
uint16_t tsri_f32_to_f16(float f); /* nearest, ties to even; NaN stays NaN */
float tsri_bf16_to_f32(uint16_t h);
uint16_t tsri_f32_to_bf16(float f);

/* ---- what is at an address ---- */

enum tsri_mapped {
    TSRI_MAPPED_UNKNOWN, /* nobody can tell */
    TSRI_MAPPED_HOST,    /* memory that the processor reads */
    TSRI_MAPPED_NOTHING, /* nothing, or what the processor cannot read */
    TSRI_MAPPED_DRIVER   /* a mapping of a driver: its memory, or the host's */
};
/* Of this process; reads /proc/self/maps, which takes a while. */
enum tsri_mapped tsri_mapped(const void *p);
/* In a list of that form. */
enum tsri_mapped tsri_mapped_in(FILE *maps, uintptr_t at);

/* ---- the cpu device: cpu.c over move.c over a set of kernels ---- */

extern const struct tsr_device_ops tsri_device_cpu;

/* The elementwise loops that are right by definition: every other variant is compared with them. */
void tsri_reference_move(const struct tsr_batch *b, bool to_engine, uint32_t layer, uint32_t plane,
                         uint32_t run);
void tsri_reference_top_k(const struct tsr_top_k *t);

/* Turns the pairs of n vectors of 2 * n_pairs elements, each contiguous; strides in bytes from one
 * vector to the next. dst and src are apart. */
struct tsri_turn {
    const float *cos, *sin; /* [n_pairs] */
    uint32_t n_pairs;
};
typedef void (*tsri_turn_fn)(void *dst, size_t dst_stride, const void *src, size_t src_stride,
                             size_t n, const struct tsri_turn *t);
struct tsri_width {
    size_t in, out; /* bytes of an element */
};
/* kernels.c: the pairs of one vector from i on, by a plain loop, for ends that fill no vector
 * register. */
void tsri_turn_rest(uint8_t *out, const uint8_t *in, const struct tsri_turn *t, uint32_t i,
                    struct tsri_width w, bool gptj, tsri_turn_fn plain);
enum { TSRI_F32 = 0, TSRI_F16 = 1, TSRI_BF16 = 2, TSRI_N_FLOATS = 3 };
enum { TSRI_NEOX = 0, TSRI_GPTJ = 1, TSRI_N_PAIRINGS = 2 };

/* Pieces that are copied side by side: the processor reads ahead in each of them. */
#define TSRI_STREAM_PIECES 4u

/* One set of inner loops; all of a variant's members are there. */
struct tsri_kernels {
    const char *name;
    bool (*supported)(void);
    tsri_turn_fn turn[TSRI_N_FLOATS][TSRI_N_PAIRINGS];
    /* The same from float to the dtype, for heads that were int8. */
    tsri_turn_fn turn_wide[TSRI_N_FLOATS][TSRI_N_PAIRINGS];
    void (*widen_int8)(float *dst, const int8_t *src, float scale, size_t n);
    void (*widen[TSRI_N_FLOATS])(float *dst, const void *src, size_t n);
    void (*narrow[TSRI_N_FLOATS])(void *dst, const float *src, size_t n);
    /* One group to int8; returns its scale. */
    float (*quantise)(int8_t *dst, const float *src, size_t n);
    /* (optional, both) Copies past the caches, for more bytes than they hold; the next fence orders
     * them. Default to memcpy. */
    void (*stream)(const struct tsr_copy pieces[TSRI_STREAM_PIECES]);
    void (*fence)(void);
};
extern const struct tsri_kernels tsri_kernels_plain;
/* The sets for this kind of processor, best last; NULL behind the last. */
const struct tsri_kernels *tsri_kernels_x86(uint32_t i);
const struct tsri_kernels *tsri_kernels_arm(uint32_t i);

/* Tokens [first, first + n) of a batch, one layer and plane, with these kernels. */
struct tsri_move {
    const struct tsr_batch *batch;
    const struct tsri_kernels *kernels;
    bool to_engine;
    bool streams; /* more bytes than caches hold: whole pieces go past them */
};
void tsri_move_tokens(const struct tsri_move *m, uint32_t layer, uint32_t plane, uint32_t first,
                      uint32_t n);
void tsri_move_top_k(const struct tsr_top_k *t);

#endif
