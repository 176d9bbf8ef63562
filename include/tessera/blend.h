/* blend.h - answer a prompt from cached text: load the cached parts, rotate them to their position,
 * compute the rest, and recompute a few tokens of what was computed elsewhere.
 *
 *   tsr_blend_open()     joins a model and a cache; opens the model's space
 *   tsr_blend_ask()      runs one prompt: the session then holds its KV, ready to decode, and you
 *                        get the logits of its last token
 *   tsr_blend_learn()    stores the documents of a prompt after its answer (TSR_ASK_FIRST)
 *   tsr_blend_look()     which document the question looks at, where their order is free
 *
 * Engines that run the model themselves drive the same loop: tsr_blend_start(), then
 * tsr_blend_next() returns the next step (begin a pass of these rows; layer 7 is loaded, run it;
 * ...) until none is left, and tsr_blend_end() returns the report. tsr_blend_ask() is that loop
 * over the sessions of model.h. You may stop at any step: tsr_blend_end() waits only for a copy in
 * progress. Such an engine describes its model with a struct tsr_model_info instead of a tsr_model,
 * and with TSR_ASK_CONTEXT computes the question itself, with its own kernels and sampler.
 *
 * Kinds of tokens in a plan. EXACT: loaded, with the same bits as a prefill. CANDIDATE: loaded, but
 * computed without the text before it in this prompt; may be selected. ALWAYS: loaded, and always
 * recomputed because it is at a seam. SELECTED: a candidate that was selected. NEW: not cached.
 *
 * If a tier fails, the answer is the same as if the lost tokens had never been cached; the report
 * counts them.
 *
 * Threads: a blend from any thread; a run and its session from one thread at a time.
 * Memory:  what a run is started with stays in place until it ends; what a step points to until the
 *          next step.
 * Errors:  as in tessera.h. A failing tier is not an error.
 */
#ifndef TESSERA_BLEND_H
#define TESSERA_BLEND_H

#include <tessera/model.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tsr_token_state {
    TSR_TOKEN_NEW = 0,
    TSR_TOKEN_EXACT = 1,
    TSR_TOKEN_CANDIDATE = 2,
    TSR_TOKEN_ALWAYS = 3,
    TSR_TOKEN_SELECTED = 4
};

/* Which tokens are recomputed. */
enum tsr_selector {
    TSR_SELECT_DEFAULT = 0, /* the profile's */
    TSR_SELECT_QUERY = 1,   /* those that the question looks at (needs TSR_MODEL_MASS) */
    TSR_SELECT_HKVD = 2,    /* those whose K and V differ most at check layers (CacheBlend; needs
                               TSR_MODEL_DEVIATION) */
    TSR_SELECT_LINK = 3,    /* the first ones of every chunk (EPIC) */
    TSR_SELECT_NONE = 4,
    TSR_SELECT_FULL = 5 /* all of them: bit-equal to a prefill */
};
/* "query", "hkvd", "link", "none", "full"; NULL and -1 for anything else. */
TSR_API const char *tsr_selector_name(uint32_t selector);
TSR_API int tsr_selector_find(const char *name);

/* ---- profiles: settings measured for a model ------------------------------------------------- */

#define TSR_PROFILE_POINTS_MAX 8u
#define TSR_PROFILE_CHECKS_MAX 4u
#define TSR_PROFILE_ROUNDS_MAX 8u
#define TSR_PROFILE_DRAFT_MAX 256u
#define TSR_PROFILE_FRONTIER_MAX 64u
#define TSR_PROFILE_PRIMER_BYTES 4096u
#define TSR_GATE_WEIGHTS_MAX 16u

/* Straight lines between points, constant before the first and after the last; none: 0. */
struct tsr_curve {
    uint32_t n;
    uint32_t reserved;
    struct tsr_curve_point {
        double at, value;
    } points[TSR_PROFILE_POINTS_MAX];
};

/* hkvd: at this layer, before it runs, the candidates that stay. */
struct tsr_check {
    uint32_t layer;
    uint32_t reserved;
    double ratio;     /* of all candidates; 0: the profile's, or by threshold */
    double threshold; /* not 0: those whose deviation is above so many times the mean */
};

