/* primer.c - the text that documents are computed behind. A document that is read first is taken for
 * the first of its kind; behind other passages it is nearer to what it is in a prompt. So documents
 * are computed behind a fixed text that no prompt holds, and that is no part of their entries: only
 * its digest is. The primer's own KV is in the slots after the prompt while segments are filled. It
 * is computed once: the blend keeps it in host memory, and the cache has it as a segment of its own
 * for the next process. Losing it costs the time to compute it again, nothing else. */
#include "blend/passes.h"

/* Passages of several kinds, in the form that `tessera ask` gives documents, with invented names,
 * numbers and dates. Six did better than four on short notes of all kinds, and ten no better than
 * six (docs/quality.md). Another text is another context: entries behind this one are then not found
 * any more. */
const char tsri_primer_text[] =
    "Harbour towns of the northern coast\n"
    "Many towns of the northern coast began as small fishing settlements in the twelfth "
    "century. Stone quays replaced wooden ones after the storm of 1634, and a customs house "
    "was built soon afterwards. By 1870 about 4,200 people lived around the largest of these "
    "harbours, most of whom worked in the herring trade. The railway, opened in 1889, brought "
    "visitors in summer, and several hotels still date from that time.\n\n"
    "FAQ: returning an order\n"
    "You can return most items within 30 days of delivery. Print the label from your account, "
    "put the goods in their original box and hand the parcel in at any branch of ParcelLine. "
    "Refunds reach your card after five to seven working days. Opened software, earplugs and "
    "swimwear cannot be returned. For faulty goods call 0300 555 0142 between 8:30 and 17:00.\n\n"
    "Margaret Ellery Sutton\n"
    "Margaret Ellery Sutton (14 March 1821 - 2 November 1897) was a painter and teacher of "
    "drawing. She studied in Antwerp under Joseph Verhaegen and returned in 1846 to open a "
    "school with her sister Anne. Her best known work, \"The Mill at Evening\", was shown in "
    "1855 and is now in the collection of the town museum. She wrote two books on perspective "
    "and taught until she was seventy.\n\n"
    "Minutes of the planning group, 6 February 2019\n"
    "Present: Ingrid Halvorsen (chair), Tom Baker, Priya Nair, Luis Ortega. The group agreed "
    "to move the spring fair from the school hall to the market square. Tom Baker will ask "
    "the council for a permit by the end of the month. The budget was raised from 1,800 to "
    "2,250 pounds. Priya Nair reported that eleven stalls are already booked. Next meeting: 5 "
    "March, 6 pm, Room 12.\n\n"
    "Municipal library, opening hours and loans\n"
    "The municipal library is open from 10 am to 7 pm on weekdays and until 2 pm on "
    "Saturdays. Readers may borrow up to twelve items for four weeks, films and music for one "
    "week. A card costs 15 euros a year and is free below the age of eighteen. Items can be "
    "returned at the box beside the entrance in Mill Lane at any time. For questions ask Mr "
    "Daniel Osei at the desk on the first floor.\n\n"
    "Model TX-410 cordless drill\n"
    "Voltage: 18 V\n"
    "Weight: 1.4 kg with battery\n"
    "Maximum torque: 52 Nm\n"
    "Chuck: 13 mm, keyless\n"
    "Charging time: 45 minutes\n"
    "Warranty: three years\n"
    "The TX-410 is made for wood, metal and light masonry. Two batteries, a charger and a "
    "case are included. Keep the tool dry and remove the battery before changing a bit.\n\n";

/* ---- tokens ---- */

/* In a prompt documents follow the opening of a chat, and models read the first tokens of all in a
 * way of their own. So the primer has an opening too, with a system prompt that is nobody's. */
#define SYSTEM "You are a helpful assistant."
#define MARK "\x01"
#define OPENING_BYTES_MAX 4096u

/* Tokens of the opening, at most max; 0: the model has no template, or none that can be cut. */
static int open_chat(const struct tsr_model *model, uint32_t *tokens, uint32_t max)
{
    const struct tsr_chat_message messages[] = {{"system", SYSTEM}, {"user", MARK}};
    char text[OPENING_BYTES_MAX + 1];
    int n = tsr_model_chat(model, messages, 2, text, OPENING_BYTES_MAX);
    if (n < 0 || n > (int)OPENING_BYTES_MAX) return 0;
    text[n] = 0;
    const char *end = strstr(text, MARK);
    if (!end) return 0;
    return tsr_model_tokenize(model, text, (size_t)(end - text), TSR_TEXT_START | TSR_TEXT_SPECIAL,
                              tokens, max);
}

