/* Puts filled from an engine's slots, in a cache of our own and in a server's: the engine's memory
 * is read only when it may be, and what was read is what is found. The rest of it is tested where
 * deliveries are (test_deliver.c, test_lent.c). */
#include "deliver/collect.h"
#include "support/deliver_kit.h"

static struct server_kit server;

struct reader {
    uint32_t n_allowed, n_begun, n_ended;
};

static bool begin_reading(void *arg)
{
    struct reader *r = arg;
    CHECK_INT(r->n_begun, r->n_ended);
    if (r->n_begun == r->n_allowed) return false;
    r->n_begun++;
    return true;
}

static void end_reading(void *arg)
{
    struct reader *r = arg;
    r->n_ended++;
}

/* An engine that has the KV of a prefix at the rig's slots, and a cache without it. */
static void open_all(struct rig *r, bool served)
{
    const char *const options[] = {"device", device_name, "chunk_size", "16", NULL};
    if (served) {
        server_open(&server, options + 2);
        rig_open_served(r, server.path, options);
    } else {
        rig_open_empty(r, "0", false);
    }
    r->tokens = kit_tokens(5, PREFIX);
    CHECK_INT(kit_store_prefix(&r->kit, r->tokens, PREFIX), PREFIX);
    struct tsr_prompt prompt = kit_prefix_prompt(r->tokens, PREFIX);
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&r->kit, &prompt, 0, &hits), PREFIX);
    struct tsr_delivery_range ranges[PREFIX / 16];
    for (uint32_t i = 0; i < PREFIX / 16; i++)
        ranges[i] = (struct tsr_delivery_range){.size = sizeof ranges[i],
                                                .match = &hits.matches[i],
                                                .prompt = &prompt,
                                                .slots = r->slots + i * (size_t)16};
    CHECK_INT(deliver(r, ranges, PREFIX / 16), PREFIX / 16);
    CHECK_INT(tsr_cache_clear(r->kit.cache, NULL), PREFIX / 16);
}

static void close_all(struct rig *r, bool served)
{
    if (!served) {
        rig_close(r);
        return;
    }
    rig_close_served(r);
    CHECK(server_end(&server));
}

static struct tsr_put *open_put(struct rig *r)
{
    struct tsr_put *put;
    struct tsr_store_desc store = {.size = sizeof store,
                                   .space = r->kit.space,
                                   .kind = TSR_KIND_PREFIX,
                                   .tokens = r->tokens,
                                   .n_tokens = PREFIX};
    CHECK_INT(tsr_put_open(&put, r->kit.client, &store), 0);
    return put;
}

static void check_reads(bool served)
{
    struct rig r;
    open_all(&r, served);
    struct tsr_prompt prompt = kit_prefix_prompt(r.tokens, PREFIX);
    struct reader reader = {.n_allowed = 0};
    struct tsri_reading reading = {NULL, begin_reading, end_reading, &reader};
    struct tsr_put *put = open_put(&r);
    CHECK_INT(tsri_delivery_collect(r.delivery, put, r.slots, PREFIX, &reading), TSR_ETIME);
    CHECK_INT(reader.n_ended, 0);
    CHECK_INT(tsr_put_commit(put), TSR_EINVAL); /* nothing of it was filled */
    CHECK_INT(kit_load_and_check(&r.kit, &prompt), 0);
    reader.n_allowed = 100;
    put = open_put(&r);
    CHECK_INT(tsri_delivery_collect(r.delivery, put, r.slots, PREFIX, &reading), 0);
    CHECK(reader.n_begun > 0);
    CHECK_INT(reader.n_ended, reader.n_begun);
    CHECK_INT(tsr_put_commit(put), PREFIX);
    CHECK_INT(kit_load_and_check(&r.kit, &prompt), PREFIX);
    close_all(&r, served);
}

TEST(the_engines_memory_is_read_only_when_it_may_be)
{
    check_reads(false);
    check_reads(true);
}

TEST(pages_that_are_not_locked_yet_are_not_written)
{
    struct rig r;
    open_all(&r, false);
    rig_close_gate(&r);
    struct tsr_prompt prompt = kit_prefix_prompt(r.tokens, PREFIX);
    struct reader reader = {.n_allowed = 100};
    struct tsri_reading reading = {.begin = begin_reading, .end = end_reading, .arg = &reader};
    struct tsr_put *put = open_put(&r);
    CHECK_INT(tsri_delivery_collect(r.delivery, put, r.slots, PREFIX, &reading), TSR_EAGAIN);
    CHECK_INT(reader.n_begun, 0);
    rig_open_gate(&r);
    CHECK_INT(tsri_delivery_collect(r.delivery, put, r.slots, PREFIX, &reading), 0);
    CHECK_INT(tsr_put_commit(put), PREFIX);
    CHECK_INT(kit_load_and_check(&r.kit, &prompt), PREFIX);
    close_all(&r, false);
}

static void run_all(void)
{
    if (!(tsri_device_caps(device) & TSR_DEVICE_NEEDS_LOCK))
        RUN(pages_that_are_not_locked_yet_are_not_written);
    RUN(the_engines_memory_is_read_only_when_it_may_be);
}

int main(void)
{
    return rig_each_device(run_all);
}
