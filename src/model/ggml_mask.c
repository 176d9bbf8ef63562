/* ggml_mask.c - who sees whom. ggml's attention adds a matrix of 16-bit floats to its scores: 0
 * where a row may look, minus infinity where it may not, and the bias in between. A pass over a
 * long prompt would need gigabytes of it at once, so rows are cut into batches, and each batch has
 * a mask only over the slots that one of its rows may see. */
#include "model/model.h"

#include <string.h>

/* Four at a time: masks of a long prompt have millions. */
static void hide(ggml_fp16_t *row, uint32_t n)
{
    static const ggml_fp16_t hidden[4] = {TSRI_HIDDEN, TSRI_HIDDEN, TSRI_HIDDEN, TSRI_HIDDEN};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        memcpy(row + i, hidden, sizeof hidden);
    for (; i < n; i++)
        row[i] = TSRI_HIDDEN;
}

static void set_range(ggml_fp16_t *row, const struct tsri_sight *sight,
                      const struct tsri_row_batch *batch, uint32_t first, uint32_t end, bool bias)
{
    uint32_t from = first > batch->kv_first ? first - batch->kv_first : 0;
    uint32_t to = end - batch->kv_first;
    memset(row + from, 0, (to - from) * sizeof *row);
    if (!bias) return;
    uint32_t biased = sight->n_bias < end ? sight->n_bias : end;
    if (biased > batch->kv_first + from)
        memcpy(row + from, sight->bias + batch->kv_first + from,
               (biased - batch->kv_first - from) * sizeof *row);
}

/* Where a row at `slot` stops looking at range k of its group. */
static uint32_t seen_end(const struct tsr_model_group *g, uint32_t k, uint32_t slot)
{
    return k + 1 == g->n_ranges ? slot + 1 : g->sees[k].offset + g->sees[k].n_tokens;
}

void tsri_mask_fill(const struct tsri_sight *sight, const struct tsri_row_batch *batch,
                    ggml_fp16_t *mask)
{
    for (uint32_t i = 0; i < batch->n_padded; i++) {
        ggml_fp16_t *row = mask + (size_t)i * batch->n_kv;
        if (i >= batch->n_rows) {
            hide(row, batch->n_kv);
            continue;
        }
        uint32_t r = batch->row_first + i, slot = sight->slots[r], done = 0;
        const struct tsr_model_group *g = &sight->groups[sight->groups_of[r]];
        bool biased = sight->n_bias > 0 && r >= sight->bias_row_first;
        bool turned = g->n_ranges == 2 && g->sees[0].offset > g->sees[1].offset;
        for (uint32_t n = 0; n < g->n_ranges; n++) { /* by offset */
            uint32_t k = turned ? 1 - n : n, end = seen_end(g, k, slot);
            uint32_t first = g->sees[k].offset;
            hide(row + done, first - batch->kv_first - done);
            set_range(row, sight, batch, first, end, biased);
            done = end - batch->kv_first;
        }
        hide(row + done, batch->n_kv - done);
    }
}

/* Widens [*first, *end) by the slots that a row of the group looks at. */
static void widen(const struct tsr_model_group *g, uint32_t slot, uint32_t *first, uint32_t *end)
{
    for (uint32_t k = 0; k < g->n_ranges; k++) {
        uint32_t a = g->sees[k].offset, b = seen_end(g, k, slot);
        if (a < *first) *first = a;
        if (b > *end) *end = b;
    }
}

#define PART_ROWS 16u /* of a matrix and of what it is multiplied with, in ggml's parts */
#define PARTS_A_THREAD 4u

static uint32_t parts_of(uint32_t n)
{
    return (n + PART_ROWS - 1) / PART_ROWS;
}

uint32_t tsri_threads_most(uint32_t n_out)
{
    return parts_of(n_out) * parts_of(TSRI_BATCH_ROWS) / PARTS_A_THREAD;
}

uint32_t tsri_rows_least(uint32_t n_threads, uint32_t n_out)
{
    uint32_t parts = (PARTS_A_THREAD * n_threads + parts_of(n_out) - 1) / parts_of(n_out);
    return parts * PART_ROWS - PART_ROWS / 2;
}

uint32_t tsri_rows_wide(uint32_t rows_least, uint32_t n_rows)
{
    uint32_t n = n_rows > rows_least ? n_rows : rows_least;
    uint32_t step = n < TSRI_TILE_ROWS ? PART_ROWS / 2 : PART_ROWS;
    return (n + step - 1) / step * step;
}

static void finish(const struct tsri_sight *sight, struct tsri_row_batch *b,
                   const struct tsri_fit *fit)
{
    uint32_t first = UINT32_MAX, end = 0;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t r = b->row_first + i;
        widen(&sight->groups[sight->groups_of[r]], sight->slots[r], &first, &end);
    }
    if (end == 0) first = 0, end = 1; /* rows that see nothing: attention gives zeros */
    b->kv_first = first / TSRI_KV_ALIGN * TSRI_KV_ALIGN;
    b->n_kv = (end - b->kv_first + TSRI_KV_STEP - 1) / TSRI_KV_STEP * TSRI_KV_STEP;
    if (b->n_kv > fit->n_slots - b->kv_first) b->n_kv = fit->n_slots - b->kv_first;
    bool fill = fit->rows_least > 0;
    b->n_padded = fill && b->n_rows < TSRI_TILE_ROWS ? TSRI_TILE_ROWS : b->n_rows;
    b->n_wide = fill ? tsri_rows_wide(fit->rows_least, b->n_rows) : b->n_rows;
    b->mask_at = TSRI_MASK_NONE;
}

/* Batches of about equal size, so that none is mostly filling; and a new one at a group of other
 * rows, when the batch has a fair size already: isolated chunks then scan only their own keys. */
uint32_t tsri_batches_cut(const struct tsri_sight *sight, uint32_t n_rows,
                          const struct tsri_fit *fit, struct tsri_row_batch *batches, uint32_t max)
{
    uint32_t n = 0, done = 0;
    while (done < n_rows && n < max) {
        uint32_t left = n_rows - done, parts = (left + fit->rows_max - 1) / fit->rows_max;
        uint32_t rows = parts_of((left + parts - 1) / parts) * PART_ROWS;
        if (rows > left) rows = left;
        uint32_t group = sight->groups_of[done];
        for (uint32_t i = 1; i < rows; i++) {
            if (sight->groups_of[done + i] == group) continue;
            group = sight->groups_of[done + i];
            if (i >= TSRI_TILE_ROWS && left - i >= TSRI_TILE_ROWS) {
                rows = i;
                break;
            }
        }
        batches[n] = (struct tsri_row_batch){.row_first = done, .n_rows = rows};
        finish(sight, &batches[n++], fit);
        done += rows;
    }
    return n;
}
