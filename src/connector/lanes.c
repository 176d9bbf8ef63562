/* lanes.c - the threads of a worker half. A lane is one thread with staging memory and a queue of
 * the device of its own: loads that a step waits for, loads between steps, and saves do not wait
 * for each other. Saves go one after the other, which is also what keeps a chunk from being saved
 * before the one in front of it. */
#include "connector/connector.h"

#define QUEUE_MAX 65536u

/* Only where nothing is queued: a device would begin to write while lower tiers are waited for, and
 * such a job could not be given up. Without deliveries loads go through staging memory. */
static void open_deliveries(struct tsri_lane *lane, struct tsr_worker *w)
{
    const struct tsri_terms *t = &w->terms;
    if (tsri_device_caps(w->device) & (TSR_DEVICE_ASYNC | TSR_DEVICE_SEPARATE)) return;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        struct tsr_delivery_desc config = {.size = sizeof config,
                                           .space = t->spaces[w->rank * t->n_groups + g],
                                           .layout = &lane->mem[g].layout,
                                           .ranges_max = TSRI_LANE_RUNS,
                                           .tokens_max = TSRI_LANE_RUNS * t->chunk_tokens};
        if (lane == &w->lanes[TSRI_LANE_SAVE]) config.flags = TSR_DELIVERY_LOW_PRIORITY;
        if (tsr_delivery_open(&lane->deliveries[g], t->client, &config) != 0)
            tsri_log(TSR_LOG_DEBUG, "connector: loads go through staging memory: %s", tsr_errmsg());
    }
}

int tsri_lane_init(struct tsri_lane *lane, struct tsr_worker *w, const char *name,
                   const struct tsr_kv_layout *layouts)
{
    const struct tsri_terms *t = &w->terms;
    memset(lane, 0, sizeof *lane);
    lane->worker = w;
    size_t chunk_bytes = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        size_t bytes =
            t->chunk_tokens * tsr_space_token_bytes(t->spaces[w->rank * t->n_groups + g]);
        if (bytes > chunk_bytes) chunk_bytes = bytes;
    }
    lane->staging_bytes = w->staging_bytes > chunk_bytes ? w->staging_bytes : chunk_bytes;
    lane->staging_bytes = tsri_align_up(lane->staging_bytes, 4096);
    void *staging = NULL;
    int e = tsri_device_host_alloc(w->device, &staging, lane->staging_bytes);
    lane->staging = staging;
    uint32_t low = lane == &w->lanes[TSRI_LANE_SAVE] ? TSR_STREAM_LOW : 0;
    if (!e) e = tsri_stream_open(&lane->stream, w->device, NULL, low);
    lane->slots = tsri_alloc((size_t)TSRI_LANE_RUNS * t->chunk_tokens, sizeof *lane->slots);
    if (!e && !lane->slots) e = TSR_ENOMEM;
    for (uint32_t g = 0; !e && g < t->n_groups; g++) {
        struct tsri_kvmem_desc desc = {
            .device = w->device,
            .stream = lane->stream,
            .layout = (const void *)((const uint8_t *)layouts + g * layouts[0].size),
            .shape = tsri_space_shape(t->spaces[w->rank * t->n_groups + g]),
            .run_tokens = t->chunk_tokens,
            .staging = lane->staging,
            .staging_bytes = lane->staging_bytes};
        e = tsri_kvmem_init(&lane->mem[g], &desc);
    }
    if (!e) open_deliveries(lane, w);
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
        tsr_delivery_close(lane->deliveries[g]);
        tsri_kvmem_fini(&lane->mem[g]);
    }
    if (lane->stream) tsri_stream_close(w->device, lane->stream);
    if (lane->staging) tsri_device_host_free(w->device, lane->staging);
    tsri_free(lane->slots);
    memset(lane, 0, sizeof *lane);
}