/* What one setting gave on the prompts it was measured with. */
struct tsr_frontier {
    uint32_t selector, context, n_prompts;
    uint32_t n_rounds; /* 0: one */
    double ratio, bias;
    double layers_from, layers_to; /* as query_layers; 0 and 0: not asked */
    double kl;                     /* mean of KL(prefill || blend) at the first answer token */
    double agreement;              /* share of prompts with the same first token */
    double speedup;                /* time to the first token: prefill / blend */
};

/* What differs for prompts with a leading document (TSR_ASK_LEAD): the text that the answer is taken
 * from is exact there, so other rounds suffice, and other values show what the answer is worth. As
 * the members of the same name of the profile; what is not given is as there. */
struct tsr_lead_profile {
    uint32_t n_rounds; /* 0: not given */
    uint32_t reserved;
    double rounds[TSR_PROFILE_ROUNDS_MAX];
    double draft_floor, gate_limit;    /* NAN: not given */
    double draft_passes, gate_accepts; /* likewise */
    double gate[TSR_GATE_WEIGHTS_MAX]; /* all of them 0: not given */
};

struct tsr_profile {
    size_t size;
    char space[33]; /* fingerprint in hexadecimal; "": any */
    char model[TSR_MODEL_NAME_BYTES];
    uint32_t selector; /* enum tsr_selector */
    /* enum tsr_context, what chunks are computed after: SAME, the system prompt; PURE, nothing;
     * PRIMER, the primer and no system prompt, so that one entry serves every prompt. The system
     * prompt itself is always computed alone. */
    uint32_t context;
    uint32_t boundary;     /* tokens at each seam inside a chunk that are always computed */
    uint32_t first_tokens; /* of each chunk, always computed when something is selected */
    uint32_t query_rows;   /* of the question, asked for their attention */
    uint32_t n_checks;
    uint32_t n_frontier;
    uint32_t bias_reused; /* 1: the bias is for tokens that are not recomputed only */
    uint32_t n_rounds;
    uint32_t draft;       /* tokens of the answer that the gate compares before and after a round */
    uint32_t bias_answer; /* 1: rows after the prompt have the bias too, see tsr_blend_bias() */
    /* 1: tokens that the draft looks at are chosen along with those that the question looks at. */
    uint32_t draft_selects;
    double ratio; /* of the reused tokens that are recomputed */
    /* A token of the draft at r = 0 with a margin below this: everything is computed at once,
     * because rounds would hardly lead to an answer that can be trusted. */
    double draft_floor;
    /* Layers whose attention chooses tokens, from and to, as shares of the depth. */
    double query_layers[2];
    char primer[TSR_PROFILE_PRIMER_BYTES]; /* text for context PRIMER; ends with a zero */
    struct tsr_check checks[TSR_PROFILE_CHECKS_MAX];
    /* The bias of the question's rows on reused context: by the ratio, times by the number of
     * chunks that are not exact. */
    struct tsr_curve bias, bias_chunks;
    /* With a gate: ratios, ascending, of rounds that each recompute more, by selector query; none:
     * one round at `ratio`. */
    double rounds[TSR_PROFILE_ROUNDS_MAX];
    /* The gate: below this probability that the answer is the one a prefill gives, another round
     * follows, and after the last one everything is computed. Its weights have names, see
     * tsr_gate_weight_name(); all of them 0: no gate. */
    double gate_limit;
    double gate[TSR_GATE_WEIGHTS_MAX];
    struct tsr_frontier frontier[TSR_PROFILE_FRONTIER_MAX];
    struct tsr_lead_profile lead;
    /* Shares of the prompts that were measured: whose draft has no token below draft_floor, and whose
     * answer the gate accepts. What a trial costs is weighed with them (tsr_ask_desc.row_s).
     * gate_accepts 0: not known. */
    double draft_passes, gate_accepts;
};

