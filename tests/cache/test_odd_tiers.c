/* Tiers that do not keep to tier.h: that hand out another entry than they were asked for, leave out
 * or mix up the callbacks of a get, claim what they have not done, or call nothing at all. The
 * cache must not return a byte that is not proven, nor leave a caller's memory unwritten and call
 * it loaded; that a tier is broken costs misses. */
#include "support/cache_kit.h"
#include "support/fake_tier.h"
#include "support/test.h"

struct below {
    struct kit k;
    struct fake_tier_plan plan;
    uint32_t *tokens;
    struct tsr_prompt prompt;
    struct tsr_extra salt;
};

/* A chain of two blocks with a salt, which is in the tier only. */
static void below_open(struct below *b, const struct tsr_tier_ops *ops)
{
    fake_tier_plan_init_over(&b->plan, ops, &b->plan.mem);
    kit_open_tiers(&b->k, NULL, &b->plan, 1);
    b->tokens = kit_tokens(1, 32);
    b->salt = (struct tsr_extra){.kind = TSR_EXTRA_SALT, .bytes = 4, .data = "salt"};
    b->prompt = kit_prefix_prompt(b->tokens, 32);
    b->prompt.extra = &b->salt;
    b->prompt.n_extra = 1;
    struct tsr_store_desc s = {.kind = TSR_KIND_PREFIX, .tokens = b->tokens, .n_tokens = 32};
    s.extra = &b->salt;
    s.n_extra = 1;
    CHECK_INT(kit_store(&b->k, &s), 32);
}

static void sink(struct below *b)
{
    CHECK_INT(tsr_cache_flush(b->k.cache), 0);
    CHECK_INT(kit_evict_all(&b->k), 2);
}

static bool below_end(struct below *b)
{
    free(b->tokens);
    bool ended = kit_end(&b->k);
    fake_tier_plan_fini(&b->plan);
    return ended;
}

/* ---- another entry than the one asked for ---- */

enum lie {
    LIE_TOKEN,
    LIE_DIGEST,
    LIE_EXTRA,
    LIE_KIND,
    LIE_SPACE,
    LIE_N_EXTRA,
    LIE_N_TOKENS,
    N_LIES
};
static int lie;
static int (*true_head_done)(struct tsr_tier_io *io);

static int lying_head(struct tsr_tier_io *io)
{
    switch (lie) {
    case LIE_TOKEN:
        io->tokens[3] ^= 1;
        break;
    case LIE_DIGEST:
        io->head.digest[31] ^= 1;
        break;
    case LIE_EXTRA:
        io->extra[0] ^= 1;
        break;
    case LIE_KIND:
        io->head.kind ^= 1;
        break;
    case LIE_SPACE:
        io->head.space[0] ^= 1;
        break;
    case LIE_N_EXTRA:
        io->head.extra_bytes--;
        break;
    case LIE_N_TOKENS:
        io->head.n_tokens = 1 << 20;
        break;
    default:
        break;
    }
    return true_head_done(io);
}

static int lying_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        true_head_done = io[i].head_done;
        io[i].head_done = lying_head;
    }
    return mem_tier.get(tier, io, n);
}

TEST(an_entry_that_is_not_what_its_key_says_is_dropped)
{
    struct tsr_tier_ops lying_tier = mem_tier;
    lying_tier.get = lying_get;
    for (int i = 0; i < N_LIES; i++) {
        struct below b;
        below_open(&b, &lying_tier);
        lie = N_LIES;
        sink(&b);
        CHECK_INT(kit_load_and_check(&b.k, &b.prompt), 32); /* as long as it tells the truth */
        sink(&b);
        lie = i;
        CHECK_INT(kit_load_and_check(&b.k, &b.prompt), 0);
        CHECK_INT(kit_stats(&b.k).corrupt, 1);
        CHECK_INT(kit_stats(&b.k).entries, 0);
        CHECK(below_end(&b));
    }
}

/* ---- callbacks left out or mixed up ---- */

enum manner {
    NO_HEAD,
    NO_LAYERS,
    NO_CALLBACKS,
    FIRST_LAYER_ONLY,
    BACKWARDS,
    TOO_MANY,
    TWICE,
    N_MANNERS
};
static int manner;

/* Gets everything into place, then calls back in its own manner. */
static int rude_get(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct tsr_tier_io quiet = io[i];
        quiet.head_done = NULL;
        quiet.layer_done = NULL;
        mem_tier.get(tier, &quiet, 1);
        io[i].head = quiet.head;
        io[i].result = quiet.result;
        if (quiet.result < 0) continue;
        if (manner != NO_HEAD && manner != NO_CALLBACKS && io[i].head_done(&io[i]) < 0) {
            io[i].result = TSR_ECORRUPT;
            continue;
        }
        uint32_t n_layers = io[i].head.n_layers;
        uint32_t n_calls = manner == NO_LAYERS || manner == NO_CALLBACKS ? 0
                           : manner == FIRST_LAYER_ONLY                  ? 1
                           : manner == TOO_MANY                          ? n_layers + 5
                           : manner == TWICE                             ? n_layers * 2
                                                                         : n_layers;
        for (uint32_t l = 0; l < n_calls; l++)
            io[i].layer_done(&io[i], manner == BACKWARDS ? n_calls - 1 - l
                                     : manner == TWICE   ? l / 2
                                                         : l);
    }
    return (int)n;
}

