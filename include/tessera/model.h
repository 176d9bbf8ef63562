/* model.h - a model that runs layer by layer over KV memory that others may fill.
 *
 * Blending needs what few engines offer: rows at any positions, keys that were loaded from
 * elsewhere, one layer at a time. An *executor* offers it: one constant table, struct
 * tsr_executor_ops, in its own shared object (libtessera-model.so runs GGUF files on ggml) that
 * exports it as the one symbol tsr_executor. The core links only the plain reference executor,
 * tsr_executor_tiny(): random weights, for tests.
 *
 *   tsr_model_open()          load a model with an executor
 *   tsr_session_open()        KV memory for one sequence of n_slots tokens
 *   tsr_session_layout()      where it is: fill it, read it (device.h says how)
 *   tsr_session_begin()       a pass: which rows, at which positions, and what each may see
 *   tsr_session_layer()       one layer of the pass: K and V of its rows are written in place
 *   tsr_session_logits()      after the last layer
 *   tsr_session_end()         at any layer; nothing of the pass stays but the K and V it wrote.
 *                             Before, they may still be on their way: an accelerator queues layers
 *
 * Several sequences: tsr_decoder_run() computes one row for each of several sessions and reads the
 * weights once for all of them. tsr_session_cut() lets long layers be run in pieces, so that others
 * get a turn between them.
 *
 * A prefill is a pass of all rows, decoding one of a single row. K is stored rotated to its
 * position (post-RoPE); row s of a layer is slot s.
 *
 * Threads: a model may be used from any thread; a session by one at a time, but other threads may
 *          write slots and layers that no running pass reads.
 * Memory:  pointers you pass are borrowed until the call returns; pointers you get live as long as
 *          their model or session.
 * Errors:  int results are >= 0 on success and one of enum tsr_err otherwise. A pass that failed in
 *          a layer must be ended; K and V of the rows it was to write are then undefined from that
 *          layer on, all others are as they were.
 *
 * Structs that begin with `size` may grow: set size = sizeof the struct; zero always means default.
 */
#ifndef TESSERA_MODEL_H
#define TESSERA_MODEL_H

#include <tessera/device.h>
#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models -------------------------------------------------------------------------------- */

struct tsr_model_desc {
    size_t size;
    const char *path;    /* of the model; the tiny executor reads a description, see below */
    uint32_t n_threads;  /* 0: as many as the machine has processors, at most 16 */
    uint32_t kv_dtype;   /* enum tsr_dtype: F16, BF16 or F32; 0: F16 */
    const char *weights; /* converts matrices while loading: "q8_0"; NULL: as they are */
    const char *device;  /* "cpu", "cuda", ...; NULL: cpu */
    const char *library; /* shared object of the executor; NULL: libtessera-model.so where dlopen
                            looks */
    /* Set by the core: keeps the text as the calling thread's message and returns err. */
    int (*fail)(int err, const char *text);
};

#define TSR_MODEL_NAME_BYTES 128u
#define TSR_MODEL_WEIGHTS_BYTES 32u

enum tsr_model_caps {
    TSR_MODEL_MASS = 1,      /* layers return attention mass */
    TSR_MODEL_DEVIATION = 2, /* has `deviation` */
    TSR_MODEL_BIAS = 4,      /* passes take a bias */
    TSR_MODEL_TEXT = 8,      /* has tokenize, detokenize and is_end */
    TSR_MODEL_CHAT = 16      /* has chat, and this model has a template */
};

struct tsr_model_info {
    size_t size;
    char architecture[32]; /* "llama", "qwen2", "qwen3" */
    char name[TSR_MODEL_NAME_BYTES];
    char device[96]; /* one line to read: where it runs, with how many threads */
    uint32_t caps;   /* enum tsr_model_caps */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_vocab;
    uint32_t context;   /* positions the model was trained for; sessions may have no more slots */
    uint32_t kv_dtype;  /* enum tsr_dtype */
    uint32_t rows_max;  /* of one pass; 0: as many as the session has slots */
    uint32_t token_bos; /* UINT32_MAX: none */
    uint64_t weight_bytes;
    /* Of the weights as they are computed with (a conversion changes it), and of the tokenizer: for
     * struct tsr_space_desc. */
    uint8_t weights[TSR_MODEL_WEIGHTS_BYTES];
    uint8_t tokenizer[16];
    struct tsr_rope rope; /* what it points to lives as long as the model */
    /* How prompts are computed, where results differ by more than the order of sums; "" else. KV is
     * shared only with executors that compute alike. */
    char arithmetic[16];
    uint32_t rows_best; /* of a layer to compute at once; 0: any number is as good */
};