/* Cautious defaults for a model that was not measured: no bias, no gate. The primer is a neutral
 * text: six short passages. */
TSR_API void tsr_profile_init(struct tsr_profile *profile);
/* A YAML file. Unknown keys, wrong types and numbers out of range: TSR_ECONFIG with the line. */
TSR_API TSR_MUST int tsr_profile_load(struct tsr_profile *profile, const char *path);
TSR_API TSR_MUST int tsr_profile_parse(struct tsr_profile *profile, const char *text, size_t bytes,
                                       const char *name);
/* Written beside, then renamed. */
TSR_API TSR_MUST int tsr_profile_save(const struct tsr_profile *profile, const char *path);
/* The bias for a ratio and a number of chunks. */
TSR_API double tsr_profile_bias(const struct tsr_profile *profile, double ratio, uint32_t n_chunks);

/* ---- the gate -------------------------------------------------------------------------------- */

/* What shows whether a blended answer is the one that a prefill gives. NAN: not known. */
struct tsr_gate {
    double moved;   /* KL between the first token's distribution before the last round (before
                       the first: at r = 0, the bias included) and after it */
    double changed; /* 1: its most likely token is another one than before, 0: the same */
    double mass;    /* share of the question's attention on tokens that stay as they were loaded */
    double fresh;   /* and on those that were loaded and recomputed */
    double entropy; /* of the blended answer's first token, in nats */
    double top, margin; /* its largest probability, and how far the second one is below */
    double chunk_tokens, n_chunks; /* mean length and number of chunks that are not exact */
    double ratio;                  /* of the reused tokens that were recomputed */
    /* Of the draft, up to the first token that the last round changed; without one, of the first
     * token alone, and nothing agrees. */
    double agree; /* 1: the last round gives every token of it */
    double worst; /* smallest margin of a token */
    double doubt; /* mean of log(margin + 0.02) */
    double low;   /* tokens with a margin below 0.2 */
    /* Smallest margin of a token of the draft before the first round, which draft_floor is compared
     * with; not known without a draft. */
    double draft;
};
/* Names of profile->gate[weight]: "constant", then those of the members above; NULL after the last.
 * moved, chunk_tokens and n_chunks count as log(value + 1e-4), the others as they are. */
TSR_API const char *tsr_gate_weight_name(uint32_t weight);
/* The probability that the answer is the one that a prefill gives: 1 / (1 + exp(-sum)) of the
 * weighted values. NAN: the profile has no gate, or a value that it needs is not known. */
TSR_API double tsr_gate_predict(const struct tsr_profile *profile, const struct tsr_gate *gate);
/* Fits profile->gate to prompts with known answers, same[i] 1: as a prefill's, 0: another (logistic
 * regression with a ridge). A value that is known of no prompt has no weight; prompts without one of
 * the others are left out. */
TSR_API TSR_MUST int tsr_gate_fit(struct tsr_profile *profile, const struct tsr_gate *gates,
                                  const double *same, uint32_t n);
/* KL(p || q) of two rows of logits; the largest probability of one, and its entropy in nats. */
TSR_API double tsr_logits_kl(const float *p, const float *q, uint32_t n);
TSR_API double tsr_logits_top(const float *logits, uint32_t n, uint32_t *token);
TSR_API double tsr_logits_entropy(const float *logits, uint32_t n);

/* ---- blends ---------------------------------------------------------------------------------- */

enum tsr_blend_flags {
    TSR_BLEND_INT8 = 1 /* segments are stored as int8; prefixes never */
};