TEST(a_get_with_callbacks_missing_or_mixed_up_loads_right_or_not_at_all)
{
    struct tsr_tier_ops rude_tier = mem_tier;
    rude_tier.get = rude_get;
    for (manner = 0; manner < N_MANNERS; manner++) {
        struct below b;
        below_open(&b, &rude_tier);
        sink(&b);
        int loaded = kit_load_and_check(&b.k, &b.prompt); /* every byte */
        CHECK_INT(loaded, manner == NO_HEAD || manner == NO_CALLBACKS ? 0 : 32);
        if (loaded) CHECK_INT(kit_load_and_check(&b.k, &b.prompt), 32);

        /* The same for one who waits for layers. */
        if (loaded) {
            sink(&b);
            struct kit_hits hits;
            CHECK_INT(kit_lookup(&b.k, &b.prompt, 0, &hits), 32);
            static uint8_t kv[2][16 * 256];
            struct tsr_load_desc loads[2];
            for (int i = 0; i < 2; i++)
                loads[i] = (struct tsr_load_desc){.size = sizeof loads[i],
                                                  .space = b.k.space,
                                                  .match = &hits.matches[i],
                                                  .prompt = &b.prompt,
                                                  .view = {.data = kv[i], .bytes = sizeof kv[i]}};
            memset(kv, 0xA5, sizeof kv);
            struct tsr_op *op;
            CHECK_INT(tsr_client_load_start(&op, b.k.client, loads, 2, NULL, NULL), 0);
            for (uint32_t l = 0; l < 2; l++) {
                CHECK_INT(tsr_op_wait_layer(op, l, -1), 0);
                for (uint32_t i = 0; i < 2; i++) {
                    struct tsr_view one = {.data = kv[i] + l * 16 * 128, .bytes = 16 * 128};
                    CHECK(kit_right(b.k.space, kit_match_seen(b.k.space, &b.prompt, loads[i].match),
                                    b.tokens + i * 16, 16, l, 1, &one));
                }
            }
            CHECK_INT(tsr_op_wait(op, -1), 2);
            tsr_op_close(op);
        }
        CHECK(below_end(&b));
    }
}

/* ---- claims ---- */

static int claiming(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier, (void)io;
    return (int)n; /* all done, it says, and has set no result */
}

TEST(a_result_that_was_not_set_is_a_failure)
{
    struct tsr_tier_ops claims_put = mem_tier, claims_get = mem_tier;
    claims_put.put = claiming;
    claims_get.get = claiming;
    struct below b;
    below_open(&b, &claims_put);
    CHECK_INT(tsr_cache_flush(b.k.cache), TSR_EIO);
    CHECK_INT(kit_stats(&b.k).tier_entries[1], 0);
    CHECK_INT(kit_load_and_check(&b.k, &b.prompt), 32);
    CHECK(below_end(&b));
    below_open(&b, &claims_get);
    sink(&b);
    CHECK_INT(kit_load_and_check(&b.k, &b.prompt), 0);
    CHECK(below_end(&b));
}

static int forgetful_put(struct tsr_tier *tier, struct tsr_tier_io *io, size_t n)
{
    (void)tier;
    for (size_t i = 0; i < n; i++)
        io[i].result = 0; /* and nothing is kept */
    return (int)n;
}

TEST(a_tier_that_keeps_nothing_costs_misses)
{
    struct tsr_tier_ops forgetful = mem_tier;
    forgetful.put = forgetful_put;
    struct below b;
    below_open(&b, &forgetful);
    sink(&b);
    CHECK_INT(kit_find_prefix(&b.k, b.tokens, 32), 0); /* without the salt */
    struct kit_hits hits;
    CHECK_INT(kit_lookup(&b.k, &b.prompt, 0, &hits), 32);
    CHECK_INT(kit_load(&b.k, &b.prompt, &hits, 1), TSR_ENOENT);
    CHECK_INT(kit_load(&b.k, &b.prompt, &hits, 0), TSR_ENOENT);
    CHECK_INT(kit_stats(&b.k).entries, 0);
    CHECK(below_end(&b));
}

/* A tier with the four functions it must have and no others. */
TEST(what_is_optional_may_be_missing)
{
    struct tsr_tier_ops plain = mem_tier;
    plain.scan = NULL;
    plain.contains = NULL;
    plain.flush = NULL;
    plain.stats = NULL;
    struct tsr_config *cfg = kit_config(NULL);
    struct kit k;
    CHECK_INT(tsr_tier_attach(cfg, &plain, NULL), 0);
    kit_open_config(&k, cfg);
    tsr_config_close(cfg);
    uint32_t *tokens = kit_tokens(1, 48);
    struct tsr_prompt prompt = kit_prefix_prompt(tokens, 48);
    CHECK_INT(kit_store_prefix(&k, tokens, 48), 48);
    CHECK_INT(tsr_cache_flush(k.cache), 0);
    CHECK_INT(kit_evict_all(&k), 3);
    CHECK_INT(kit_load_and_check(&k, &prompt), 48);
    CHECK_INT(kit_stats(&k).tier_entries[1], 3);
    free(tokens);
    CHECK(kit_end(&k));
}

int main(void)
{
    RUN(an_entry_that_is_not_what_its_key_says_is_dropped);
    RUN(a_get_with_callbacks_missing_or_mixed_up_loads_right_or_not_at_all);
    RUN(a_result_that_was_not_set_is_a_failure);
    RUN(a_tier_that_keeps_nothing_costs_misses);
    RUN(what_is_optional_may_be_missing);
    return test_end();
}
