/* model.h - the executor on ggml, as its own files see it. It is a library of its own
 * (libtessera-model.so) that exports one symbol, tsr_executor; the core never links it, and it sees
 * of the core only include/.
 *
 *   gguf.c      what a model file says, checked: sizes, architecture, RoPE
 *   weights.c   the file mapped, and each tensor placed where its kernels want it
 *   ggml_graph.c ggml graphs of one layer, of the last one and of the head
 *   ggml_session.c KV memory; passes over its rows, cut into batches
 *   ggml_decoder.c one row of each of several sessions, in one pass over the weights
 *   ggml_mask.c  who sees whom, as the numbers that ggml's attention adds
 *   multiply.c  who multiplies with a matrix: kernels of our own, or ggml
 *   multiply_x86.c, multiply_k_x86.c, attention_x86.c kernels with ggml's bits
 *   multiply_tiles_x86.c, attention_tiles_x86.c kernels on AMX, with bits of their own (tiles_x86.c:
 *               where they may run)
 *   vocab.c     tokens and chat templates, by libllama
 *   guard.cpp   what those two throw or assert, as errors
 *   ggml_executor.c the table, and the log of ggml
 *
 * Threads: an executor is constant after open. A session has a ggml backend of its own, so that
 *          sessions do not share work memory.
 * Memory:  an executor owns the mapped file and the buffers of the weights; a session its KV memory
 *          and everything that is as long as a pass.
 * Errors:  enum tsr_err, with the words given to config->fail.
 */
#ifndef TSRI_MODEL_H
#define TSRI_MODEL_H

#include <tessera/model.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors ---- */

