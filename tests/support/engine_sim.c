/* engine_sim.c - the scheduler of engine_sim.h. Its counters move as vLLM's do: a step adds what it
 * schedules to n_computed and n_in_flight, and to n_placeholders what it will sample; its output
 * takes them back, rejected drafts from n_computed too. */
#include "support/engine_sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A step without work takes a few microseconds, and a save may take seconds. */
#define STEPS_BUSY 10000u
#define STEPS_MAX 100000u

#define VOCABULARY 50000u

static uint64_t next64(uint64_t *x)
{
    *x += 0x9E3779B97F4A7C15u;
    uint64_t z = *x;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint32_t sim_random(struct sim *s, uint32_t below)
{
    return below ? (uint32_t)(next64(&s->rng) % below) : 0;
}

static bool chance(struct sim *s, uint32_t per_1000)
{
    return per_1000 && sim_random(s, 1000) < per_1000;
}

void sim_wrong(struct sim *s, const char *fmt, ...)
{
    va_list args;
    if (s->out->wrong[0]) return; /* the first is what counts */
    va_start(args, fmt);
    vsnprintf(s->out->wrong, sizeof s->out->wrong, fmt, args);
    va_end(args);
}

void *sim_grow(void *array, uint32_t *max, uint32_t n, size_t size)
{
    if (n <= *max) return array;
    *max = n * 2;
    array = realloc(array, *max * size);
    if (!array) abort();
    return array;
}

/* ---- requests ---- */

/* A prompt of one of the families, cut somewhere, with a tail of its own. */
static void new_request(struct sim *s, struct sim_request *r, uint64_t id)
{
    const struct sim_options *o = s->o;
    uint32_t life = r->life, w_life = r->w_life;
    free(r->truth);
    free(r->seen);
    *r = (struct sim_request){.id = id, .life = life + 1, .w_life = w_life};
    uint32_t shared = 1 + sim_random(s, o->prompt_max), own = sim_random(s, o->prompt_max / 4 + 1);
    if (sim_random(s, 4) == 0) own = 0;
    r->n_prompt = shared + own;
    r->n_output = 1 + sim_random(s, o->output_max);
    r->n_truth = r->n_prompt + r->n_output + SIM_DEPTH_MAX * (o->drafts_max + 1) + 8;
    r->truth = malloc(r->n_truth * sizeof *r->truth);
    r->seen = malloc(r->n_truth * sizeof *r->seen);
    uint64_t family = 77 + sim_random(s, o->n_families);
    for (uint32_t i = 0; i < shared; i++)
        r->truth[i] = (uint32_t)(next64(&family) % VOCABULARY);
    for (uint32_t i = shared; i < r->n_prompt; i++)
        r->truth[i] = sim_random(s, VOCABULARY);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < r->n_truth; i++) {
        /* What the model says next. */
        if (i >= r->n_prompt) r->truth[i] = (uint32_t)(seen % VOCABULARY);
        seen = ck_seen(seen, r->truth[i]);
        r->seen[i] = seen;
    }
    r->n_known = r->n_tokens_told = r->n_prompt;
    r->bad_at = UINT32_MAX;
    struct tsr_request_desc q = {
        .size = sizeof q, .id = id, .tokens = r->truth, .n_tokens = r->n_prompt};
    if (tsr_scheduler_on_new_request(s->k.scheduler, &q) != 0)
        sim_wrong(s, "new request: %s", tsr_errmsg());
}

/* ---- blocks ---- */

static void free_block(struct sim *s, uint32_t g, int32_t block)
{
    struct sim_step *step = s->next;
    if (block < 0) return;
    step->freed = sim_grow(step->freed, &step->freed_max, step->n_freed + 1, sizeof *step->freed);
    step->freed[step->n_freed++] = (struct sim_block){g, block};
    s->free_blocks[g][s->n_free[g]++] = block;
}

static void free_blocks(struct sim *s, struct sim_request *r)
{
    for (uint32_t g = 0; g < s->k.o.n_groups; g++)
        for (uint32_t i = 0; i < r->n_blocks; i++)
            free_block(s, g, r->blocks[g][i]);
    r->n_blocks = r->n_blocks_told = 0;
}

