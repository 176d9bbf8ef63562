/* passes.h - a run from inside: run.c moves it on, passes.c says which rows each pass has and what
 * follows from it.
 *
 * Threads: a run belongs to one thread at a time; only its feed is filled by threads of the cache.
 * Memory:  the arrays are the run's. The blend, the mover, and what the ask and the layouts point to
 *          are borrowed until the run has ended.
 * Errors:  enum tsr_err. A piece that cannot be loaded is no error: the plan computes it.
 */
#ifndef TSRI_PASSES_H
#define TSRI_PASSES_H

#include "blend/blend.h"

enum tsri_phase {
    TSRI_PHASE_FILL = 0,
    TSRI_PHASE_QUERY,
    TSRI_PHASE_DRAFT,
    TSRI_PHASE_BLEND,
    TSRI_PHASE_DONE
};
enum tsri_pass_stage {
    TSRI_STAGE_PASS = 0, /* which rows? */
    TSRI_STAGE_LAYER,
    TSRI_STAGE_CHECKED, /* deviations are there */
    TSRI_STAGE_END,
    TSRI_STAGE_AFTER,  /* the pass has ended well */
    TSRI_STAGE_RESTART /* it was given up: the plan has changed */
};

/* How far a prompt is recomputed, as the profile says: see struct tsr_profile and tsr_lead_profile. */
struct tsri_trial {
    const double *rounds, *gate; /* of the blend's profile */
    uint32_t n_rounds;
    double draft_floor, gate_limit;
    double draft_passes, gate_accepts;
};

struct tsr_run {
    struct tsr_blend *blend;
    struct tsr_ask_desc ask;
    struct tsr_range *chunks; /* that ask.segments points to, where they were found here */
    struct tsr_kv_layout layout;
    /* Of what follows the context, if the context is in slots of its own (ask.slots). */
    struct tsr_kv_layout rest;
    struct tsri_device *mover; /* copies KV to and from the layout: borrowed */
    const struct tsri_selector *selector;
    double ratio, bias;
    uint32_t freq_set, n_prefix;
    bool same_context;
    bool primed;       /* the primer's KV is in the slots after the prompt */
    bool fills_primer; /* the open pass computes it */
    struct tsri_plan plan;
    struct tsri_feed *feed; /* NULL: nothing is loaded */
    uint32_t *feed_pieces;  /* [n_feed]: which piece a range of the feed is */
    uint32_t n_feed;
    int n_lost;

    enum tsri_phase phase;
    enum tsri_pass_stage stage;
    uint32_t layer;
    bool checked; /* the check of `layer` is done */
    bool asked;   /* mass and logits_before are there */
    bool loaded;  /* a pass has seen all layers of all pieces: nothing can be lost any more */
    int failed;

    /* of rounds: */
    struct tsri_trial trial;
    uint32_t round;    /* index in the profile's; UINT32_MAX: there is but one */
    uint32_t n_rounds; /* done */

    /* of the draft: the answer as it was before the round */
    uint32_t *draft; /* [draft_max] */
    uint32_t n_draft, draft_max;
    bool draft_open;          /* more tokens of it are wanted */
    double draft_worst;       /* smallest margin of its tokens before the first round */
    uint32_t n_draft_weighed; /* tokens whose attention is in draft_mass */

    /* of the open pass: */
    struct tsr_model_row *rows; /* current ones */
    uint32_t n_rows;
    struct tsr_model_group *groups;
    uint32_t *keep, *kept;  /* [n_tokens + draft_max] each */
    float *mass, *bias_row; /* [n_tokens] each */
    float *draft_mass;      /* [n_tokens]: what tokens of the draft look at */
    float *scores;          /* [n_tokens] */
    uint32_t n_mass_rows;   /* of the question, whose attention is in `mass` */
    float *dev_k, *dev_v;   /* [n_tokens] each */
    float *logits; /* [1 + draft_max][n_vocab]: of the first token, and after each of the draft */
    float *logits_before; /* [n_vocab]: of the first token, before the round */
    void *scratch;

    uint32_t reasons;
    uint64_t started_ns, pass_ns; /* when the run, and its pass, began */
    double pass_wait_s;           /* what had been waited by then */
    struct tsr_gate gate;
    double sure;
    struct tsr_blend_report report;
};

