/* The checks and defaults around every call into a tier. */
#include "tier/tier.h"
#include "config/config.h"
#include "support/fake_tier.h"
#include "support/kv_entry.h"
#include "support/test.h"

static const struct kv_shape small = {100, 64, 3, 2, {48, 32}, 10, 0};

/* Has only what is required; says success without setting a result. */
static int careless_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier, (void)io;
    return (int)n;
}

static int angry_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier;
    for (size_t i = 0; i < n; i++)
        io[i].result = 0;
    return TSR_ETIME;
}

static struct tsr_tier *open_mem(void)
{
    struct tsr_tier *t;
    struct tsr_tier_desc env = {.size = sizeof env};
    CHECK_INT(tsri_tier_open(&t, &mem_tier, &env), 0);
    return t;
}

TEST(a_table_of_another_abi_or_with_holes_is_refused)
{
    struct tsr_tier *t = (struct tsr_tier *)1;
    struct tsr_tier_desc env = {.size = sizeof env};
    CHECK_INT(tsri_tier_open(&t, NULL, &env), TSR_EINVAL);
    struct tsr_tier_ops ops = mem_tier;
    static const uint32_t others[] = {0, TSR_TIER_ABI + 1};
    for (uint32_t i = 0; i < TSRI_COUNT(others); i++) {
        ops.abi = others[i];
        CHECK_INT(tsri_tier_open(&t, &ops, &env), TSR_EVERSION);
        CHECK(t == NULL);
    }
    ops = mem_tier;
    ops.get = NULL;
    CHECK_INT(tsri_tier_open(&t, &ops, &env), TSR_EINVAL);
    CHECK_HAS(tsr_errmsg(), "mem lacks");
    tsri_tier_close(NULL);
}

static int no_shingles(struct tsr_tier *tier, const struct tsr_tier_ref *ref, uint32_t *out,
                       uint32_t max)
{
    (void)tier, (void)ref, (void)out;
    return (int)max + 1;
}

/* What a table of abi 1 has behind its end is not read. */
TEST(a_table_of_abi_1_has_no_shingles)
{
    struct tsr_tier_ops ops = mem_tier;
    struct tsr_tier_ref ref = {.loc = 0};
    struct tsr_tier tier = {.ops = &ops};
    uint32_t out[3];
    ops.shingles = no_shingles;
    CHECK_INT(tsri_tier_shingles(&tier, &ref, out, 3), 3);
    ops.abi = 1;
    CHECK_INT(tsri_tier_shingles(&tier, &ref, out, 3), 0);
}

TEST(tiers_are_attached_to_a_configuration_in_order)
{
    struct tsr_config *cfg;
    CHECK_INT(tsr_config_open(&cfg), 0);
    struct tsr_tier_ops old = mem_tier;
    old.abi = 99;
    CHECK_INT(tsr_tier_attach(NULL, &mem_tier, NULL), TSR_EINVAL);
    CHECK_INT(tsr_tier_attach(cfg, NULL, NULL), TSR_EINVAL);
    CHECK_INT(tsr_tier_attach(cfg, &old, NULL), TSR_EVERSION);
    CHECK_INT(tsr_tier_attach(cfg, &mem_tier, &old), 0);
    CHECK_INT(tsr_tier_attach(cfg, &null_tier, NULL), 0);
    const struct tsri_attached *list;
    CHECK_INT(tsri_config_attached(cfg, &list), 2);
    CHECK(list[0].ops == &mem_tier && list[0].arg == &old && list[1].ops == &null_tier);
    tsr_config_close(cfg);
}

TEST(an_impossible_shape_is_refused_and_nothing_is_done)
{
    struct tsr_tier *t = open_mem();
    struct kv_entry e;
    kv_entry_init(&e, &small, 1);
    struct tsr_tier_io io[2] = {kv_entry_io(&e), kv_entry_io(&e)};
    uint32_t *const fields[] = {&io[1].head.n_tokens,     &io[1].head.cell_tokens,
                                &io[1].head.n_layers,     &io[1].head.n_planes,
                                &io[1].head.row_bytes[1], &io[1].n_cells};
    const uint32_t bad[] = {0, 0x7FFFFFFF, 0xFFFFFFFF, 3 << 20};
    for (size_t f = 0; f < TSRI_COUNT(fields); f++)
        for (size_t b = 0; b < TSRI_COUNT(bad); b++) {
            uint32_t good = *fields[f];
            *fields[f] = bad[b];
            CHECK_INT(tsri_tier_put(t, io, 2), TSR_EINVAL);
            CHECK_INT(io[0].result, TSR_EINVAL);
            CHECK_INT(tsri_tier_get(t, io, 2), TSR_EINVAL);
            *fields[f] = good;
        }
    io[1].head.cell_tokens = 48;
    CHECK_INT(tsri_tier_put(t, io, 2), TSR_EINVAL);
    io[1].head.cell_tokens = 64;
    io[1].planes = NULL;
    CHECK_INT(tsri_tier_put(t, io, 2), TSR_EINVAL);
    io[1] = kv_entry_io(&e);
    io[1].extra = NULL;
    CHECK_INT(tsri_tier_put(t, io, 2), TSR_EINVAL);
    struct tsr_tier_stats stats;
    CHECK_INT(tsri_tier_stats(t, &stats), 0);
    CHECK_INT(stats.entries, 0);
    kv_entry_fini(&e);
    tsri_tier_close(t);
}

