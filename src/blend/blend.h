/* blend.h - answering from cached text: what of a prompt is reused, what is computed, and in which
 * order, over any executor or engine.
 *
 * A run goes through passes: *fill* computes segments that are not cached, alone, and stores them;
 * *query* lets the question look at what was loaded; *blend* computes the rows that must be, over
 * everything. While the first of them runs, layers are loaded by threads of the cache. When a load
 * fails the plan is changed and the pass starts over: K and V of rows that are computed are
 * overwritten in place, so a second time gives the same.
 *
 * Threads: a run belongs to one thread; a feed's ranges are filled by threads of the cache.
 * Memory:  embedded structs have init and fini; what they point to is said on them.
 * Errors:  a tier that fails costs the tokens it had, never the answer.
 */
#ifndef TSRI_BLEND_H
#define TSRI_BLEND_H

#include "base/base.h"
#include "cache/cache.h"
#include "device/device.h"

#include <tessera/blend.h>
#include <tessera/model.h>

#include <pthread.h>

/* ---- plan.c: what becomes of each token ---- */

enum tsri_piece_kind {
    TSRI_PIECE_LOAD = 1, /* comes from the cache */
    TSRI_PIECE_FILL = 2, /* a segment that is computed alone */
    TSRI_PIECE_LOST = 3  /* could not be loaded: computed in the prompt */
};
/* A run of tokens whose KV is made outside the prompt. */
struct tsri_piece {
    struct tsr_match match; /* of a FILL: the whole segment at its canonical base */
    uint8_t kind;           /* enum tsri_piece_kind */
    bool exact;             /* the same bits as a prefill gives */
    bool starts, ends;      /* at the borders of a segment: what is beyond them is no edit */
    bool follows;           /* continues the one before it, here as there: no seam */
    bool failed;            /* was to be loaded */
    bool leads;             /* a FILL that is computed in the prompt itself, and not stored */
    bool cached;            /* one that leads, and could have been loaded */
    bool placed;            /* a FILL that was computed, stored and turned */
};

/* Is still to be computed alone. */
static inline bool tsri_piece_is_open(const struct tsri_piece *piece)
{
    return piece->kind == TSRI_PIECE_FILL && !piece->placed;
}

struct tsri_plan_desc {
    const struct tsr_ask_desc *ask;
    const struct tsr_profile *profile;
    const struct tsr_match *matches; /* ascending, apart */
    uint32_t n_matches, n_prefix_tokens;
    uint32_t selector; /* resolved */
    uint32_t freq_set, min_tokens;
    uint32_t trial_least; /* tokens, see tsri_rounds_least() */
    bool same_context;    /* segments see the system prompt */
    uint32_t n_primer;    /* or so many tokens of the primer; 0: none */
    uint32_t context;     /* positions of the model */
    bool no_room;         /* for the primer's KV: nothing can be computed after it */
    bool rounded; /* stored segments are int8: those at their own place are not exact either */
};

struct tsri_plan {
    uint32_t n_tokens, question; /* first token of the question */
    uint32_t n_system;
    uint8_t *states; /* [n_tokens], enum tsr_token_state */
    struct tsri_piece *pieces;
    uint32_t n_pieces;
    uint32_t n_candidates, n_always; /* tokens that have approximate KV: both together */
    uint32_t n_chunks;               /* pieces that are not exact */
    uint32_t n_unfilled; /* tokens of segments that are not cached and cannot be filled */
    uint32_t boundary, first_tokens;
    uint32_t reasons; /* enum tsr_blend_reason */
    bool may_fill, same_context;
    bool leads; /* the first document is exact: computed in the prompt, or known as a prefix */
    /* Segments but the system prompt are computed after the primer, if they are no longer than
     * this. */
    uint32_t n_primer, primed_max;
};
TSR_MUST int tsri_plan_init(struct tsri_plan *p, const struct tsri_plan_desc *desc);
void tsri_plan_fini(struct tsri_plan *p);
/* States from the pieces; forgets what was selected. */
void tsri_plan_paint(struct tsri_plan *p);
/* Whether a piece is still to be computed after the primer. */
bool tsri_plan_primes(const struct tsri_plan *p);
/* Filling would cost more than blending saves: compute the prompt whole, and fill later. */
bool tsri_plan_unknown(const struct tsri_plan *p);
/* What is not filled yet, and is not exact, is computed in the prompt instead. */
void tsri_plan_skip_fills(struct tsri_plan *p);
/* A piece cannot be loaded: a whole segment is filled where that is allowed. */
void tsri_plan_lose(struct tsri_plan *p, uint32_t piece);
/* Segments that are exact but for being stored as int8 are selected too: for a prefill's bits. */
void tsri_plan_drop_rounded(struct tsri_plan *p);
/* With int8: whether there are such segments that are not selected. */
bool tsri_plan_is_rounded(const struct tsri_plan *p);
/* Tokens that the blend pass computes. */
bool tsri_plan_computes(const struct tsri_plan *p, uint32_t token);
uint32_t tsri_plan_count(const struct tsri_plan *p, uint32_t state);