/* Blocks that have left a window, as soon as connector.h allows: none of their tokens is seen by
 * the first token of the step that is being made, be it a draft that will be refused. */
static void free_passed(struct sim *s, struct sim_request *r)
{
    uint32_t window = s->k.o.window_tokens;
    for (uint32_t i = 0; s->k.o.n_groups > 1 && window && i < r->n_blocks; i++) {
        if ((i + 1) * CK_BLOCK + window > r->n_computed + 1) break;
        free_block(s, 1, r->blocks[1][i]);
        r->blocks[1][i] = -1;
    }
}

/* Blocks for n_tokens; windows of a loaded prefix are left out. */
static bool take_blocks(struct sim *s, struct sim_request *r, uint32_t n_tokens, uint32_t passed)
{
    uint32_t n = (n_tokens + CK_BLOCK - 1) / CK_BLOCK;
    if (n <= r->n_blocks) return true;
    for (uint32_t g = 0; g < s->k.o.n_groups; g++)
        if (n - r->n_blocks > s->n_free[g]) return false;
    for (uint32_t i = r->n_blocks; i < n; i++)
        for (uint32_t g = 0; g < s->k.o.n_groups; g++) {
            bool out = g && s->k.o.window_tokens && (i + 1) * CK_BLOCK <= passed;
            uint32_t pick = out ? 0 : sim_random(s, s->n_free[g]);
            r->blocks[g][i] = out ? -1 : s->free_blocks[g][pick];
            if (!out) s->free_blocks[g][pick] = s->free_blocks[g][--s->n_free[g]];
        }
    r->n_blocks = n;
    return true;
}

static int tell_blocks(struct sim *s, struct sim_request *r, uint32_t n_external)
{
    int32_t all[CK_GROUPS_MAX * SIM_BLOCKS_MAX];
    uint32_t n[CK_GROUPS_MAX];
    for (uint32_t g = 0; g < s->k.o.n_groups; g++) {
        memcpy(all + (size_t)g * r->n_blocks, r->blocks[g], r->n_blocks * sizeof *all);
        n[g] = r->n_blocks;
    }
    struct tsr_blocks b = {.blocks = all, .n_blocks = n};
    r->n_blocks_told = r->n_blocks;
    return tsr_scheduler_update_state_after_alloc(s->k.scheduler, r->id, &b, n_external);
}

/* ---- the ends of a request ---- */

static void preempt(struct sim *s, struct sim_request *r)
{
    s->out->n_preempted++;
    if (tsr_scheduler_handle_preemptions(s->k.scheduler, &r->id, 1) != 0)
        sim_wrong(s, "preempt: %s", tsr_errmsg());
    free_blocks(s, r);
    r->n_computed = r->n_in_flight = r->n_placeholders = 0;
    r->state = SIM_WAITING;
    r->life++;
}

/* What a request has computed and loaded is still there when it ends: nothing wrote into its blocks
 * that was given up or was another's. */
static void check_blocks(struct sim *s, const struct sim_request *r)
{
    ck_sync(&s->k);
    for (uint32_t rank = 0; rank < s->k.o.n_ranks; rank++)
        for (uint32_t g = 0; g < s->k.o.n_groups; g++)
            for (uint32_t i = 0; i + 1 < r->n_known; i++) {
                int64_t slot = ck_slot(r->blocks[g], i);
                if (slot < 0 || ck_right(&s->k, rank, g, slot, r->seen[i])) continue;
                sim_wrong(s, "request %llu ends with a wrong byte at token %u of %u",
                          (unsigned long long)r->id, i, r->n_known);
                return;
            }
}

