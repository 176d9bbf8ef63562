/* engine_worker.c - the workers of engine_sim.h: they run steps one after the other, each in the
 * order of calls of a real worker, and look at what was loaded before they compute on it. */
#include "support/engine_sim.h"

#include <stdio.h>
#include <stdlib.h>

/* Tokens [first, end) of a request, in every rank and group; windows that have passed left out. */
static bool is_right(const struct sim *s, const struct sim_request *r,
                     const int32_t blocks[][SIM_BLOCKS_MAX], uint32_t first, uint32_t end)
{
    for (uint32_t rank = 0; rank < s->k.o.n_ranks; rank++)
        for (uint32_t g = 0; g < s->k.o.n_groups; g++)
            for (uint32_t i = first; i < end; i++) {
                int64_t slot = ck_slot(blocks[g], i);
                if (slot >= 0 && !ck_right(&s->k, rank, g, slot, r->seen[i])) return false;
            }
    return true;
}

static void write_token(struct sim *s, const struct sim_row *row, uint32_t i, uint64_t seen)
{
    for (uint32_t rank = 0; rank < s->k.o.n_ranks; rank++)
        for (uint32_t g = 0; g < s->k.o.n_groups; g++) {
            int64_t slot = i / CK_BLOCK < SIM_BLOCKS_MAX ? ck_slot(row->blocks[g], i) : -1;
            if (slot < 0) continue;
            s->writes = sim_grow(s->writes, &s->writes_max, s->n_writes + 1, sizeof *s->writes);
            s->writes[s->n_writes++] = (struct sim_write){rank, g, slot, seen};
        }
}

/* A forward on a device: what it writes, and where. */
struct launch {
    struct ck *k;
    uint32_t n;
    struct sim_write writes[];
};

static void write_all(struct ck *k, const struct sim_write *writes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ck_write(k, writes[i].rank, writes[i].group, writes[i].slot, writes[i].seen);
}

static void launch_run(void *arg)
{
    struct launch *l = arg;
    write_all(l->k, l->writes, l->n);
    free(l);
}

static void launch(struct sim *s)
{
    size_t bytes = s->n_writes * sizeof *s->writes;
    struct launch *l = malloc(sizeof *l + bytes);
    if (!l) abort();
    l->k = &s->k;
    l->n = s->n_writes;
    memcpy(l->writes, s->writes, bytes);
    s->k.o.gpu->launch(s->k.stream, launch_run, l);
}

void sim_arrive(struct sim *s)
{
    if (s->k.o.gpu && s->n_writes)
        launch(s);
    else
        write_all(&s->k, s->writes, s->n_writes);
    s->n_writes = 0;
}

/* One request's part of a forward. */
static void forward(struct sim *s, struct sim_row *row)
{
    struct sim_request *r = &s->requests[row->request];
    if (row->life > r->w_life) {
        r->w_life = row->life;
        r->w_computed = row->first;
    }
    if (row->load_end) {
        /* The engine's queue may be what waits for the load. */
        if (s->k.o.flags & TSR_CONNECTOR_LOAD_SURE) ck_sync(&s->k);
        row->rubbish =
            !is_right(s, r, (const int32_t(*)[SIM_BLOCKS_MAX])row->blocks, 0, row->load_end);
    }
    /* Under way the scheduler counts every draft as accepted; the workers know better. */
    bool decode = row->n_drafts || (row->samples && row->n == 1);
    uint32_t first = decode ? r->w_computed : row->first;
    if (decode) {
        row->n_accepted = row->n_drafts ? sim_random(s, row->n_drafts + 1) : 0;
        s->out->n_rejected += row->n_drafts - row->n_accepted;
    }
    uint32_t n_right = decode ? 1 + row->n_accepted : row->n;
    for (uint32_t i = 0; i < row->n; i++) {
        uint32_t at = first + i;
        if (at >= r->n_truth) break;
        bool right = i < n_right && !row->rubbish;
        write_token(s, row, at, right ? r->seen[at] : r->seen[at] ^ 0x5555);
    }
    r->w_computed = first + n_right;
}

/* At once, also on a device: nothing may depend on these blocks any more. What their last owner has
 * queued may still be written afterwards. */
static void poison_freed(struct sim *s, struct sim_step *step)
{
    if (s->o->no_races && step->n_freed) ck_sync(&s->k);
    for (uint32_t i = 0; i < step->n_freed; i++)
        ck_poison(&s->k, step->freed[i].group, step->freed[i].block, s->n_executed * 1000 + i);
}

static void ask(struct sim *s, struct sim_step *step, uint32_t rank)
{
    struct tsr_worker *w = s->k.workers[rank];
    uint64_t sent[512], received[512];
    struct tsr_finished f = {
        .size = sizeof f, .sent = sent, .received = received, .sent_max = 512, .received_max = 512};
    if (tsr_worker_get_finished(w, &f) < 0) sim_wrong(s, "get_finished: %s", tsr_errmsg());
    uint32_t max = step->ids_max;
    uint32_t n = (step->n_sent > step->n_received ? step->n_sent : step->n_received) + 512;
    step->sent = sim_grow(step->sent, &max, n, sizeof *sent);
    max = step->ids_max;
    step->received = sim_grow(step->received, &max, n, sizeof *received);
    step->ids_max = max;
    memcpy(step->sent + step->n_sent, sent, f.n_sent * sizeof *sent);
    memcpy(step->received + step->n_received, received, f.n_received * sizeof *received);
    step->n_sent += f.n_sent;
    step->n_received += f.n_received;
    int n_bad;
    do {
        step->bad = sim_grow(step->bad, &step->bad_max, step->n_bad + 64, sizeof *step->bad);
        n_bad = tsr_worker_get_block_ids_with_load_errors(w, step->bad + step->n_bad, 64);
        if (n_bad < 0) sim_wrong(s, "load errors: %s", tsr_errmsg());
        step->n_bad += n_bad > 0 ? (uint32_t)n_bad : 0;
    } while (n_bad == 64);
    const void *meta;
    if (tsr_worker_build_connector_worker_meta(w, &meta, &step->report_bytes[rank]) != 0)
        sim_wrong(s, "worker meta: %s", tsr_errmsg());
    step->reports[rank] = malloc(step->report_bytes[rank] + 1);
    memcpy(step->reports[rank], meta ? meta : "", step->report_bytes[rank]);
}