struct tsr_blend_desc {
    size_t size;
    struct tsr_model *model; /* NULL: `info` is given */
    struct tsr_cache *cache; /* NULL: nothing is loaded or stored */
    /* Copied; NULL: the defaults. Options blend_check_layers, blend_recompute_ratios,
     * blend_thresholds and blend_boundary of the cache override it where they are set. */
    const struct tsr_profile *profile;
    uint32_t flags;            /* enum tsr_blend_flags */
    uint32_t blend_min_tokens; /* fewer approximate tokens are not worth it: computed; 0: the
                                  cache's option of that name, UINT32_MAX: always worth it */
    const char *salt;          /* tenant salt of the space */
    /* Of an engine that runs the model itself: caps, layers, heads, dims, vocabulary, context,
     * kv_dtype, identities and rope are read. Copied, but for what the rope points to, which stays
     * in place until the blend is closed. */
    const struct tsr_model_info *info;
    /* The tokens of profile->primer, copied: from the tokenizer of an engine that runs the model
     * itself, with the begin token of the model if it has one. NULL: `model` tokenizes the text.
     * Without context PRIMER they are not used; with it, one of both is required. */
    const uint32_t *primer;
    uint32_t n_primer; /* at most TSR_PRIMER_TOKENS_MAX */
    /* Tokens of a block of exact prefixes, which then have a space of their own: a chat grows by a
     * few tokens each turn, and only whole blocks are found. 0: option chunk_size. */
    uint32_t prefix_block_tokens;
    /* (optional) The space in which an engine's connector keeps what plain requests compute, as K and
     * V. Asks with TSR_ASK_ANY then use its text too: the exact prefix of the prompt as exact, and
     * runs anywhere else, which saw other text, where nothing better is cached and no segment is to
     * be filled. model, weights, tokenizer, adapter, salt, rank, world, group and block_tokens are
     * read; shape and rope are the model's own, so that KV of another shape is never found. Not used
     * for a rope whose frequencies change with the length (DYNAMIC, LONGROPE). */
    const struct tsr_space_desc *traffic;
};
#define TSR_PRIMER_TOKENS_MAX 1024u

struct tsr_blend;
TSR_API TSR_MUST int tsr_blend_open(struct tsr_blend **out, const struct tsr_blend_desc *desc);
TSR_API void tsr_blend_close(struct tsr_blend *blend);
/* Of prefixes, unless they have a space of their own, and, without TSR_BLEND_INT8, of segments; NULL
 * without a cache. */
TSR_API struct tsr_space *tsr_blend_space(const struct tsr_blend *blend);
/* Of the model: that of the space, without salt and without what `arithmetic` adds (model.h). What
 * was measured of a model goes by it (struct tsr_profile, `space`). */
TSR_API void tsr_blend_model(const struct tsr_blend *blend, uint8_t out[16]);
TSR_API const struct tsr_profile *tsr_blend_profile(const struct tsr_blend *blend);
/* Tokens of the primer; 0 without context PRIMER. While segments are filled, its KV is in as many
 * slots after the prompt: give sessions and layouts that room. Without it (TSR_BLEND_ROOM) cached
 * segments are reused as always; the others are computed in the prompt, and not stored. */
TSR_API uint32_t tsr_blend_primer(const struct tsr_blend *blend);

enum tsr_ask_flags {
    TSR_ASK_FILL = 1,   /* segments that are not cached are computed alone and stored, so that
                           their text is computed once and the next answer is the same */
    TSR_ASK_ANY = 2,    /* also use runs of stored text at any offset */
    TSR_ASK_PREFIX = 4, /* also use, and store, exact prefixes */
    TSR_ASK_GATE = 8,   /* recompute more, in the profile's rounds, and then everything, until its
                           gate is sure enough */
    TSR_ASK_RATIO = 16, /* `ratio` is given: one round; otherwise it is the profile's */
    TSR_ASK_BIAS = 32,  /* `bias` is given; otherwise it is the profile's */
    /* Only the context: the caller computes the question, and no logits are returned. If nothing
     * must be recomputed, there is no pass at all. No gate, which needs logits, and no bias, which
     * is for the question's rows. A pass that reads the question's attention may overwrite its
     * slots. */
    TSR_ASK_CONTEXT = 64,
    /* If most of the text is not cached, do not fill: everything but exact KV is computed in the
     * prompt, so that the answer is that of a prefill, and comes as soon. tsr_blend_learn() stores
     * the segments afterwards. */
    TSR_ASK_FIRST = 128,
    /* Only fills: segments that are not cached are computed alone and stored. There is no answer,
     * and the slots of the prompt are scratch memory. For engines that run the model themselves;
     * others call tsr_blend_learn(). */
    TSR_ASK_LEARN = 256,
    /* All rounds of the profile, whatever the gate says, and no prefill after them: to measure
     * rounds. */
    TSR_ASK_ROUNDS = 512,
    /* Only looks: the question reads what is cached, for tsr_blend_looks(). Segments that are not
     * cached are filled first where TSR_ASK_FILL says so. There is no answer, and the slots of the
     * prompt are scratch memory. */
    TSR_ASK_LOOK = 1024,
    /* The first document, the segment after the system prompt, is computed in the prompt although
     * it is cached, and is exact there; the others are reused. Not with TSR_BLEND_INT8, which would
     * round what is before it. The profile may have rounds and a gate of their own for such prompts.
     * See tsr_segments_lead(). */
    TSR_ASK_LEAD = 2048,
    /* No pass begins before everything that is loaded is in place: for engines that compute
     * something else meanwhile. Without it a pass follows the loads layer by layer, and ends
     * earlier if there is nothing else to do. */
    TSR_ASK_LOADED = 4096
};

