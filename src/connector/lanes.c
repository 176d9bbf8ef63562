/* lanes.c - the threads of a worker half. A lane is one thread with staging memory and a queue of
 * the device of its own: loads that a step waits for, loads between steps, and saves do not wait
 * for each other. Saves go one after the other, which is also what keeps a chunk from being saved
 * before the one in front of it.
 *
 * Memory is taken when it is first used: an engine that never loads within a step has none of that
 * lane, and staging memory is for the few loads that cannot go straight. */
#include "connector/connector.h"

#define QUEUE_MAX 65536u

struct tsr_delivery *tsri_lane_delivery(struct tsri_lane *lane, uint32_t group)
{
    struct tsr_worker *w = lane->worker;
    const struct tsri_terms *t = &w->terms;
    if (lane->has_asked[group]) return lane->deliveries[group];
    lane->has_asked[group] = true;
    uint32_t n = lane == &w->lanes[TSRI_LANE_SAVE] ? TSRI_LANE_RUNS : lane->rows_max;
    struct tsr_delivery_desc desc = {.size = sizeof desc,
                                     .space = t->spaces[w->rank * t->n_groups + group],
                                     .layout = &lane->mem[group].layout,
                                     .ranges_max = n,
                                     .tokens_max = n * t->chunk_tokens};
    if (lane == &w->lanes[TSRI_LANE_SAVE]) desc.flags = TSR_DELIVERY_LOW_PRIORITY;
    int e = tsri_engine_device_delivers(w->device, t->cache)
                ? tsr_delivery_open(&lane->deliveries[group], t->client, &desc)
                : tsri_fail(TSR_EDEVICE, "the cache has no device %s (option device)",
                            tsri_device_name(w->device));
    if (e) tsri_log(TSR_LOG_INFO, "connector: KV goes through staging memory: %s", tsr_errmsg());
    return lane->deliveries[group];
}

int tsri_lane_open_rows(struct tsri_lane *lane, uint32_t group)
{
    struct tsri_lane_rows *r = &lane->rows[group];
    if (r->ranges) return 0;
    size_t n = lane->rows_max, n_slots = n * lane->worker->terms.chunk_tokens;
    r->rows = tsri_alloc(n, sizeof *r->rows);
    r->staged = tsri_alloc(n, sizeof *r->staged);
    r->slots = tsri_alloc(n_slots, sizeof *r->slots);
    r->ranges = tsri_alloc(n, sizeof *r->ranges);
    if (r->rows && r->staged && r->slots && r->ranges) return 0;
    tsri_free(r->rows);
    tsri_free(r->staged);
    tsri_free(r->slots);
    tsri_free(r->ranges);
    *r = (struct tsri_lane_rows){0};
    return TSR_ENOMEM;
}

int tsri_lane_init(struct tsri_lane *lane, struct tsr_worker *w, const char *name,
                   const struct tsr_kv_layout *layouts)
{
    const struct tsri_terms *t = &w->terms;
    memset(lane, 0, sizeof *lane);
    lane->worker = w;
    uint32_t fit = TSRI_LANE_TOKENS / t->chunk_tokens;
    lane->rows_max = tsri_min_u32(fit ? fit : 1, TSRI_LANE_ROWS);
    size_t chunk_bytes = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        size_t bytes =
            t->chunk_tokens * tsr_space_token_bytes(t->spaces[w->rank * t->n_groups + g]);
        if (bytes > chunk_bytes) chunk_bytes = bytes;
    }
    size_t bytes = w->staging_bytes > chunk_bytes ? w->staging_bytes : chunk_bytes;
    lane->staging = (struct tsri_staging){.device = w->device, .bytes = tsri_align_up(bytes, 4096)};
    uint32_t low = lane == &w->lanes[TSRI_LANE_SAVE] ? TSR_STREAM_LOW : 0;
    int e = tsri_stream_open(&lane->stream, w->device, NULL, low);
    lane->slots = tsri_alloc((size_t)TSRI_LANE_RUNS * t->chunk_tokens, sizeof *lane->slots);
    if (!e && !lane->slots) e = TSR_ENOMEM;
    for (uint32_t g = 0; !e && g < t->n_groups; g++) {
        struct tsri_kvmem_desc desc = {
            .device = w->device,
            .stream = lane->stream,
            .layout = (const void *)((const uint8_t *)layouts + g * layouts[0].size),
            .shape = tsri_space_shape(t->spaces[w->rank * t->n_groups + g]),
            .run_tokens = t->chunk_tokens,
            .staging = &lane->staging};
        e = tsri_kvmem_init(&lane->mem[g], &desc);
    }
    if (!e) e = tsri_work_open(&lane->work, name, 1, QUEUE_MAX);
    if (e) tsri_lane_fini(lane);
    return e;
}

void tsri_lane_fini(struct tsri_lane *lane)
{
    struct tsr_worker *w = lane->worker;
    if (!w) return;
    tsri_work_close(lane->work);
    for (uint32_t g = 0; g < TSR_GROUPS_MAX; g++) {
        struct tsri_lane_rows *r = &lane->rows[g];
        tsr_delivery_close(lane->deliveries[g]);
        tsri_free(r->rows);
        tsri_free(r->staged);
        tsri_free(r->slots);
        tsri_free(r->ranges);
        tsri_kvmem_fini(&lane->mem[g]);
    }
    if (lane->stream) tsri_stream_close(w->device, lane->stream);
    tsri_staging_fini(&lane->staging);
    tsri_free(lane->slots);
    memset(lane, 0, sizeof *lane);
}