/* ---- passes ------------------------------------------------------------------------------- */

/* One token to compute. Its K and V go to `slot`, K rotated to `position`; in a prompt both are the
 * token's index. They differ while a chunk is computed as if it were at another position. */
struct tsr_model_row {
    uint32_t token, position, slot;
};

#define TSR_MODEL_RANGES_MAX 2u
/* Consecutive rows that see the same ranges of slots. The last range holds the rows: each sees it up
 * to and with its own slot. The range before it, if there is one, is seen whole, and may lie
 * anywhere: before the rows, or after them; after them, it must hold no rows of the same pass, which
 * executors may compute slot by slot. At least one slot lies between the two. */
struct tsr_model_group {
    uint32_t n_rows;
    uint32_t n_ranges;
    struct tsr_range sees[TSR_MODEL_RANGES_MAX];
};

struct tsr_model_pass {
    size_t size;
    const struct tsr_model_row *rows; /* slots ascend */
    uint32_t n_rows;
    uint32_t n_groups;
    const struct tsr_model_group *groups; /* one after the other, all rows together */
    /* Added to the attention logits (after the scale, before the softmax) of slot s for the last
     * n_bias_rows rows: bias[s]; slots from n_bias on get nothing. NULL: none. */
    const float *bias;
    uint32_t n_bias, n_bias_rows;
    uint32_t n_mass_rows; /* the last so many rows are asked for their attention */
    uint32_t freq_set;    /* of the rope, for models whose frequencies change with the length of the
                             prompt: 0, or DYNAMIC: that length, LONGROPE: 1, beyond `trained` */
    uint32_t flags;       /* enum tsr_pass_flags */
    uint32_t reserved;
};

enum tsr_pass_flags {
    /* Rows of an answer, one or a few at a time. They may go through kernels that are faster for so
     * few rows and round differently. */
    TSR_PASS_DECODE = 1
};

/* One layer. */
struct tsr_model_layer {
    size_t size;
    uint32_t layer; /* the first is 0, then one after the other */
    uint32_t n_mass;
    /* [n_mass], or NULL. Attention of the mass rows is added: mass[s] += sum over those rows of the
     * mean over heads of their softmax weight on slot s; slots from n_mass on are left out. It is
     * complete when logits were asked for or the pass has ended, and must stay in place until then:
     * an accelerator adds up all layers before the host reads anything. In a blend it is the same
     * memory for all layers of a pass. */
    float *mass;
};

/* How far K and V of the current rows, as the layer would write them, are from those in their
 * slots: sums of squared differences in float. Nothing is written, and the layer can then be run.
 */
struct tsr_model_deviation {
    size_t size;
    uint32_t layer; /* the next one to run */
    uint32_t reserved;
    float *k, *v; /* [current rows]; either may be NULL */
};

/* ---- text --------------------------------------------------------------------------------- */

enum tsr_text_flags {
    TSR_TEXT_START = 1,  /* the text begins the prompt: the model's begin token, if it has one */
    TSR_TEXT_SPECIAL = 2 /* spellings of special tokens become these tokens (templates; never what
                            users or documents say) */
};

struct tsr_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
};

/* ---- using a model ------------------------------------------------------------------------ */

struct tsr_model;
struct tsr_session;
struct tsr_executor_ops;

/* ops NULL: loaded from desc->library. TSR_EDEVICE when there is no such library, TSR_EVERSION
 * when it is of another abi, TSR_EUNSUP with the name of what a model has that cannot be run. */
TSR_API TSR_MUST int tsr_model_open(struct tsr_model **out, const struct tsr_executor_ops *ops,
                                    const struct tsr_model_desc *desc);
/* Sessions must be closed first. Accepts NULL. */
TSR_API void tsr_model_close(struct tsr_model *model);
TSR_API TSR_MUST int tsr_model_info(const struct tsr_model *model, struct tsr_model_info *out);
/* Tokens of a text; returns how many there are, fills at most max. */
TSR_API TSR_MUST int tsr_model_tokenize(const struct tsr_model *model, const char *text,
                                        size_t bytes, uint32_t flags, uint32_t *tokens,
                                        uint32_t max);