struct tsr_ask_desc {
    size_t size;
    /* Its slots from 0 on are overwritten. After the prompt, as many as the primer has, and with a
     * gate or rounds as many as the profile's draft has, as far as there are slots. */
    struct tsr_session *session;
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t n_segments;
    /* Documents, ascending; what follows the last one is the question, at least one token. None,
     * with option chunked and separators in tsr_blend_space() (tsr_separators_set()): the prompt is
     * cut there, and begins with a system prompt. TSR_EPROMPT: it is malformed. */
    const struct tsr_range *segments;
    uint32_t flags;      /* enum tsr_ask_flags */
    uint32_t system;     /* 1: the first segment is a system prompt, from token 0 on */
    uint32_t selector;   /* enum tsr_selector */
    uint32_t timeout_ms; /* how long a tier may keep a layer waiting; 0: 5000 */
    double ratio;        /* 0 .. 1, of the reused tokens */
    double bias;
    uint32_t n_context; /* where the question begins; 0: after the last segment, and without
                           segments the last token */
    /* Adapter and cache salt of the request, no media: only plain requests with the same ones are
     * found in tsr_blend_desc.traffic. The blend's own documents are not kept apart by them: open a
     * blend with its own salt for each. */
    uint32_t n_extra;
    const struct tsr_extra *extra;
    /* Of engines that run the model themselves, for tsr_blend_start(): */
    /* [n_context], the slot of each token of the context in the layout, for memory in pages. What
     * follows the context, the question and then the primer or a draft of the answer, is then in
     * slots 0 .. of `rest`, memory of the same kind. Rows still name tokens: slot i of a pass is
     * token i. NULL: token i is in slot i of the layout, and rest is not used. */
    const int64_t *slots;
    const struct tsr_kv_layout *rest;
    /* The engine's queue on its device (a cudaStream_t; 1: the default stream): nothing is loaded
     * before what it holds when the run starts. The engine waits for its own passes before it takes
     * the step that follows them. NULL: nothing is queued. */
    void *compute;
    /* With a gate and no ratio: what a row of such a prompt takes on this machine where all of it
     * is computed, and a token of an answer, in seconds. Where a trial (two drafts of the answer,
     * and a round) would cost more than it saves in the mean, by the profile's shares, the prompt
     * is computed whole at once. 0: not known, always tried. */
    double row_s, token_s;
};

/* Why less was reused than there was, as bits. */
enum tsr_blend_reason {
    TSR_BLEND_FEW = 1,     /* under blend_min_tokens */
    TSR_BLEND_FAULT = 2,   /* a tier failed, was late or returned bad data */
    TSR_BLEND_FREQ = 4,    /* computed with other frequencies */
    TSR_BLEND_REFUSED = 8, /* the cache had no room for what was computed */
    TSR_BLEND_RAISED = 16, /* more than one round */
    TSR_BLEND_FULL = 32,   /* the gate fell back to computing everything */
    TSR_BLEND_UNABLE = 64, /* the executor lacks what the selector or the bias needs */
    TSR_BLEND_FIRST = 128, /* most of it was not cached: computed whole, see TSR_ASK_FIRST */
    TSR_BLEND_ROOM = 256,  /* no room for the primer, see tsr_blend_primer() */
    TSR_BLEND_COSTLY = 512 /* computing all of it is faster than a trial, see tsr_ask_desc.row_s */
};