/* Whether a prompt can be answered in so many slots. */
TSR_MUST int tsri_ask_check(const struct tsr_blend *b, const struct tsr_ask_desc *ask,
                            uint64_t n_slots);
/* A run that is planned, then its loads. The rope is that of a prompt of rope_tokens. */
TSR_MUST int tsri_run_open(struct tsr_run **out, struct tsr_blend *b,
                           const struct tsr_ask_desc *ask, const struct tsr_kv_layout *layout,
                           uint32_t rope_tokens);
TSR_MUST int tsri_run_load(struct tsr_run *run);
/* Where the slots after the prompt begin: the first of them, in *layout. */
uint32_t tsri_run_behind(const struct tsr_run *run, const struct tsr_kv_layout **layout);
/* A feed into the context's memory; what is given stays in place until it is opened. */
struct tsri_feed_desc tsri_run_feed(const struct tsr_run *run, const struct tsr_prompt *prompt,
                                    const struct tsri_feed_range *ranges, uint32_t n);

/* ---- rounds.c: recomputing more, until the answer can be trusted ---- */

/* What is tried, by the plan as far as it is made, and the ratio of the first round, for the selector
 * that is asked for. */
void tsri_rounds_init(struct tsr_run *run, const struct tsri_selector *selector);
/* With fewer tokens that would be reused as an approximation, a trial does not pay. */
uint32_t tsri_rounds_least(const struct tsr_blend *b, const struct tsr_ask_desc *ask);
/* Goes on to the first round that selects something; false: none does. */
bool tsri_rounds_begin(struct tsr_run *run);
/* A token of the draft at r = 0 is so close to another one that no round is tried, whatever the
 * tokens after it are. */
bool tsri_rounds_hopeless(const struct tsr_run *run);
/* The draft at r = 0 is there; when it promises nothing, a prefill follows instead of rounds. */
void tsri_rounds_try(struct tsr_run *run);
/* After a round: judges the answer. True: another round follows, or a prefill. */
bool tsri_rounds_next(struct tsr_run *run);

/* ---- draft.c: does the round change the answer? ---- */

/* Tokens of an answer that this run may draft; 0: none. */
uint32_t tsri_draft_max(const struct tsr_run *run);
/* The question's pass is done: begins a draft with its most likely token. */
void tsri_draft_begin(struct tsr_run *run);
/* Its attention is wanted, to choose tokens by. */
bool tsri_draft_weighs(const struct tsr_run *run);
/* Adds the row of its last token to the pass; after that pass, takes the next token. */
void tsri_draft_add_last(struct tsr_run *run);
void tsri_draft_add(struct tsr_run *run);
/* Rows of it that a round computes after the prompt, and adds them to the pass. */
uint32_t tsri_draft_rows(const struct tsr_run *run);
void tsri_draft_add_rows(struct tsr_run *run);
/* After a round: tells the gate, and turns the draft into this round's answer. */
void tsri_draft_check(struct tsr_run *run);

/* ---- order.c: documents in any order ---- */

/* An ask with TSR_ASK_LOOK as a run takes it. */
void tsri_order_look(struct tsr_ask_desc *ask);

/* ---- primer.c ---- */

/* Puts the primer's KV into the slots after the prompt: what the blend keeps, or what the
 * cache has. False: it must be computed there. */
bool tsri_primer_place(struct tsr_run *run);
/* It was computed there, at token_s seconds a token: keeps and stores it. */
void tsri_primer_keep(struct tsr_run *run, double token_s);

/* ---- passes.c ---- */

struct tsri_fill tsri_pass_fill(const struct tsr_run *run, bool exact);
/* The pass of the run's phase, or of the first after it that has one; false: none has rows, and
 * the phase is the last. */
bool tsri_pass_begin(struct tsr_run *run, struct tsr_model_pass *pass);
/* Where the attention of this layer is to be added; NULL: it is not wanted. */
float *tsri_pass_mass(const struct tsr_run *run, uint32_t layer);
/* The check of hkvd at a layer; NULL: none. */
const struct tsr_check *tsri_pass_check_of(const struct tsr_run *run, uint32_t layer);
/* After deviations: fills keep and returns how many rows stay; 0: all of them. */
TSR_MUST int tsri_pass_narrow(struct tsr_run *run);
/* After a pass: what was computed is settled, and the next phase set. */
TSR_MUST int tsri_pass_after(struct tsr_run *run);

#endif