typedef int (*tsri_fail_fn)(int err, const char *text);
#ifdef __cplusplus
extern "C" {
#endif
/* Formats, hands the text to fail and returns its result. */
int tsri_model_fail(tsri_fail_fn fail, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The last thing that ggml or libllama said on this thread about something going wrong, without its
 * line end; "" when nothing. Forgets it. */
const char *tsri_model_complaint(void);

typedef int (*tsri_guarded_fn)(void *arg);
/* Once, before the first guard. */
void tsri_guard_init(void);
/* The result of work(arg), or TSR_ECORRUPT when libllama or ggml threw or asserted within it, on
 * this thread; what work held then stays allocated unless arg knows it. */
int tsri_guard(tsri_guarded_fn work, void *arg, tsri_fail_fn fail);
#ifdef __cplusplus
}
#endif

/* ---- what a model file says ---- */

#define TSRI_LAYERS_MAX 512u
#define TSRI_VOCAB_MAX ((uint32_t)1 << 22)
#define TSRI_CONTEXT_MAX ((uint32_t)1 << 24)

/* The tensors of a layer, in the order of the table in gguf.c. */
enum tsri_layer_tensor {
    TSRI_ATTN_NORM,
    TSRI_ATTN_Q,
    TSRI_ATTN_K,
    TSRI_ATTN_V,
    TSRI_ATTN_Q_BIAS,
    TSRI_ATTN_K_BIAS,
    TSRI_ATTN_V_BIAS,
    TSRI_ATTN_Q_NORM,
    TSRI_ATTN_K_NORM,
    TSRI_ATTN_OUT,
    TSRI_FFN_NORM,
    TSRI_FFN_GATE,
    TSRI_FFN_UP,
    TSRI_FFN_DOWN,
    TSRI_LAYER_TENSORS
};

/* The tensors outside of layers. */
enum tsri_model_tensor {
    TSRI_TOKEN_EMBD,
    TSRI_OUTPUT_NORM,
    TSRI_OUTPUT, /* absent: the token embeddings are the head as well */
    TSRI_ROPE_FREQS,
    TSRI_ROPE_SHORT,
    TSRI_ROPE_LONG,
    TSRI_MODEL_TENSORS
};

/* How ggml turns K and Q: the numbers of ggml_rope_ext. */
struct tsri_ggml_rope {
    int mode; /* GGML_ROPE_TYPE_NORMAL or NEOX */
    int n_dims, n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
};

/* A model file, checked: every size below fits the tensors that are there. */
struct tsri_header {
    char architecture[32];
    char name[TSR_MODEL_NAME_BYTES];
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_ff, n_vocab, context;
    float norm_eps, attention_scale;
    struct tsri_ggml_rope turn;
    struct tsr_rope rope;
    double *factors;                           /* what rope points to, or NULL */
    int64_t model_tensors[TSRI_MODEL_TENSORS]; /* index in the file, -1: absent */
    int64_t (*layer_tensors)[TSRI_LAYER_TENSORS];
};

/* data and bytes are the whole file. Fails with TSR_ECORRUPT for a broken file and with TSR_EUNSUP
 * for a good one that cannot be run, naming what it has. */
int tsri_header_init(struct tsri_header *h, const struct gguf_context *gguf,
                     const struct ggml_context *tensors, const void *data, size_t bytes,
                     tsri_fail_fn fail);
void tsri_header_fini(struct tsri_header *h);

/* ---- weights ---- */

#define TSRI_PLACES_MAX 8u

/* Tensors that live in one buffer of one kind. */
struct tsri_tensor_place {
    ggml_backend_buffer_type_t kind; /* NULL: the mapped file itself */
    struct ggml_context *tensors;
    ggml_backend_buffer_t buffer;
};

struct tsri_weights {
    void *map;
    size_t map_bytes;
    struct gguf_context *gguf;
    struct ggml_context *file_tensors; /* shapes and types as in the file; no data */
    ggml_backend_dev_t device;
    struct tsri_tensor_place places[TSRI_PLACES_MAX];
    uint32_t n_places;
    uint64_t bytes; /* of all weights as they are computed with */
    /* Placed tensors; NULL where the model has none. The embeddings stay in the mapped file: rows
     * are read from there on the host. */
    struct ggml_tensor *output_norm, *output, *rope_freqs, *rope_long;
    struct ggml_tensor *(*layers)[TSRI_LAYER_TENSORS];
    const uint8_t *embd;
    enum ggml_type embd_type;
    size_t embd_row_bytes;
};

/* Maps the file and reads its header. */
int tsri_weights_map(struct tsri_weights *w, const char *path, tsri_fail_fn fail);
/* Places the tensors on w->device; convert is GGML_TYPE_COUNT for none. */
int tsri_weights_place(struct tsri_weights *w, const struct tsri_header *h, enum ggml_type convert,
                       bool tiles, tsri_fail_fn fail);
void tsri_weights_fini(struct tsri_weights *w);
/* SHA-256 over header, sizes and samples of every tensor; nobody reads 140 GB at start. */
int tsri_weights_digest(const struct tsri_weights *w, const char *convert,
                        uint8_t out[TSR_MODEL_WEIGHTS_BYTES], tsri_fail_fn fail);
/* Over the keys of the tokenizer. */
int tsri_tokenizer_digest(const struct tsri_weights *w, uint8_t out[16], tsri_fail_fn fail);
/* The embedding of one token, n_embd floats. */
void tsri_weights_embed(const struct tsri_weights *w, uint32_t token, uint32_t n_embd, float *out);

/* ---- text ---- */

struct llama_model;
struct llama_vocab;

struct tsri_vocab {
    struct llama_model *model; /* loaded without weights */
    const struct llama_vocab *vocab;
    const char *chat_template; /* NULL: none, or one that libllama does not know */
};

/* n_vocab: rows of the embeddings, which every token must have. */
int tsri_vocab_init(struct tsri_vocab *v, const char *path, uint32_t n_vocab, tsri_fail_fn fail);
void tsri_vocab_fini(struct tsri_vocab *v);
int tsri_vocab_tokenize(const struct tsri_vocab *v, const char *text, size_t bytes, uint32_t flags,
                        uint32_t *tokens, uint32_t max, tsri_fail_fn fail);
int tsri_vocab_detokenize(const struct tsri_vocab *v, const uint32_t *tokens, uint32_t n,
                          uint32_t flags, char *text, size_t bytes, tsri_fail_fn fail);
int tsri_vocab_is_end(const struct tsri_vocab *v, uint32_t token);
int tsri_vocab_chat(const struct tsri_vocab *v, const struct tsr_chat_message *messages, uint32_t n,
                    char *text, size_t bytes, tsri_fail_fn fail);
uint32_t tsri_vocab_bos(const struct tsri_vocab *v);

/* ---- the executor ---- */

struct tsr_executor {
    tsri_fail_fn fail;
    struct tsri_weights weights;
    struct tsri_header header;
    struct tsri_vocab vocab;
    uint32_t n_threads;
    uint32_t rows_least; /* that a matrix is multiplied with: tsri_rows_least() */
    uint32_t kv_dtype;   /* enum tsr_dtype */
    enum ggml_type kv_type;
    bool tiles; /* prompts are computed by AMX: not ggml's bits */
    bool apart; /* for tests: sessions treat host memory as if it were an accelerator's */
    uint8_t digest[TSR_MODEL_WEIGHTS_BYTES], tokenizer[16];
};

/* ---- masks ---- */

#define TSRI_HIDDEN 0xFC00 /* of a mask: minus infinity, of a key that a row does not see */

/* Rows of a pass that one graph computes, and the slots that they look at. */
struct tsri_row_batch {
    uint32_t row_first, n_rows;
    uint32_t n_padded; /* rows of the mask and of Q in attention: see TSRI_TILE_ROWS */
    uint32_t n_wide;   /* rows that matrices are multiplied with: see tsri_rows_wide() */
    uint32_t kv_first, n_kv;
    size_t mask_at; /* in elements, or TSRI_MASK_NONE: made again for each layer */
};
#define TSRI_MASK_NONE SIZE_MAX

/* What the rows of a pass may see; borrowed from the session. */
struct tsri_sight {
    const uint32_t *slots;     /* [n_rows] */
    const uint32_t *groups_of; /* [n_rows]: index into groups */
    const struct tsr_model_group *groups;
    const ggml_fp16_t *bias;         /* [n_bias] */
    uint32_t n_bias, bias_row_first; /* rows from here on have the bias */
};

/* The mask of a batch: [n_padded][n_kv]. */
void tsri_mask_fill(const struct tsri_sight *sight, const struct tsri_row_batch *batch,
                    ggml_fp16_t *mask);
/* What batches must fit. */
struct tsri_fit {
    uint32_t n_slots;
    uint32_t rows_least; /* of the executor; 0: rows of an answer, nothing is filled up */
    uint32_t rows_max;   /* of a batch */
};

/* Cuts rows into batches, at most max of them; returns how many. */
uint32_t tsri_batches_cut(const struct tsri_sight *sight, uint32_t n_rows,
                          const struct tsri_fit *fit, struct tsri_row_batch *batches, uint32_t max);

/* On a processor more rows at once push weights out of its caches. On an accelerator each batch costs
 * its launches again: there the rows that a blend computes should be one. */
#define TSRI_BATCH_ROWS 512u
#define TSRI_BATCH_ROWS_APART 1024u
/* ggml's attention on a CPU has three kernels: for one row, for fewer than 64, and a much faster
 * one in tiles of 64 rows by 64 keys. Rounding differs between them. Few rows are filled up to a
 * tile: that is faster from about 8 rows on, and makes the result of a row independent of its
 * company. Keys begin at a multiple of a tile for the same reason. Our own kernel (attention_x86.c)
 * takes the rows that there are. */
#define TSRI_TILE_ROWS 64u
#define TSRI_KV_ALIGN 64u
#define TSRI_KV_STEP 256u /* the number of keys is a multiple of it, so that graphs are reused */
/* Passes with TSR_PASS_DECODE of so many rows or more are computed like all others. */
#define TSRI_DECODE_ROWS_END 8u

/* ggml multiplies a matrix with rows by one of several kernels, which round differently: for one
 * row, for two (Arm's i8mm, when what a thread is dealt is even in both directions), for four
 * (repacked weights; what is left over goes row by row), for 8 or more. Rows are filled up so that
 * each of them is always computed by the kernel for many: to a multiple of 8, from 64 rows on of
 * 16, the sizes that ggml deals out in even parts. */
uint32_t tsri_rows_wide(uint32_t rows_least, uint32_t n_rows);
/* Where there are too few parts for its threads, four for each, ggml deals out a matrix in as many
 * parts as threads, which may be odd. That is avoided by more rows, up to a whole batch, and beyond
 * that by fewer threads. n_out: rows of the model's smallest matrix. */
uint32_t tsri_rows_least(uint32_t n_threads, uint32_t n_out);
uint32_t tsri_threads_most(uint32_t n_out);

/* ---- what a session sends to its backend ---- */

/* Calls since the queue was opened. Tests count them: a pass must not wait once a layer. */
struct tsri_traffic {
    uint64_t graphs, waits, puts, gets;
};

/* Where the host computes, a graph is done when its call returns. Where memory is apart, graphs are
 * queued one behind the other, and the host waits only before it reads or writes such memory. */
struct tsri_ggml_queue {
    ggml_backend_t backend;
    bool apart;
    bool busy; /* graphs were queued since the last wait */
    struct tsri_traffic n;
};

int tsri_queue_compute(struct tsri_ggml_queue *q, struct ggml_cgraph *graph);
void tsri_queue_wait(struct tsri_ggml_queue *q);
void tsri_queue_put(struct tsri_ggml_queue *q, struct ggml_tensor *to, const void *from, size_t at,
                    size_t bytes);
void tsri_queue_zero(struct tsri_ggml_queue *q, struct ggml_tensor *t);
void tsri_queue_get(struct tsri_ggml_queue *q, const struct ggml_tensor *from, void *to,
                    size_t bytes);

/* ---- sessions and graphs ---- */

#define TSRI_MASS_ROWS_MAX 256u
#define TSRI_MASS_STEP 32u   /* rows whose weights are computed at once */
#define TSRI_LOGITS_STEP 32u /* rows whose logits are computed at once */

/* What a graph reads and writes besides the weights; persistent, so that a graph can be run again
 * with other contents. */
struct tsri_inputs {
    struct ggml_tensor *hidden;    /* [n_embd][rows] f32 */
    struct ggml_tensor *positions; /* [rows] i32 */
    struct ggml_tensor *slots;     /* [rows] i64 */
    struct ggml_tensor *picks;     /* [rows] i32: rows kept, or asked for logits */
    struct ggml_tensor *numbers;   /* [rows] i32: slots (deviation) or positions (logits) */
    struct ggml_tensor *mask;      /* f16, all batches of a pass, or as many as fit */
    struct ggml_tensor *mask_scratch;
    struct ggml_tensor *mass_q; /* [head_dim * n_heads][TSRI_MASS_ROWS_MAX] f32 */
    struct ggml_tensor *mass;   /* [slots] f32: sums of a pass where memory is apart */
};

/* What memory for graphs was reserved for: graphs of no more rows, and attention of no more rows
 * and keys, fit. */
struct tsri_room {
    uint64_t rows, mass;
};

/* A graph that is built and has its memory. */
struct tsri_graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
};