static void end(struct sim *s, struct sim_request *r, bool aborted)
{
    if (!aborted && s->k.o.gpu) check_blocks(s, r);
    struct tsr_finish_desc f = {.size = sizeof f,
                                .id = r->id,
                                .n_computed = r->n_computed,
                                .n_placeholders = r->n_placeholders,
                                .n_in_flight = r->n_in_flight,
                                .n_tokens = r->n_known,
                                .new_tokens = r->truth + r->n_tokens_told,
                                .n_new_tokens = r->n_known - r->n_tokens_told,
                                .aborted = aborted};
    int held = tsr_scheduler_request_finished(s->k.scheduler, &f);
    if (held < 0) sim_wrong(s, "finish: %s", tsr_errmsg());
    if (held && r->state == SIM_LOADING) sim_wrong(s, "a request is held twice");
    r->held = held > 0 || r->state == SIM_LOADING;
    s->out->n_held += held > 0;
    s->out->n_aborted += aborted;
    s->out->n_finished += !aborted;
    r->state = SIM_ENDED;
    r->life++;
    if (!r->held) free_blocks(s, r);
}

/* ---- scheduling ---- */

static struct sim_row *add_row(struct sim *s, struct sim_request *r, uint32_t n, uint32_t n_drafts)
{
    struct sim_step *step = s->next;
    step->rows = sim_grow(step->rows, &step->rows_max, step->n_rows + 1, sizeof *step->rows);
    struct sim_row *row = &step->rows[step->n_rows++];
    memset(row, 0, sizeof *row);
    row->request = (uint32_t)(r - s->requests);
    row->life = r->life;
    row->first = r->n_computed;
    row->n = n;
    row->n_drafts = n_drafts;
    row->samples = n_drafts || r->n_computed + n >= r->n_known + r->n_placeholders;
    memcpy(row->blocks, r->blocks, sizeof row->blocks);
    return row;
}

/* What it would run next; 0: nothing. */
static uint32_t wanted(struct sim *s, const struct sim_request *r, uint32_t *n_drafts)
{
    *n_drafts = 0;
    if (r->n_computed < r->n_known) return r->n_known - r->n_computed;
    /* Nothing beyond the end but for what async scheduling cannot know. */
    if (r->n_known + r->n_placeholders >= r->n_prompt + r->n_output + 1) return 0;
    if (r->n_computed >= r->n_known + r->n_placeholders) return 0;
    *n_drafts = s->o->drafts_max ? sim_random(s, s->o->drafts_max + 1) : 0;
    return 1 + *n_drafts;
}

static void schedule_running(struct sim *s, struct sim_request *r, uint32_t *budget)
{
    uint32_t n_drafts, n = wanted(s, r, &n_drafts);
    if (!n || !*budget) return;
    if (n > *budget) n = *budget;
    if (r->n_computed < r->n_known && n > 4 && sim_random(s, 3) == 0) n = 1 + sim_random(s, n);
    if (n_drafts && n <= n_drafts) return;
    free_passed(s, r);
    if (!take_blocks(s, r, r->n_computed + n, 0)) {
        preempt(s, r);
        return;
    }
    add_row(s, r, n, n_drafts);
    *budget -= n;
}

/* What was just found goes away, lease and all: an owner that was started anew. */
static void lose(struct sim *s, struct sim_request *r)
{
    const struct tsri_terms *t = &s->k.scheduler->terms;
    struct tsr_prompt p = {.size = sizeof p, .tokens = r->truth, .n_tokens = r->n_known};
    struct tsr_clear_desc clear = {.size = sizeof clear,
                                   .space = t->spaces[sim_random(s, t->n_spaces)],
                                   .prompt = &p,
                                   .tier = -1};
    tsr_client_release(t->client, r->id);
    if (tsr_cache_clear(s->k.cache, &clear) < 0) sim_wrong(s, "clear: %s", tsr_errmsg());
}