static int tokenize(struct tsri_primer *p, const struct tsr_profile *profile,
                    const struct tsr_model *model, bool chats)
{
    size_t bytes = strnlen(profile->primer, sizeof profile->primer);
    if (!bytes || bytes == sizeof profile->primer)
        return tsri_fail(TSR_EINVAL, "blend: the profile's primer has %zu bytes, limit %zu", bytes,
                         sizeof profile->primer - 1);
    p->tokens = tsri_alloc(TSR_PRIMER_TOKENS_MAX, sizeof *p->tokens);
    if (!p->tokens) return TSR_ENOMEM;
    int n_open = chats ? open_chat(model, p->tokens, TSR_PRIMER_TOKENS_MAX) : 0;
    if (n_open < 0) return n_open;
    uint32_t used = tsri_min_u32((uint32_t)n_open, TSR_PRIMER_TOKENS_MAX);
    int n = tsr_model_tokenize(model, profile->primer, bytes, used ? 0 : TSR_TEXT_START,
                               p->tokens + used, TSR_PRIMER_TOKENS_MAX - used);
    p->n_tokens = n > 0 ? (uint32_t)(n_open + n) : 0;
    return n < 0 ? n : 0;
}

static int copy_tokens(struct tsri_primer *p, const struct tsr_blend_desc *desc)
{
    p->n_tokens = desc->n_primer;
    if (p->n_tokens > TSR_PRIMER_TOKENS_MAX) return 0; /* is refused below */
    p->tokens = tsri_alloc(p->n_tokens, sizeof *p->tokens);
    if (!p->tokens) return TSR_ENOMEM;
    memcpy(p->tokens, desc->primer, p->n_tokens * sizeof *p->tokens);
    return 0;
}

int tsri_primer_init(struct tsri_primer *p, const struct tsr_profile *profile,
                     const struct tsr_model_info *info, const struct tsr_blend_desc *desc)
{
    if (profile->context != TSR_CONTEXT_PRIMER) return 0;
    bool given = desc->primer && desc->n_primer;
    if (!given && !(desc->model && info->caps & TSR_MODEL_TEXT))
        return tsri_fail(TSR_EINVAL, "blend: the profile has a primer, but there are no tokens of "
                                     "it and no tokenizer of the model");
    int e = given ? copy_tokens(p, desc)
                  : tokenize(p, profile, desc->model, info->caps & TSR_MODEL_CHAT);
    if (e) return e;
    if (!p->n_tokens || p->n_tokens > TSR_PRIMER_TOKENS_MAX || p->n_tokens >= info->context)
        return tsri_fail(TSR_ERANGE, "blend: primer of %u tokens, limit %u", p->n_tokens,
                         tsri_min_u32(TSR_PRIMER_TOKENS_MAX, info->context - 1));
    for (uint32_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] >= info->n_vocab)
            return tsri_fail(TSR_EINVAL,
                             "blend: token %u of the primer is %u, outside the "
                             "vocabulary of %u",
                             i, p->tokens[i], info->n_vocab);
    return 0;
}

void tsri_primer_fini(struct tsri_primer *p)
{
    if (p->kept) tsri_rows_fini(&p->rows);
    tsri_free(p->tokens);
    *p = (struct tsri_primer){0};
}

/* ---- its KV ---- */

/* Its slots are the first ones after the prompt. */
static uint32_t behind(const struct tsr_run *run, struct tsri_fill *fill)
{
    *fill = tsri_pass_fill(run, true);
    fill->slots = NULL;
    return tsri_run_behind(run, &fill->layout);
}

/* Copies what is in the slots. Without memory for it nothing is kept. */
static int copy_rows(const struct tsr_run *run, struct tsri_rows *rows)
{
    struct tsri_fill fill;
    uint32_t first = behind(run, &fill);
    int e = tsri_rows_init(rows, &fill, first, run->blend->primer.n_tokens);
    if (e) return e;
    e = tsri_rows_move(&fill, rows, TSRI_BATCH_GATHER, 0);
    if (e) tsri_rows_fini(rows);
    return e;
}