/* What a cached layer graph was built for. */
struct tsri_graph_shape {
    uint32_t n_rows, n_padded, n_wide, kv_first, n_kv, n_mass;
    uint64_t
        filled; /* 0: never used; as wide as leaves no hole, for shapes are compared as bytes */
    size_t mask_at;
};

/* Small passes alternate between few shapes: a question in layers with and without its attention, the
 * same at r = 0, decoding. */
enum { TSRI_SHAPES = 4 };

struct tsri_shape_cache {
    struct tsri_graph_shape shape;
    ggml_gallocr_t memory;
    struct tsri_room room;
    struct tsri_graph *graphs; /* [n_layers], ctx NULL: not built yet */
    uint64_t used;
};

struct tsr_executor_session {
    struct tsr_executor *x;
    uint64_t id; /* no other session of the process has had it */
    struct tsri_ggml_queue queue;
    ggml_gallocr_t memory; /* of graphs that are not kept */
    struct tsri_room room;
    struct tsri_shape_cache shapes[TSRI_SHAPES];
    uint64_t clock;
    uint8_t *scratch; /* where graphs that are not kept are built */
    size_t scratch_bytes;

    uint32_t n_slots, n_slots_padded;
    struct ggml_context *tensors;
    ggml_backend_buffer_t kv_buffer, in_buffer;
    void *kv_map; /* KV memory where the host computes: zero pages that are touched when used */
    size_t kv_map_bytes;
    struct ggml_tensor **k, **v; /* [n_layers]: [n_kv_heads * head_dim][n_slots_padded] */
    void **k_data, **v_data;     /* the same for the layout */
    struct tsri_inputs in;
    size_t mask_room;       /* elements of in.mask */
    bool host;              /* the session's tensors are host memory */
    uint32_t rows_max;      /* of a batch */
    float *embd;            /* staging of embeddings, one batch */
    ggml_fp16_t *mask_host; /* staging of a mask, one batch, where tensors are elsewhere */
    float *mass_host;       /* staging of sums of attention, likewise */
    float *mass_to;         /* of the caller: the pass has sums for it; NULL: it has none */
    uint32_t n_mass_to;
    ggml_backend_buffer_t staging; /* page-locked memory of embd and mask_host; NULL: plain */