/* Text of tokens, not ended by a zero; returns its length, writes at most bytes. Special tokens are
 * empty without TSR_TEXT_SPECIAL. A token may end in the middle of a character. */
TSR_API TSR_MUST int tsr_model_detokenize(const struct tsr_model *model, const uint32_t *tokens,
                                          uint32_t n, uint32_t flags, char *text, size_t bytes);
/* 1: the token ends an answer. */
TSR_API int tsr_model_is_end(const struct tsr_model *model, uint32_t token);
/* The model's template over messages, followed by the opening of the assistant's turn; returns
 * its length, writes at most bytes. TSR_EUNSUP when the model has none. */
TSR_API TSR_MUST int tsr_model_chat(const struct tsr_model *model,
                                    const struct tsr_chat_message *messages, uint32_t n, char *text,
                                    size_t bytes);

TSR_API TSR_MUST int tsr_session_open(struct tsr_session **out, struct tsr_model *model,
                                      uint32_t n_slots);
TSR_API void tsr_session_close(struct tsr_session *session);
TSR_API const struct tsr_kv_layout *tsr_session_layout(const struct tsr_session *session);
TSR_API struct tsr_model *tsr_session_model(const struct tsr_session *session);
/* Everything is checked here; a pass that is still open is refused (TSR_EBUSY). */
TSR_API TSR_MUST int tsr_session_begin(struct tsr_session *session,
                                       const struct tsr_model_pass *pass);
TSR_API TSR_MUST int tsr_session_layer(struct tsr_session *session,
                                       const struct tsr_model_layer *layer);
TSR_API TSR_MUST int tsr_session_deviation(struct tsr_session *session,
                                           const struct tsr_model_deviation *deviation);
/* Goes on with some of the current rows: n indices into them, ascending. Mass and bias rows count
 * from the end: those that are dropped are no longer counted. */
TSR_API TSR_MUST int tsr_session_narrow(struct tsr_session *session, const uint32_t *keep,
                                        uint32_t n);
/* After the last layer: logits of n of the current rows, [n][n_vocab]. */
TSR_API TSR_MUST int tsr_session_logits(struct tsr_session *session, const uint32_t *rows,
                                        uint32_t n, float *logits);
/* Rows that the pass has left; 0 when none is open. */
TSR_API uint32_t tsr_session_rows(const struct tsr_session *session);
/* Does nothing when no pass is open. */
TSR_API void tsr_session_end(struct tsr_session *session);

/* From the next pass on, layers are run in pieces of about n_rows rows: tsr_session_layer() returns 1
 * while rows are left; call it again with the same layer. 0: whole layers, as at first. Results are
 * the same. Executors that cannot do it run whole layers. */
TSR_API void tsr_session_cut(struct tsr_session *session, uint32_t n_rows);

/* ---- several sessions at once -------------------------------------------------------------- */

#define TSR_DECODER_ROWS_MAX 64u

/* The next token of one session: its slot is its position, and it sees all slots before it. */
struct tsr_decoder_row {
    struct tsr_session *session; /* of the decoder's model; no pass is open; each only once */
    uint32_t token, position;
    const float *bias; /* as in struct tsr_model_pass; NULL: none */
    uint32_t n_bias, reserved;
};

enum tsr_decoder_flags {
    /* A row has the same bits whichever rows it is decoded with. Without it, the fastest kernels for
     * this number of rows are used. */
    TSR_DECODER_ALIKE = 1
};

/* Work memory for decoding; used by one thread at a time. */
struct tsr_decoder;
/* Of at most rows_max rows, up to TSR_DECODER_ROWS_MAX. */
TSR_API TSR_MUST int tsr_decoder_open(struct tsr_decoder **out, struct tsr_model *model,
                                      uint32_t rows_max);
/* Before its model is closed. Accepts NULL. */
TSR_API void tsr_decoder_close(struct tsr_decoder *decoder);
/* K and V of the rows are in their slots then, and logits has [n][n_vocab]. After an error K and V
 * of these slots are undefined, all others are as they were. */
TSR_API TSR_MUST int tsr_decoder_run(struct tsr_decoder *decoder,
                                     const struct tsr_decoder_row *rows, uint32_t n, uint32_t flags,
                                     float *logits);

/* ---- writing an executor ------------------------------------------------------------------ */

#define TSR_EXECUTOR_ABI 2u
#define TSR_EXECUTOR_SYMBOL "tsr_executor"

/* Yours to define; the core only hands them back. */
struct tsr_executor;
struct tsr_executor_session;
struct tsr_executor_decoder;