/* Takes over the rows. One copy is enough: prompts of one length, or a rope that does not change
 * with it, are what there is. */
static void keep_rows(struct tsr_run *run, struct tsri_rows *rows)
{
    struct tsr_blend *b = run->blend;
    struct tsri_primer *p = &b->primer;
    pthread_mutex_lock(&b->lock);
    struct tsri_rows old = p->rows;
    bool had = p->kept;
    p->rows = *rows;
    p->mover = run->mover;
    p->freq_set = run->freq_set;
    p->kept = true;
    pthread_mutex_unlock(&b->lock);
    if (had) tsri_rows_fini(&old);
}

static bool place_kept(struct tsr_run *run)
{
    struct tsr_blend *b = run->blend;
    struct tsri_primer *p = &b->primer;
    struct tsri_fill fill;
    uint32_t first = behind(run, &fill);
    pthread_mutex_lock(&b->lock);
    bool placed = p->kept && p->mover == run->mover && p->freq_set == run->freq_set;
    if (placed) {
        for (uint32_t i = 0; i < p->n_tokens; i++)
            p->rows.slots[i] = (int64_t)first + i;
        placed = tsri_rows_move(&fill, &p->rows, TSRI_BATCH_SCATTER, 0) == 0;
    }
    pthread_mutex_unlock(&b->lock);
    return placed;
}

/* As a segment of its own, as if it were the whole prompt. */
static bool find(const struct tsr_run *run, const struct tsr_prompt *prompt, struct tsr_match *out)
{
    struct tsr_blend *b = run->blend;
    struct tsr_lookup_desc io = {
        .size = sizeof io, .spaces = &b->exact, .n_spaces = 1, .matches = out, .matches_max = 1};
    return b->client && tsr_client_lookup(b->client, prompt, &io) == (int)prompt->n_tokens &&
           io.n_matches == 1 && out->n_tokens == prompt->n_tokens;
}

static bool place_stored(struct tsr_run *run)
{
    const struct tsri_primer *p = &run->blend->primer;
    struct tsr_range whole = {0, p->n_tokens};
    struct tsr_prompt prompt = {.size = sizeof prompt,
                                .tokens = p->tokens,
                                .n_tokens = p->n_tokens,
                                .flags = TSR_PROMPT_SEGMENTS,
                                .segments = &whole,
                                .n_segments = 1};
    struct tsri_feed_range range = {.space = run->blend->exact, .exact = true};
    if (!find(run, &prompt, &range.match)) return false;
    int64_t slots[TSR_PRIMER_TOKENS_MAX];
    struct tsri_feed_desc desc = tsri_run_feed(run, &prompt, &range, 1);
    uint32_t first = tsri_run_behind(run, &desc.layout);
    for (uint32_t i = 0; i < p->n_tokens; i++)
        slots[i] = (int64_t)first + i;
    range.slots = slots;
    struct tsri_feed *feed;
    if (tsri_feed_open(&feed, &desc) != 0) return false;
    uint32_t timeout = run->ask.timeout_ms ? run->ask.timeout_ms : TSRI_TIMEOUT_MS;
    bool placed = tsri_feed_wait(feed, run->blend->info.n_layers - 1, timeout) == 0;
    tsri_feed_close(feed);
    return placed;
}

bool tsri_primer_place(struct tsr_run *run)
{
    struct tsri_rows rows;
    if (run->primed || place_kept(run)) return run->primed = true;
    run->primed = place_stored(run);
    if (run->primed && copy_rows(run, &rows) == 0) keep_rows(run, &rows);
    return run->primed;
}

void tsri_primer_keep(struct tsr_run *run, double token_s)
{
    const struct tsr_blend *b = run->blend;
    struct tsri_rows rows;
    run->primed = true;
    if (copy_rows(run, &rows) != 0) return;
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = b->exact,
                                   .kind = TSR_KIND_SEGMENT,
                                   .n_tokens = b->primer.n_tokens,
                                   .tokens = b->primer.tokens,
                                   .freq_set = run->freq_set,
                                   .cost_s = (float)(token_s * b->primer.n_tokens),
                                   .view = {.data = rows.data, .bytes = rows.bytes}};
    int e = b->client ? tsr_client_store(b->client, &store) : 0;
    (void)e; /* not stored: the next process computes it */
    keep_rows(run, &rows);
}