struct tsr_blend_report {
    size_t size;
    uint32_t n_tokens;          /* of the prompt; with TSR_ASK_CONTEXT those before the question */
    uint32_t n_exact;           /* reused, the same bits as computed */
    uint32_t n_reused;          /* reused as they are */
    uint32_t n_recomputed;      /* cached, and recomputed */
    uint32_t n_new;             /* not cached: computed in the prompt */
    uint32_t n_filled;          /* not cached: computed alone; also counted above */
    uint32_t n_filled_reused;   /* of those, as exact or reused; the others were recomputed */
    uint32_t n_stored;          /* stored for the next prompt */
    uint32_t n_failed;          /* cached, but could not be loaded; also counted above */
    uint32_t n_chunks;          /* that are not exact */
    uint32_t selector, reasons; /* enum tsr_selector; enum tsr_blend_reason */
    uint32_t tier_tokens[8];    /* loaded, by tier */
    uint32_t n_rounds;          /* of recomputing; a prefill after them does not count */
    uint32_t n_other;           /* of n_reused: from plain requests, computed after other text */
    double ratio, bias;         /* of the last round */
    /* Probability that the answer is the one a prefill gives; NAN: no gate, or nothing but int8
     * rounding makes it another one. */
    double sure;
    struct tsr_gate gate;             /* after the last round */
    double lookup_s, wait_s, total_s; /* wait: for loads, not hidden behind compute */
    /* Parts of total_s besides: passes without their waits, choosing tokens, judging the answer. */
    double fill_s, query_s, draft_s, blend_s, select_s, judge_s;
};

/* Logits of the last token, [n_vocab], not touched with TSR_ASK_CONTEXT; report may be NULL. The
 * session holds the KV of the prompt. To go on decoding, give every pass the bias of
 * tsr_blend_bias(). */
TSR_API TSR_MUST int tsr_blend_ask(struct tsr_blend *blend, const struct tsr_ask_desc *ask,
                                   float *logits, struct tsr_blend_report *report);

/* ---- documents in any order ------------------------------------------------------------------ */

/* Where the order of documents is free, the one that the question looks at most goes first, and is
 * computed there (TSR_ASK_LEAD): the text that the answer is taken from is then exact.
 *
 *   double looks[n_segments];
 *   if (tsr_blend_look(blend, &ask, looks, NULL) > 0 &&
 *       tsr_segments_lead(tokens, segments, n_segments, ask.system, looks) >= 0)
 *       ask.flags |= TSR_ASK_LEAD;
 *   tsr_blend_ask(blend, &ask, logits, &report);
 */

/* Runs TSR_ASK_LOOK over ask->session. looks[i]: the share of the question's attention that is on
 * segment i. Returns 1, or 0 if there was nothing to look at (most is not cached, with
 * TSR_ASK_FIRST; or the executor shows no attention); report may be NULL. */
TSR_API TSR_MUST int tsr_blend_look(struct tsr_blend *blend, const struct tsr_ask_desc *ask,
                                    double *looks, struct tsr_blend_report *report);
/* Moves the document with the largest look before the others, in `tokens` and `segments`; segments
 * before `system` stay where they are. Returns which segment it was, also if it was the first
 * already. TSR_ENOENT: none leads, and nothing is moved, because there is but one document, or it
 * has half of their text or more, so that little would be reused, or there is other text between
 * them. */
TSR_API TSR_MUST int tsr_segments_lead(uint32_t *tokens, struct tsr_range *segments,
                                       uint32_t n_segments, uint32_t system, const double *looks);