/* ---- known.c: which text of a prompt the cache has ---- */

struct tsri_known {
    struct tsr_match *matches; /* ascending, apart */
    uint32_t n, max, n_prefix; /* n_prefix: tokens at the front that are exact */
};
/* prompt: for the blend's own spaces. Matches of kind PREFIX are in the space of plain requests, if
 * the blend has one. To be given back also after an error. */
TSR_MUST int tsri_known_find(struct tsri_known *k, const struct tsr_blend *b,
                             const struct tsr_ask_desc *ask, const struct tsr_prompt *prompt);
void tsri_known_fini(struct tsri_known *k);

/* ---- select.c: which candidates are recomputed ---- */

struct tsri_select {
    struct tsri_plan *plan;
    struct tsri_device *device;
    double ratio;
    const float *scores; /* [n_tokens]; query: attention mass */
    void *memory;        /* tsri_select_bytes(n_tokens) */
};
struct tsri_selector {
    const char *name;
    uint32_t id;    /* enum tsr_selector */
    uint32_t needs; /* enum tsr_model_caps */
    bool asks;      /* needs scores of the question's pass */
    bool checks;    /* narrows its rows at check layers */
    bool forces;    /* first tokens of chunks are computed in any case */
    /* Marks tokens SELECTED. */
    int (*choose)(const struct tsri_select *s);
};
/* NULL for an unknown id. */
const struct tsri_selector *tsri_selector_of(uint32_t id);
size_t tsri_select_bytes(uint32_t n_tokens);
/* How many candidates a ratio stands for, seams included; those of earlier rounds count. */
uint32_t tsri_select_budget(const struct tsri_plan *p, double ratio);
/* hkvd: of n candidates with these deviations, which stay; fills keep (ascending) and returns how
 * many. memory: n floats. */
TSR_MUST int tsri_select_check(struct tsri_device *device, const struct tsr_check *check,
                               double ratio, const float *deviation, uint32_t n, uint32_t *keep);

/* ---- feed.c: loading pieces layer by layer, turned to their places ---- */

struct tsri_feed_range {
    struct tsr_match match;
    struct tsr_space *space;
    bool int8;            /* entries of the space are in the int8 form */
    bool exact;           /* no turning allowed: it would not be the same bits */
    bool plain;           /* a prefix of plain requests, found with the extras of the ask */
    const int64_t *slots; /* of its tokens, copied; -1: skipped. NULL: their place in the prompt */
};
struct tsri_feed_desc {
    struct tsr_cache *cache;
    const struct tsr_prompt *prompt; /* copied */
    struct tsri_device *device;
    const struct tsr_kv_layout *layout;
    const struct tsr_rope *rope;
    uint32_t freq_set;
    const struct tsri_feed_range *ranges; /* copied */
    uint32_t n_ranges;
    const struct tsr_extra *extra; /* of ranges that are plain, copied */
    uint32_t n_extra;
    void *compute; /* the engine's queue: nothing is written before what it holds now; NULL: none */
    struct tsri_bulk_spare *spare; /* outlives the feed; NULL: none */
};
struct tsri_feed;
/* Begins to load. A range that cannot be loaded is no error here. */
TSR_MUST int tsri_feed_open(struct tsri_feed **out, const struct tsri_feed_desc *desc);
/* Waits until layer `layer` of every range that can be loaded is in place, at most timeout_ms for
 * the next range that arrives; those that are late are given up. Returns how many have failed so far.
 */