    /* The pass; arrays have n_slots items, which is as many rows as there can be. */
    uint32_t n_rows, n_mass, n_bias_rows;
    struct tsri_fit fit;
    uint32_t *slots, *positions, *groups_of;
    int64_t *numbers; /* staging */
    struct tsr_model_group *groups;
    ggml_fp16_t *bias; /* [n_slots] */
    uint32_t n_bias;
    struct tsri_row_batch *batches;
    uint32_t n_batches, batches_max;
    uint32_t cut;      /* rows of a layer at once; 0: all */
    uint32_t batch_at; /* the next batch of the layer */
};

/* A graph of all layers for one row of each of several sessions. It is rebuilt when the sessions
 * change, or one of them needs more keys (TSRI_KV_STEP). */
struct tsri_decoder_shape {
    uint64_t session; /* its id */
    uint32_t n_kv, reserved;
};
/* A kind of matrix, and how many rows it may be multiplied with at once so that each of them has the
 * bits that it has alone. ggml has several kernels, by the number of rows, and on some processors
 * they round alike. Nothing says which do: it is tried out with random rows. */
#define TSRI_ALIKE_ROWS_MAX 8u
#define TSRI_ALIKE_KINDS_MAX 32u
struct tsri_alike_kind {
    enum ggml_type type;
    ggml_backend_buffer_type_t place; /* weights are repacked in some */
    int64_t n_in, n_out;
    uint32_t n_rows;
};