/* The first token of [0, end) whose block was named as bad; end when none was. */
static uint32_t first_bad(const struct sim *s, const struct sim_step *step,
                          const int32_t blocks[][SIM_BLOCKS_MAX], uint32_t end)
{
    uint32_t first = end;
    for (uint32_t k = 0; k < step->n_bad; k++)
        for (uint32_t i = 0; i < (end + CK_BLOCK - 1) / CK_BLOCK; i++)
            if (step->bad[k].group < s->k.o.n_groups &&
                blocks[step->bad[k].group][i] == step->bad[k].block && i * CK_BLOCK < first)
                first = i * CK_BLOCK;
    return first;
}

/* What was loaded is right, up to what was named as bad. */
static void check_loads(struct sim *s, struct sim_step *step)
{
    for (uint32_t i = 0; i < step->n_rows; i++) {
        struct sim_row *row = &step->rows[i];
        if (!row->load_end) continue;
        const struct sim_request *r = &s->requests[row->request];
        const int32_t(*blocks)[SIM_BLOCKS_MAX] = (const int32_t(*)[SIM_BLOCKS_MAX])row->blocks;
        uint32_t end = first_bad(s, step, blocks, row->load_end);
        s->out->n_loaded += end;
        s->out->n_load_failures += end < row->load_end;
        if (!is_right(s, r, blocks, 0, end))
            sim_wrong(s, "request %llu: a wrong byte in the first %u tokens, loaded in the step",
                      (unsigned long long)r->id, end);
        if (row->rubbish && end == row->load_end)
            sim_wrong(s, "request %llu: a load failed and nobody said so",
                      (unsigned long long)r->id);
    }
    for (uint32_t i = 0; i < s->o->n_requests; i++) {
        struct sim_request *r = &s->requests[i];
        if (r->state != SIM_LOADING || !step->n_bad) continue;
        uint32_t bad = first_bad(s, step, (const int32_t(*)[SIM_BLOCKS_MAX])r->blocks, r->load_end);
        if (bad < r->bad_at) r->bad_at = bad;
    }
}

static void start(struct sim *s, const struct sim_step *step)
{
    for (uint32_t r = 0; r < s->k.o.n_ranks; r++)
        if (tsr_worker_start_load_kv(s->k.workers[r], step->meta, step->meta_bytes) != 0)
            sim_wrong(s, "start: %s", tsr_errmsg());
}

/* Returns whether loads and saves may start when the step is queued. */
static bool mark(struct sim *s, const struct sim_step *step)
{
    for (uint32_t r = 0; r < s->k.o.n_ranks; r++) /* an engine may go on after an error */
        (void)!tsr_worker_mark_queue(s->k.workers[r], step->meta, step->meta_bytes);
    for (uint32_t i = 0; i < step->n_rows; i++)
        if (step->rows[i].load_end) return false;
    return true;
}

void sim_execute(struct sim *s, struct sim_step *step)
{
    if (step->loads) sim_arrive(s); /* a device's queue sees to that */
    for (uint32_t r = 0; r < s->k.o.n_ranks; r++)
        if (tsr_worker_handle_preemptions(s->k.workers[r], step->meta, step->meta_bytes) != 0)
            sim_wrong(s, "preemptions: %s", tsr_errmsg());
    poison_freed(s, step);
    bool late = s->o->late_start && mark(s, step);
    if (!late) start(s, step);
    sim_arrive(s);
    for (uint32_t r = 0; !late && step->n_rows && r < s->k.o.n_ranks; r++)
        for (uint32_t l = 0; l < CK_LAYERS; l++)
            for (uint32_t g = 0; g < s->k.o.n_groups; g++)
                if (tsr_worker_wait_for_layer_load(s->k.workers[r], g, l) != 0)
                    sim_wrong(s, "layer: %s", tsr_errmsg());
    for (uint32_t i = 0; i < step->n_rows; i++)
        forward(s, &step->rows[i]);
    if (!s->o->lagging || s->k.o.gpu) sim_arrive(s); /* a device lags by itself */
    if (late) start(s, step);
    for (uint32_t r = 0; step->n_rows && r < s->k.o.n_ranks; r++)
        if (tsr_worker_wait_for_save(s->k.workers[r]) != 0) sim_wrong(s, "save: %s", tsr_errmsg());
    for (uint32_t r = 0; r < s->k.o.n_ranks; r++)
        ask(s, step, r);
    check_loads(s, step);
    for (uint32_t r = 0; s->o->lockstep && r < s->k.o.n_ranks; r++)
        if (tsr_worker_drain(s->k.workers[r], 20000) != 0) sim_wrong(s, "drain: %s", tsr_errmsg());
    s->n_executed++;
}