int tsri_feed_wait(struct tsri_feed *f, uint32_t layer, uint32_t timeout_ms);
/* 0, or why the range must be computed. */
int tsri_feed_result(struct tsri_feed *f, uint32_t range);
/* Nothing is written to the layout's memory after this; does not wait for tiers. */
void tsri_feed_close(struct tsri_feed *f);

/* ---- bulk.c: ranges that are in memory, on a device that queues ---- */

struct tsri_source_range;
struct tsri_bulk_range {
    const struct tsri_source_range *from; /* pinned until the bulk is closed */
    const struct tsr_match *match;
    const int64_t *slots;
    bool int8, exact;
};
/* What the last bulks had of their device, for the next ones: page-locked memory, a stream and events
 * take the driver about as long as a short prompt needs. As many as an engine has blends under way
 * at once (AT_ONCE_MAX in python/tessera/blend_job.py). Any thread. */
#define TSRI_BULK_SPARES 8u
struct tsri_bulk_kit;
struct tsri_bulk_spare {
    pthread_mutex_t lock;
    struct tsri_bulk_kit *kits[TSRI_BULK_SPARES]; /* the oldest first */
    uint32_t n;
};
void tsri_bulk_spare_init(struct tsri_bulk_spare *s);
/* Before the device is closed. */
void tsri_bulk_spare_fini(struct tsri_bulk_spare *s);

struct tsri_bulk_desc {
    struct tsri_device *device;
    const struct tsr_kv_layout *layout;
    const struct tsr_rope *rope;
    uint32_t freq_set;
    const struct tsri_bulk_range *ranges; /* each passes tsri_bulk_check */
    uint32_t n_ranges;
    struct tsr_device_event *after; /* nothing is written before it has passed; NULL: at once */
    struct tsri_bulk_spare *spare;  /* NULL: none */
};
struct tsri_bulk;
/* 0, or why the range must be computed. */
TSR_MUST int tsri_bulk_check(struct tsri_device *device, const struct tsri_bulk_range *r);
TSR_MUST int tsri_bulk_open(struct tsri_bulk **out, const struct tsri_bulk_desc *desc);
/* Queues the next layers; returns how many are queued now. */
TSR_MUST int tsri_bulk_queue(struct tsri_bulk *b);
/* Waits for a layer that is queued, also while another thread queues more. Returns how many layers
 * are in place then. */
TSR_MUST int tsri_bulk_wait(struct tsri_bulk *b, uint32_t layer);
/* Waits for what is queued. */
void tsri_bulk_drain(struct tsri_bulk *b);
/* The same, and frees it. Accepts NULL. */
void tsri_bulk_close(struct tsri_bulk *b);

/* ---- fill.c: what was computed alone is stored and turned to its place ---- */

/* Rows of n tokens of all layers, packed as [layer][K, V][token]. */
struct tsri_rows {
    struct tsri_device *device; /* whose memory `data` is, where it must be page-locked */
    uint8_t *data;
    size_t bytes;
    void **planes;
    int64_t *slots;
    struct tsr_kv_cells cells;
};

struct tsri_fill {
    struct tsr_client *client; /* NULL: nothing is stored */
    struct tsr_space *space;
    struct tsri_device *device;
    const struct tsr_kv_layout *layout;
    const int64_t *slots; /* of each token in the layout; NULL: token i is in slot i */
    const struct tsr_rope *rope;
    uint32_t freq_set;
    bool int8;
    double token_s; /* seconds that computing a token took */
    /* What segments with TSR_CONTEXT_SAME have seen. */
    const uint32_t *context;
    uint32_t n_context;
};
/* Rows for tokens from `first` on. */
TSR_MUST int tsri_rows_init(struct tsri_rows *r, const struct tsri_fill *f, uint32_t first,
                            uint32_t n);
void tsri_rows_fini(struct tsri_rows *r);
/* TSRI_BATCH_GATHER from the slots, or TSRI_BATCH_SCATTER to them with K turned by delta. */
TSR_MUST int tsri_rows_move(const struct tsri_fill *f, struct tsri_rows *r, uint32_t direction,
                            int64_t delta);
/* Segment `piece` of the plan stands in its slots, K at its canonical base. Stores it as a segment
 * and turns K. Returns the tokens stored; TSR_EFULL and the like mean only that it was not kept,
 * with *placed true. */