/* A load within the step, or nothing found: runs in this step. */
static void admit(struct sim *s, struct sim_request *r, uint32_t *budget)
{
    uint32_t async = 0;
    if (tsr_scheduler_append_tokens(s->k.scheduler, r->id, r->n_tokens_told,
                                    r->truth + r->n_tokens_told,
                                    r->n_known - r->n_tokens_told) != 0)
        sim_wrong(s, "append: %s", tsr_errmsg());
    r->n_tokens_told = r->n_known;
    int found = tsr_scheduler_get_num_new_matched_tokens(s->k.scheduler, r->id, 0, &async);
    if (found == TSR_EAGAIN) return; /* asked again in a later step */
    if (found < 0) sim_wrong(s, "lookup: %s", tsr_errmsg());
    if (found < 0 || (uint32_t)found > r->n_known || (!async && (uint32_t)found >= r->n_known)) {
        sim_wrong(s, "request %llu: %d tokens found", (unsigned long long)r->id, found);
        return;
    }
    /* The engine may want fewer than there are. */
    if (found > 8 && sim_random(s, 8) == 0) found -= found % 8 ? found % 8 : 8;
    uint32_t n_ext = (uint32_t)found, n = r->n_known - n_ext;
    if (n > *budget) n = *budget;
    uint32_t window = s->k.o.window_tokens, passed = n_ext > window ? n_ext - window : 0;
    uint32_t room = async ? n_ext : n_ext + n;
    if (!take_blocks(s, r, room, passed)) return; /* asked again in a later step */
    if (tell_blocks(s, r, n_ext) != 0) sim_wrong(s, "alloc: %s", tsr_errmsg());
    if (n_ext && chance(s, s->o->lose_per_1000)) lose(s, r);
    s->next->loads |= n_ext > 0;
    r->n_computed = n_ext;
    r->load_end = n_ext;
    r->bad_at = UINT32_MAX;
    r->n_named[0] = r->n_named[1] = 0;
    if (async && n_ext) {
        r->state = SIM_LOADING;
        return;
    }
    r->state = SIM_RUNNING;
    struct sim_row *row = add_row(s, r, n, 0);
    row->load_end = n_ext;
    *budget -= n;
}

/* Counters before the step, as an engine has them; then the step is added to them. */
static void build(struct sim *s)
{
    struct sim_step *step = s->next;
    uint32_t n = step->n_rows, n_groups = s->k.o.n_groups, n_tokens = 0, n_blocks = 0;
    struct tsr_step_row *rows = calloc(n + 1, sizeof *rows);
    uint32_t *counts = calloc((size_t)(n + 1) * n_groups, sizeof *counts);
    uint32_t *tokens = malloc(((size_t)n + 1) * 256 * sizeof *tokens);
    int32_t *blocks = malloc(((size_t)n + 1) * SIM_BLOCKS_MAX * n_groups * sizeof *blocks);
    for (uint32_t i = 0; i < n; i++) {
        struct sim_request *r = &s->requests[step->rows[i].request];
        uint32_t n_new = r->n_known - r->n_tokens_told;
        rows[i] = (struct tsr_step_row){.id = r->id,
                                        .n_computed = r->n_computed,
                                        .n_placeholders = r->n_placeholders,
                                        .n_in_flight = r->n_in_flight,
                                        .n_tokens = r->n_known,
                                        .n_new_tokens = n_new};
        memcpy(tokens + n_tokens, r->truth + r->n_tokens_told, n_new * sizeof *tokens);
        n_tokens += n_new;
        r->n_tokens_told = r->n_known;
        for (uint32_t g = 0; g < n_groups; g++) {
            counts[i * n_groups + g] = r->n_blocks - r->n_blocks_told;
            for (uint32_t b = r->n_blocks_told; b < r->n_blocks; b++)
                blocks[n_blocks++] = r->blocks[g][b];
        }
        r->n_blocks_told = r->n_blocks;
    }
    struct tsr_step_desc view = {.size = sizeof view,
                                 .rows = rows,
                                 .n_rows = n,
                                 .new_tokens = tokens,
                                 .n_new_blocks = counts,
                                 .new_blocks = blocks};
    const void *meta;
    if (tsr_scheduler_build_connector_meta(s->k.scheduler, &view, &meta, &step->meta_bytes) != 0)
        sim_wrong(s, "build: %s", tsr_errmsg());
    step->meta = malloc(step->meta_bytes + 1);
    memcpy(step->meta, meta ? meta : "", step->meta_bytes);
    for (uint32_t i = 0; i < n; i++) {
        struct sim_request *r = &s->requests[step->rows[i].request];
        r->n_computed += step->rows[i].n;
        r->n_in_flight += step->rows[i].n;
        if (step->rows[i].samples) r->n_placeholders += 1 + step->rows[i].n_drafts;
    }
    free(rows);
    free(counts);
    free(tokens);
    free(blocks);
}