/* struct tsr_decoder_row as an executor gets it. */
struct tsr_executor_row {
    struct tsr_executor_session *session;
    uint32_t token, position;
    const float *bias;
    uint32_t n_bias, reserved;
};

/* Only src/blend calls through the table. It has checked: sizes, rows that ascend and lie inside
 * the session, tokens below n_vocab, groups that cover all rows, a bias, mass or deviation only
 * where info has said so, layers in order, indices in range and ascending, never zero rows. Say why
 * something failed through desc->fail, and return its result.
 *
 * A layer writes K and V of all current rows before any of them attends: rows of one pass see each
 * other. Results must not depend on which rows share a pass: the same row over the same keys gives
 * the same bits, alone or among others (this is what makes recomputing everything equal to a
 * prefill, bit by bit, also when a prompt is computed in several passes). Passes with
 * TSR_PASS_DECODE are the exception. An executor whose kernels cannot promise that for all shapes
 * says so in its documentation, and does so for passes of equal rows.
 */
struct tsr_executor_ops {
    uint32_t abi;     /* TSR_EXECUTOR_ABI */
    const char *name; /* "ggml", "tiny" */

    int (*open)(struct tsr_executor **out, const struct tsr_model_desc *desc);
    void (*close)(struct tsr_executor *x);
    /* Writes at most out->size bytes; what it does not set is 0. */
    int (*info)(struct tsr_executor *x, struct tsr_model_info *out);

    /* (optional) All four or none; see the functions above. */
    int (*tokenize)(struct tsr_executor *x, const char *text, size_t bytes, uint32_t flags,
                    uint32_t *tokens, uint32_t max);
    int (*detokenize)(struct tsr_executor *x, const uint32_t *tokens, uint32_t n, uint32_t flags,
                      char *text, size_t bytes);
    int (*is_end)(struct tsr_executor *x, uint32_t token);
    int (*chat)(struct tsr_executor *x, const struct tsr_chat_message *messages, uint32_t n,
                char *text, size_t bytes);

    /* KV memory is zeroed. The layout has two planes, K with rope_dims and V, of kv_dtype, and
     * n_slots slots that are positions; the strides are yours. */
    int (*session_open)(struct tsr_executor *x, struct tsr_executor_session **out,
                        uint32_t n_slots);
    void (*session_close)(struct tsr_executor_session *s);
    void (*session_layout)(struct tsr_executor_session *s, struct tsr_kv_layout *out);

    int (*begin)(struct tsr_executor_session *s, const struct tsr_model_pass *pass);
    int (*layer)(struct tsr_executor_session *s, const struct tsr_model_layer *layer);
    /* (optional) With TSR_MODEL_DEVIATION. */
    int (*deviation)(struct tsr_executor_session *s, const struct tsr_model_deviation *deviation);
    int (*narrow)(struct tsr_executor_session *s, const uint32_t *keep, uint32_t n);
    int (*logits)(struct tsr_executor_session *s, const uint32_t *rows, uint32_t n, float *logits);
    /* After begin, at any layer, also after a failure; frees or keeps for the next pass. What layers
     * have queued is done when it returns: K and V are in their slots, mass is added. */
    void (*end)(struct tsr_executor_session *s);

    /* Members above belong to abi 1. */

    /* (optional) `layer` then returns 1 while rows of the layer are left. */
    void (*cut)(struct tsr_executor_session *s, uint32_t n_rows);
    /* (optional) All three or none; without them rows are decoded by passes, one after another. A
     * session may have been closed since the last call, and another one opened at its address. */
    int (*decoder_open)(struct tsr_executor *x, struct tsr_executor_decoder **out,
                        uint32_t rows_max);
    void (*decoder_close)(struct tsr_executor_decoder *b);
    int (*decoder_run)(struct tsr_executor_decoder *b, const struct tsr_executor_row *rows,
                       uint32_t n, uint32_t flags, float *logits);

    /* Members above belong to abi 2; append below, never reorder. */
};

/* The plain executor: C loops in float, weights made from a seed. Its `path` is a description,
 * words in any order, all optional but the architecture: "qwen3 seed=7 layers=3 heads=4 kv_heads=2
 * head_dim=16 ff=96 vocab=128 context=4096 theta=10000"
 */
TSR_API const struct tsr_executor_ops *tsr_executor_tiny(void);

#ifdef __cplusplus
}
#endif
#endif