struct tsr_executor_decoder {
    struct tsr_executor *x;
    struct tsri_ggml_queue queue;
    ggml_gallocr_t memory;
    struct ggml_context *tensors;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *hidden, *attended; /* [..][rows_max] f32 */
    struct ggml_tensor *positions, *slots; /* i32, i64 */
    uint32_t rows_max;
    struct tsri_alike_kind kinds[TSRI_ALIKE_KINDS_MAX];
    uint32_t n_kinds;
    bool tried;
    float *embd;             /* staging */
    ggml_fp16_t *mask;       /* staging of one row */
    size_t mask_room;        /* its elements */
    struct tsri_graph graph; /* ctx NULL: none */
    struct ggml_tensor *logits;
    struct ggml_tensor *masks[TSR_DECODER_ROWS_MAX];
    /* what it was built for: */
    uint32_t n_rows;
    bool alike;
    struct tsri_decoder_shape shape[TSR_DECODER_ROWS_MAX];
    struct tsr_executor_session *sessions[TSR_DECODER_ROWS_MAX];
};
/* Rows that this matrix may be multiplied with; 1 if it was not tried out. */
uint32_t tsri_decoder_group(const struct tsr_executor_decoder *d, const struct ggml_tensor *matrix);
/* The graph for the shape that is set. */
int tsri_graph_decoder(struct tsr_executor_decoder *b);
int tsri_ggml_decoder_open(struct tsr_executor *x, struct tsr_executor_decoder **out,
                           uint32_t rows_max);
void tsri_ggml_decoder_close(struct tsr_executor_decoder *b);
int tsri_ggml_decoder_run(struct tsr_executor_decoder *b, const struct tsr_executor_row *rows,
                          uint32_t n, uint32_t flags, float *logits);

/* ---- tiles_x86.c ---- */

/* Whether the processor has AMX for bf16, and the kernel lets this process use it. */
bool tsri_tiles_here(void);
/* The name of the bits that kernels on tiles give. KV in stores goes by it: when those bits change, in
 * products or in attention, it must change too (their tests notice). */
#define TSRI_TILES_BITS "amx-bf16-1"

/* ---- multiply.c ---- */

/* Who multiplies with a matrix. Rows of a product depend neither on their number nor on that of
 * threads, but for ggml's. */
enum tsri_multiplier {
    TSRI_BY_GGML,
    TSRI_BY_BLOCKS, /* multiply_x86.c: with ggml's bits */
    TSRI_BY_K,      /* multiply_k_x86.c: with the bits of ggml's kernel for one row */
    TSRI_BY_TILES   /* multiply_tiles_x86.c: with bits of its own */
};
/* few: rows of an answer, which are to have the bits of one row alone. tiles: of the executor. */
enum tsri_multiplier tsri_multiplier(const struct ggml_tensor *matrix, bool few, bool tiles);
/* Rows of floats as tsri_multiply() wants them: the same for all matrices with that multiplier. */
struct ggml_tensor *tsri_multiply_input(struct ggml_context *ctx, enum tsri_multiplier by,
                                        struct ggml_tensor *x);