/* Takes something from one rank only, which makes it a miss for all. */
static void evict_somewhere(struct sim *s)
{
    struct sim_request *r = &s->requests[sim_random(s, s->o->n_requests)];
    struct tsr_prompt p = {.size = sizeof p, .tokens = r->truth, .n_tokens = r->n_prompt};
    uint32_t n_spaces = s->k.o.n_ranks * s->k.o.n_groups;
    struct tsr_clear_desc clear = {.size = sizeof clear,
                                   .space = s->k.scheduler->terms.spaces[sim_random(s, n_spaces)],
                                   .prompt = &p,
                                   .tier = -1};
    if (tsr_cache_clear(s->k.cache, &clear) < 0) sim_wrong(s, "clear: %s", tsr_errmsg());
}

static void schedule(struct sim *s)
{
    uint32_t budget = s->o->step_tokens, n_running = 0;
    for (uint32_t i = 0; i < s->o->n_requests; i++) {
        struct sim_request *r = &s->requests[i];
        if (r->state == SIM_ENDED) continue;
        if (chance(s, s->o->abort_per_1000)) {
            end(s, r, true);
            continue;
        }
        if (r->state != SIM_RUNNING) continue;
        if (chance(s, s->o->preempt_per_1000))
            preempt(s, r);
        else
            schedule_running(s, r, &budget);
        n_running += r->state == SIM_RUNNING;
    }
    uint32_t start = sim_random(s, s->o->n_requests);
    for (uint32_t i = 0; i < s->o->n_requests && budget && n_running < s->o->running_max; i++) {
        struct sim_request *r = &s->requests[(start + i) % s->o->n_requests];
        if (r->state != SIM_WAITING) continue;
        if (s->n_free[0] == 0) break;
        admit(s, r, &budget);
        n_running += r->state != SIM_WAITING;
    }
    if (chance(s, s->o->evict_per_1000)) evict_somewhere(s);
    build(s);
    s->n_scheduled++;
    s->out->n_steps++;
    s->next = &s->steps[s->n_scheduled % (SIM_DEPTH_MAX + 1)];
}

/* ---- output ---- */

static void take_bad_blocks(struct sim *s, const struct sim_step *step)
{
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct sim_row *row = &step->rows[i];
        struct sim_request *r = &s->requests[row->request];
        if (!row->load_end || row->life != r->life || r->state != SIM_RUNNING) continue;
        uint32_t bad = row->load_end;
        for (uint32_t k = 0; k < step->n_bad; k++)
            for (uint32_t b = 0; b * CK_BLOCK < row->load_end; b++)
                if (row->blocks[step->bad[k].group][b] == step->bad[k].block && b * CK_BLOCK < bad)
                    bad = b * CK_BLOCK;
        if (bad == row->load_end) continue;
        s->out->n_recomputed += row->load_end - bad;
        r->n_computed = bad;
        r->n_in_flight = r->n_placeholders = 0;
        r->life++;
    }
}

static struct sim_request *by_id(struct sim *s, uint64_t id)
{
    struct sim_request *r = &s->requests[id % s->o->n_requests];
    return r->id == id ? r : NULL;
}

