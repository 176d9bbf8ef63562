/* fuzz_meta.c - the bytes between the halves of a connector: whatever comes is refused, or read to
 * its end without a byte too many; and a step that is good is read in the same way twice. */
#include "connector/connector.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Two ranks, two groups, an identity of zeros. The second group has KV, and then states. */
static struct tsri_terms terms = {.n_ranks = 2,
                                  .n_groups = 2,
                                  .n_spaces = 4,
                                  .chunk_tokens = 16,
                                  .groups = {{.block_tokens = 8}, {.block_tokens = 16}}};

static void read_report(const uint8_t *data, size_t bytes)
{
    struct tsri_order_reader r;
    struct tsri_report_head head;
    if (tsri_meta_read_report(&r, &terms, data, bytes, &head) != 0) return;
    for (uint32_t i = 0; i < head.n_saves; i++) {
        struct tsri_save_report save;
        tsri_meta_read_save_report(&r, &save);
    }
    for (uint32_t i = 0; i < head.n_loads; i++) {
        struct tsri_load_report load;
        tsri_meta_read_load_report(&r, &load);
    }
    uint64_t id;
    for (uint32_t i = 0; i < head.n_sent; i++)
        TSR_ASSERT(tsri_meta_read_id(&r, &id) == 0);
    TSR_ASSERT(r.at == r.end);
}

/* Everything that an order points to must be there. */
static uint64_t look(const void *p, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = sum * 31 + ((const uint8_t *)p)[i];
    return sum;
}

static uint64_t look_tables(const struct tsri_tables *x, uint32_t first, uint32_t end)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < terms.n_groups; g++)
        sum += look(x->blocks[g], tsri_tables_n(&terms.groups[g], first, end) * sizeof(int32_t));
    return sum;
}

static uint64_t look_extras(const struct tsri_extras *x)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < x->n; i++)
        sum += look(x->items[i].data, x->items[i].bytes);
    return sum;
}

static uint64_t read_step(const uint8_t *data, size_t bytes)
{
    struct tsri_order_reader r;
    struct tsri_step_head head;
    uint64_t sum = 0, id;
    TSR_ASSERT(tsri_meta_read_step(&r, &terms, data, bytes, &head) == 0);
    for (uint32_t i = 0; i < head.n_preempted + head.n_ended; i++)
        TSR_ASSERT(tsri_meta_read_id(&r, &id) == 0);
    for (uint32_t i = 0; i < head.n_loads; i++) {
        struct tsri_load_order o;
        void *memory;
        TSR_ASSERT(tsri_meta_read_load(&r, &o, &memory) == 0);
        sum += look(o.tokens, o.n_tokens * sizeof *o.tokens) + look_extras(&o.extras) +
               look(o.rows, (size_t)o.n_rows * terms.n_spaces * sizeof *o.rows) +
               look_tables(&o.tables, o.first, o.end);
        tsri_free(memory);
    }
    for (uint32_t i = 0; i < head.n_saves; i++) {
        struct tsri_save_order o;
        void *memory;
        TSR_ASSERT(tsri_meta_read_save(&r, &o, &memory) == 0);
        sum += look(o.tokens, o.to * sizeof *o.tokens) + look_extras(&o.extras) +
               look_tables(&o.tables, o.from, o.to);
        tsri_free(memory);
    }
    TSR_ASSERT(r.at == r.end);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_report(data, bytes);
    for (uint32_t states = 0; states < 2; states++) {
        terms.groups[1].flags = states ? TSR_GROUP_STATE : 0;
        terms.n_states = states;
        terms.state_tokens = states ? 16 : 0;
        if (tsri_meta_check_step(&terms, data, bytes) != 0) continue;
        TSR_ASSERT(read_step(data, bytes) == read_step(data, bytes));
    }
    return 0;
}