TSR_MUST int tsri_fill_settle(const struct tsri_fill *f, const struct tsr_ask_desc *ask,
                              const struct tsri_plan *plan, uint32_t piece, bool *placed);
/* Stores tokens [from, n_tokens) of the session as an exact prefix. */
TSR_MUST int tsri_fill_prefix(const struct tsri_fill *f, const uint32_t *tokens, uint32_t from,
                              uint32_t n_tokens);

/* ---- gate.c ---- */

/* Fills what logits say; before: those of the round before, or NULL. */
#define TSRI_GATE_UNKNOWN \
    ((struct tsr_gate){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN})
void tsri_gate_read(struct tsr_gate *g, const float *logits, const float *before, uint32_t n);
/* By weights of a profile, [TSR_GATE_WEIGHTS_MAX]. */
bool tsri_gate_is_fitted(const double *weights);
double tsri_gate_predict(const double *weights, const struct tsr_gate *g);
/* The most likely token, and how far the second one's probability is below its own. */
double tsri_logits_margin(const float *logits, uint32_t n, uint32_t *token);
/* See struct tsr_gate. */
#define TSRI_MARGIN_LOW 0.2
#define TSRI_DOUBT_MIN 0.02

/* ---- primer.c: the text that documents are computed after ---- */

/* Of a blend. */
struct tsri_primer {
    uint32_t *tokens;
    uint32_t n_tokens; /* 0: none */
    /* Its KV, under the blend's lock: */
    bool kept;
    struct tsri_rows rows;
    struct tsri_device *mover; /* that can write `rows` */
    uint32_t freq_set;
};
/* The neutral text of default profiles. */
extern const char tsri_primer_text[];
/* Tokens for a profile with context PRIMER. */
TSR_MUST int tsri_primer_init(struct tsri_primer *p, const struct tsr_profile *profile,
                              const struct tsr_model_info *info, const struct tsr_blend_desc *desc);
void tsri_primer_fini(struct tsri_primer *p);

/* ---- overrides.c ---- */

/* can_prime: the primer's tokens are there, or a tokenizer for them. */
TSR_MUST int tsri_profile_override(struct tsr_profile *p, const struct tsri_options *o,
                                   bool can_prime);

/* ---- chunked.c ---- */

/* *cut is *ask, with segments between separators where chunked mode wants them; *ranges are these,
 * for the caller to free, or NULL. TSR_EPROMPT: the prompt is malformed. */
TSR_MUST int tsri_chunked_split(const struct tsr_blend *b, const struct tsr_ask_desc *ask,
                                struct tsr_ask_desc *cut, struct tsr_range **ranges);

/* ---- blender.c ---- */

struct tsr_blend {
    struct tsr_model *model; /* NULL: an engine runs it */
    struct tsr_model_info info;
    uint8_t model_id[16]; /* tsr_blend_model() */
    struct tsr_cache *cache;
    struct tsr_client *client;
    struct tsr_space *exact, *segments; /* the same without int8 */
    struct tsr_space *prefixes;         /* `exact`, unless their blocks have a size of their own */
    struct tsr_space *traffic;          /* of plain requests; NULL: not used */
    struct tsri_device *device;
    struct tsr_profile profile;
    struct tsri_primer primer;
    uint32_t min_tokens;
    bool int8;
    struct tsri_bulk_spare spare;
    /* of the last ask, under lock: */
    pthread_mutex_t lock;
    float *bias;
    uint32_t n_bias;
    uint32_t draft[TSR_PROFILE_DRAFT_MAX], n_draft;
};

/* profile.c: "same", "pure", "primer"; -1: none of them. */
const char *tsri_context_name(uint32_t context);
int tsri_context_find(const char *name);

/* One step of a run, over a session. 1: a piece of a layer (tsr_session_cut()), call it again. */
TSR_MUST int tsri_blend_step(struct tsr_session *s, const struct tsr_blend_step *step);
/* All steps of a run, over a session. */
TSR_MUST int tsri_blend_steps(struct tsr_session *s, struct tsr_run *run);

/* run.c */
#define TSRI_TIMEOUT_MS 5000u
#define TSRI_MIN_TOKENS 256u

#endif