static void take_named(struct sim *s, const struct sim_step *step)
{
    for (uint32_t i = 0; i < step->n_sent; i++) {
        struct sim_request *r = by_id(s, step->sent[i]);
        if (!r || r->state != SIM_ENDED || !r->held) {
            sim_wrong(s, "request %llu is named as sent", (unsigned long long)step->sent[i]);
            continue;
        }
        if (++r->n_named[0] < s->k.o.n_ranks) continue;
        r->held = false;
        free_blocks(s, r);
    }
    for (uint32_t i = 0; i < step->n_received; i++) {
        struct sim_request *r = by_id(s, step->received[i]);
        bool ended = r && r->state == SIM_ENDED && r->held;
        if (!r || (r->state != SIM_LOADING && !ended)) {
            sim_wrong(s, "request %llu is named as received",
                      (unsigned long long)step->received[i]);
            continue;
        }
        if (++r->n_named[1] < s->k.o.n_ranks) continue;
        if (ended) {
            r->held = false;
            free_blocks(s, r);
            continue;
        }
        uint32_t good = r->bad_at < r->load_end ? r->bad_at : r->load_end;
        s->out->n_loaded += good;
        s->out->n_load_failures += good < r->load_end;
        s->out->n_recomputed += r->load_end - good;
        for (uint32_t rank = 0; rank < s->k.o.n_ranks; rank++)
            for (uint32_t g = 0; g < s->k.o.n_groups; g++)
                for (uint32_t t = 0; t < good; t++) {
                    int64_t slot = ck_slot(r->blocks[g], t);
                    if (slot >= 0 && !ck_right(&s->k, rank, g, slot, r->seen[t]))
                        sim_wrong(s, "request %llu: a wrong byte at token %u of %u, loaded",
                                  (unsigned long long)r->id, t, good);
                }
        r->n_computed = good < r->n_known ? good : r->n_known - 1;
        r->state = SIM_RUNNING;
        r->life++;
        if (tell_blocks(s, r, 0) != 0) sim_wrong(s, "alloc: %s", tsr_errmsg());
    }
}

static void take_row(struct sim *s, const struct sim_row *row)
{
    struct sim_request *r = &s->requests[row->request];
    if (row->life != r->life || r->state != SIM_RUNNING) return;
    r->n_in_flight -= row->n;
    if (!row->samples) return;
    uint32_t n_new = 1 + row->n_accepted;
    r->n_computed -= row->n_drafts - row->n_accepted;
    r->n_placeholders -= 1 + row->n_drafts;
    r->n_known += n_new;
    if (r->n_known < r->n_prompt + r->n_output) return;
    r->n_known = r->n_prompt + r->n_output; /* a stop: what came behind it is dropped */
    end(s, r, false);
}

static void process(struct sim *s, struct sim_step *step)
{
    if (s->n_executed == s->n_processed + 1) { /* its own: it has an output */
        sim_arrive(s);
        ck_sync(&s->k);
    }
    for (uint32_t r = 0; r < s->k.o.n_ranks; r++) {
        if (tsr_scheduler_update_connector_output(s->k.scheduler, step->reports[r],
                                                  step->report_bytes[r]) != 0)
            sim_wrong(s, "output: %s", tsr_errmsg());
        free(step->reports[r]);
    }
    take_bad_blocks(s, step);
    for (uint32_t i = 0; i < step->n_rows; i++)
        take_row(s, &step->rows[i]);
    take_named(s, step);
    free(step->meta);
    step->n_rows = step->n_freed = step->n_bad = step->n_sent = step->n_received = 0;
    step->loads = false;
    s->n_processed++;
}

/* ---- the whole ---- */

/* Everything that the cache has of what any request was. */
static void check_cache(struct sim *s, const struct sim_request *r)
{
    const struct tsri_terms *t = &s->k.scheduler->terms;
    uint32_t whole = r->n_truth / CK_CHUNK * CK_CHUNK;
    struct tsr_match rows[64 * CK_RANKS_MAX * CK_GROUPS_MAX];
    uint8_t kv[CK_CHUNK * CK_LAYERS * CK_PLANES * CK_ROW_BYTES];
    struct tsr_prompt p = {.size = sizeof p, .tokens = r->truth, .n_tokens = whole};
    for (uint32_t k = 0; whole && k < t->n_spaces; k++) {
        struct tsr_lookup_desc io = {.size = sizeof io,
                                     .spaces = &t->spaces[k],
                                     .n_spaces = 1,
                                     .matches = rows,
                                     .matches_max = 64};
        if (tsr_client_lookup(t->client, &p, &io) < 0) sim_wrong(s, "check: %s", tsr_errmsg());
        for (uint32_t m = 0; m < io.n_matches; m++) {
            struct tsr_load_desc load = {.size = sizeof load,
                                         .space = t->spaces[k],
                                         .match = &rows[m],
                                         .prompt = &p,
                                         .view = {.data = kv, .bytes = sizeof kv}};
            if (tsr_client_load(t->client, &load, 1) != 1) continue;
            struct ck one = {.n_slots = CK_CHUNK};
            uint32_t rank = k / t->n_groups, g = k % t->n_groups;
            one.memory[rank][g] = kv;
            for (uint32_t i = 0; i < CK_CHUNK; i++)
                if (!ck_right(&one, rank, g, i, r->seen[rows[m].prompt_offset + i]))
                    sim_wrong(s, "the cache has a wrong byte: token %u of request %llu, prompt %u",
                              rows[m].prompt_offset + i, (unsigned long long)r->id, r->n_prompt);
            s->out->n_cached_checked += CK_CHUNK;
        }
    }
}