TEST(a_result_that_is_not_set_is_a_failure)
{
    struct tsr_tier *t;
    struct tsr_tier_desc env = {.size = sizeof env};
    struct tsr_tier_ops ops = null_tier;
    ops.put = careless_put;
    CHECK_INT(tsri_tier_open(&t, &ops, &env), 0);
    struct kv_entry e;
    kv_entry_init(&e, &small, 1);
    struct tsr_tier_io io = kv_entry_io(&e);
    CHECK_INT(tsri_tier_put(t, &io, 1), 0);
    CHECK_INT(io.result, TSR_EIO);
    ops.put = angry_put;
    CHECK_INT(tsri_tier_put(t, &io, 1), 0);
    CHECK_INT(io.result, TSR_ETIME);
    kv_entry_fini(&e);
    tsri_tier_close(t);
}

static int count_entry(void *arg, const struct tsr_entry_head *head, tsr_tier_loc loc,
                       uint64_t bytes)
{
    (void)head, (void)loc, (void)bytes;
    ++*(int *)arg;
    return 0;
}

TEST(optional_members_have_their_defaults)
{
    struct tsr_tier *t;
    struct tsr_tier_desc env = {.size = sizeof env};
    CHECK_INT(tsri_tier_open(&t, &null_tier, &env), 0);
    CHECK_STR(tsri_tier_name(t), "null");
    int n = 0;
    CHECK_INT(tsri_tier_scan(t, count_entry, &n), 0);
    struct tsr_tier_ref refs[2] = {{.loc = 0}, {.loc = 7}};
    uint8_t found[2] = {9, 9};
    CHECK_INT(tsri_tier_contains(t, refs, 2, found), 1);
    CHECK(found[0] == 0 && found[1] == 1);
    CHECK_INT(tsri_tier_flush(t), 0);
    struct tsr_tier_stats stats = {.entries = 5};
    CHECK_INT(tsri_tier_stats(t, &stats), 0);
    CHECK_INT(stats.entries, 0);
    CHECK_INT(tsri_tier_drop(t, refs, 2), 0);
    CHECK_INT(tsri_tier_drop(t, NULL, 1), TSR_EINVAL);
    tsri_tier_close(t);
}

static int impossible_scan(struct tsr_tier *tier, tsr_tier_scan_fn fn, void *arg)
{
    (void)tier;
    struct tsr_entry_head head = {.n_tokens = 1};
    int err = fn(arg, &head, 1, 1);
    head = (struct tsr_entry_head){
        .n_tokens = 1, .cell_tokens = 64, .n_layers = 1, .n_planes = 1, .row_bytes = {4}};
    return err ? err : fn(arg, &head, 2, 1);
}

TEST(a_scan_leaves_out_impossible_heads)
{
    struct tsr_tier *t;
    struct tsr_tier_desc env = {.size = sizeof env};
    struct tsr_tier_ops ops = null_tier;
    ops.scan = impossible_scan;
    CHECK_INT(tsri_tier_open(&t, &ops, &env), 0);
    int n = 0;
    CHECK_INT(tsri_tier_scan(t, count_entry, &n), 1);
    CHECK_INT(n, 1);
    tsri_tier_close(t);
}

TEST(the_fake_tier_fails_its_nth_call_and_counts)
{
    struct fake_tier_plan plan;
    fake_tier_plan_init_over(&plan, &mem_tier, NULL);
    struct tsr_tier *t;
    struct tsr_tier_desc env = {.size = sizeof env, .arg = &plan};
    CHECK_INT(tsri_tier_open(&t, &fake_tier, &env), 0);
    struct kv_entry e;
    kv_entry_init(&e, &small, 1);
    fake_tier_fail(&plan, FAKE_PUT, 2, 1, TSR_EFULL);
    const int want[] = {0, TSR_EFULL, TSR_EFULL, 0};
    for (size_t i = 0; i < 4; i++) {
        struct tsr_tier_io io = kv_entry_io(&e);
        CHECK_INT(tsri_tier_put(t, &io, 1), want[i] == 0);
        CHECK_INT(io.result, want[i]);
    }
    CHECK_INT(plan.n_puts, 4);
    atomic_store(&plan.layer_delay_us, 100);
    struct kv_entry room;
    kv_entry_init_room(&room, &e, 0);
    struct tsr_tier_io io = kv_entry_io(&room);
    uint64_t start = tsri_now_ns();
    CHECK_INT(tsri_tier_get(t, &io, 1), 1);
    CHECK(tsri_now_ns() - start >= 300000);
    room.head = io.head;
    CHECK(kv_entry_right(&room, &small, 1));
    kv_entry_fini(&room);
    kv_entry_fini(&e);
    tsri_tier_close(t);
    fake_tier_plan_fini(&plan);
}

int main(void)
{
    RUN(a_table_of_another_abi_or_with_holes_is_refused);
    RUN(a_table_of_abi_1_has_no_shingles);
    RUN(tiers_are_attached_to_a_configuration_in_order);
    RUN(an_impossible_shape_is_refused_and_nothing_is_done);
    RUN(a_result_that_is_not_set_is_a_failure);
    RUN(optional_members_have_their_defaults);
    RUN(a_scan_leaves_out_impossible_heads);
    RUN(the_fake_tier_fails_its_nth_call_and_counts);
    return test_end();
}