/* ---- learning -------------------------------------------------------------------------------- */

/* How far tsr_blend_learn() is. */
struct tsr_learn {
    uint32_t n_segments, n_segments_done; /* that were not cached */
    uint32_t n_tokens, n_tokens_done;     /* of these; the segment being computed counts in part */
    const uint32_t *segments;             /* [n_segments]: indices into ask->segments */
};
/* Called at the start and after every layer. Not 0: stop; complete segments stay stored. */
typedef int (*tsr_learn_fn)(void *arg, const struct tsr_learn *learn);
/* Computes and stores the segments of a prompt that are not cached, one after another. Works in a
 * session of its own: ask->session is not touched and may be NULL, and the bias of the last ask
 * stays. `progress` may be NULL; it is not called if everything is cached. Needs a tsr_model.
 * Returns the number of tokens stored; TSR_EFULL: the cache has no room for a segment. */
TSR_API TSR_MUST int tsr_blend_learn(struct tsr_blend *blend, const struct tsr_ask_desc *ask,
                                     tsr_learn_fn progress, void *arg);

/* ---- step by step ---------------------------------------------------------------------------- */

enum tsr_step_kind {
    TSR_STEP_BEGIN = 1,     /* a pass of `pass` */
    TSR_STEP_LAYER = 2,     /* everything that layer.layer reads is in place: run it */
    TSR_STEP_DEVIATION = 3, /* fill deviation.k and .v */
    TSR_STEP_NARROW = 4,    /* go on with rows keep[n_keep] */
    TSR_STEP_LOGITS = 5,    /* of rows keep[n_keep], into logits */
    TSR_STEP_END = 6        /* the pass is over, or given up */
};

struct tsr_blend_step {
    uint32_t kind;
    uint32_t n_keep;
    const uint32_t *keep;
    float *logits;
    struct tsr_model_pass pass;
    struct tsr_model_layer layer;
    struct tsr_model_deviation deviation;
};

struct tsr_run;
/* ask->session may be NULL when layout describes the engine's memory: token i belongs to slot i, and
 * slots after the prompt are for the primer and for drafts of the answer. It has two planes, K with
 * rope_dims and V, as the model's info says. */
TSR_API TSR_MUST int tsr_blend_start(struct tsr_run **out, struct tsr_blend *blend,
                                     const struct tsr_ask_desc *ask,
                                     const struct tsr_kv_layout *layout);
/* The next step, after `result` of the one before (0 at first): 1, or 0 when nothing is left. A
 * negative result ends the run and is returned. */
TSR_API TSR_MUST int tsr_blend_next(struct tsr_run *run, int result, struct tsr_blend_step *step);
/* Ends it, at any step, and frees it; a pass that was begun and not ended is the caller's to end.
 * logits and report may be NULL; both are filled only after the last step. */
TSR_API void tsr_blend_end(struct tsr_run *run, float *logits, struct tsr_blend_report *report);
/* After the last step of a run with TSR_ASK_LOOK, before its end: see tsr_blend_look(). */
TSR_API TSR_MUST int tsr_blend_looks(const struct tsr_run *run, double *looks);
/* [n_tokens] of the plan as it is now: enum tsr_token_state. */
TSR_API const uint8_t *tsr_blend_states(const struct tsr_run *run);
/* The bias that rows after the prompt must use, from the blend's last ask:
 * [*n] floats; NULL: none (always without bias_answer in the profile). Valid until the next ask or
 * close. */
TSR_API const float *tsr_blend_bias(const struct tsr_blend *blend, uint32_t *n);
/* The first tokens of the answer to the blend's last ask, as the gate's draft has shown them: each is
 * the most likely one after those before it, and the last may end the answer. K and V of all but the
 * last are in the slots after the prompt, so that decoding goes on with the last one. *n 0: none, as
 * always without `draft` in the profile or after everything was computed. Valid until the next ask or
 * close. */
TSR_API const uint32_t *tsr_blend_draft(const struct tsr_blend *blend, uint32_t *n);

#ifdef __cplusplus
}
#endif
#endif