static bool is_over(const struct sim *s)
{
    for (uint32_t i = 0; i < s->o->n_requests; i++)
        if (s->requests[i].state != SIM_ENDED || s->requests[i].held) return false;
    return true;
}

static void run(struct sim *s)
{
    while (!s->out->wrong[0] && (!is_over(s) || s->n_processed < s->n_scheduled)) {
        /* Scheduled, executed and processed at their own pace, in order. */
        bool may_schedule = s->n_scheduled - s->n_processed < s->o->depth && !is_over(s);
        if (s->n_scheduled > STEPS_BUSY) usleep(100); /* for saves that hold blocks, usually */
        if (may_schedule && (s->n_executed == s->n_scheduled || sim_random(s, 2)))
            schedule(s);
        else if (s->n_executed < s->n_scheduled &&
                 (s->n_executed == s->n_processed || sim_random(s, 2)))
            sim_execute(s, &s->steps[s->n_executed % (SIM_DEPTH_MAX + 1)]);
        else if (s->n_processed < s->n_executed)
            process(s, &s->steps[s->n_processed % (SIM_DEPTH_MAX + 1)]);
        if (s->n_scheduled > STEPS_MAX) sim_wrong(s, "it does not end");
    }
}

static void finish(struct sim *s)
{
    struct ck_answer answer;
    if (!s->out->wrong[0]) ck_settle(&s->k, &answer);
    for (uint32_t i = 0; !s->out->wrong[0] && i < s->o->n_requests; i++)
        check_cache(s, &s->requests[i]);
    for (uint32_t g = 0; !s->out->wrong[0] && g < s->k.o.n_groups; g++)
        if (s->n_free[g] != s->k.o.n_blocks - 1) sim_wrong(s, "blocks were lost");
    if (!s->out->wrong[0] && s->k.scheduler->reqs.n) sim_wrong(s, "requests were not forgotten");
    s->out->scheduler = ck_stats(&s->k);
    s->out->worker = ck_worker_stats(&s->k, 0);
}

void engine_run(const struct sim_options *o, struct sim_result *out)
{
    struct sim s = {.o = o, .out = out, .rng = o->seed};
    memset(out, 0, sizeof *out);
    ck_open(&s.k, &o->kit);
    if (o->opened) o->opened();
    s.next = &s.steps[0];
    for (uint32_t g = 0; g < s.k.o.n_groups; g++) {
        s.free_blocks[g] = malloc(s.k.o.n_blocks * sizeof(int32_t));
        for (uint32_t b = 1; b < s.k.o.n_blocks; b++)
            s.free_blocks[g][s.n_free[g]++] = (int32_t)b;
    }
    s.requests = calloc(o->n_requests, sizeof *s.requests);
    for (uint32_t i = 0; i < o->n_requests; i++)
        new_request(&s, &s.requests[i], o->n_requests + i);
    run(&s);
    finish(&s);
    ck_close(&s.k);
    for (uint32_t i = 0; i < o->n_requests; i++) {
        free(s.requests[i].truth);
        free(s.requests[i].seen);
    }
    for (uint32_t i = 0; i <= SIM_DEPTH_MAX; i++) {
        free(s.steps[i].rows);
        free(s.steps[i].freed);
        free(s.steps[i].bad);
        free(s.steps[i].sent);
        free(s.steps[i].received);
    }
    free(s.writes);
    free(s.free_blocks[0]);
    free(s.free_blocks[1]);
    free(s.requests);
}