/* matrix times the rows, and maybe more rows, of zeros. */
struct ggml_tensor *tsri_multiply(struct ggml_context *ctx, enum tsri_multiplier by,
                                  struct ggml_tensor *matrix, struct ggml_tensor *input);
/* Whether tiles serve for such a matrix where it lies as in the file. */
bool tsri_tiles_fit(enum ggml_type type, int64_t n_in, int64_t n_out);

/* ---- attention_x86.c ---- */

/* What attention is made of, as in ggml_flash_attn_ext(), except that q is [head_dim, n_heads, n] and
 * as long as there are rows. The number of keys is a multiple of TSRI_KV_ALIGN. */
struct tsri_attention {
    struct ggml_tensor *q, *k, *v, *mask;
    float *scale; /* lives as long as the graph */
    bool tiles;   /* by tiles: not ggml's bits, but faster; where tsri_attention_tiles_can() */
};
/* Whether there is a kernel of our own for many rows over such K or V, on this processor. */
bool tsri_attention_can(const struct ggml_tensor *kv, uint32_t head_dim);
/* Whether there is one on tiles of bf16 too. */
bool tsri_attention_tiles_can(const struct ggml_tensor *kv, uint32_t head_dim);
/* With the bits of ggml's tiles of TSRI_TILE_ROWS rows, unless a->tiles; those of a row depend
 * neither on the number of rows nor on that of threads. */
struct ggml_tensor *tsri_attention(struct ggml_context *ctx, const struct tsri_attention *a);

/* ---- graphs ---- */

/* Builds the graph of a batch in a layer: K and V of its rows written, rows of `hidden` brought to
 * the next layer (in the last layer only K and V: the rest is done for rows asked for logits). Rows
 * from mass_first on leave their Q in mass_q; where memory is apart, their attention is added up in
 * `mass` instead. */
struct tsri_layer_spec {
    uint32_t layer;
    const struct tsri_row_batch *batch;
    uint32_t mass_first, n_mass; /* rows of the batch; n_mass 0: none */
    uint32_t mass_at;            /* where in mass_q */
};
int tsri_graph_layer(struct tsr_executor_session *s, const struct tsri_layer_spec *spec);
/* Attention of n rows of mass_q from `first` on, whose masks are those of the batch from mask_row
 * on, over the batch's keys; only where the host computes. */
struct tsri_mass_spec {
    uint32_t layer;
    const struct tsri_row_batch *batch;
    uint32_t first, n;
    uint32_t mask_row;
};
/* Weights of all heads and rows: [n_heads * n][n_kv], valid until the next graph; NULL when it
 * failed. */
const float *tsri_graph_mass(struct tsr_executor_session *s, const struct tsri_mass_spec *spec);
int tsri_graph_deviation(struct tsr_executor_session *s, uint32_t layer,
                         const struct tsri_row_batch *batch, float *k, float *v);
/* hidden[i] = hidden[picks[i]] for i < n, picks ascending. */
int tsri_graph_narrow(struct tsr_executor_session *s, uint32_t n);
/* The rest of the last layer and the head for a batch whose rows are picks. */
int tsri_graph_logits(struct tsr_executor_session *s, const struct tsri_row_batch *batch,
                      float *logits);
void tsri_graph_forget(struct tsr_executor_session *s);
size_t tsri_graph_scratch_bytes(void);

int tsri_ggml_session_open(struct tsr_executor *x, struct tsr_executor_session **out,
                           uint32_t n_slots);
void tsri_ggml_session_close(struct tsr_executor_session *s);
void tsri_ggml_session_layout(struct tsr_executor_session *s, struct tsr_kv_layout *out);
int tsri_ggml_session_begin(struct tsr_executor_session *s, const struct tsr_model_pass *pass);
int tsri_ggml_session_layer(struct tsr_executor_session *s, const struct tsr_model_layer *layer);
int tsri_ggml_session_deviation(struct tsr_executor_session *s,
                                const struct tsr_model_deviation *d);
int tsri_ggml_session_narrow(struct tsr_executor_session *s, const uint32_t *keep, uint32_t n);
int tsri_ggml_session_logits(struct tsr_executor_session *s, const uint32_t *rows, uint32_t n,
                             float *logits);
void tsri_ggml_session_end(struct tsr_executor_session *s);
void tsri_ggml_session_cut(struct tsr_executor_session *s, uint32_t n_rows);
/* A ggml backend for one thread, with the executor's number of threads. */
int tsri_ggml_backend_open(struct tsr_executor *x, ggml_backend_t *out);

#endif
