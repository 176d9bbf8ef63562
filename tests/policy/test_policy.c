/* test_policy.c - the table of built-in policies agrees with the option that names them, and each
 * of them keeps the promises of policy.h, whatever order it prefers. */
#include "policy/policy.h"
#include "config/config.h"

#include "support/policy_kit.h"
#include "support/test.h"

#include <math.h>

#define IDS 64u

TEST(every_name_the_option_knows_is_a_policy)
{
    const struct tsri_option *o = tsri_option_find("policy");
    CHECK(o && o->names && o->names[0]);
    for (size_t i = 0; o->names[i]; i++) {
        const struct tsri_policy_ops *ops = tsri_policy_find(o->names[i]);
        CHECK(ops);
        CHECK_STR(ops->name, o->names[i]);
    }
}

TEST(an_unknown_name_finds_nothing)
{
    CHECK(tsri_policy_find("lru ") == NULL);
    CHECK(tsri_policy_find("LRU") == NULL);
    CHECK(tsri_policy_find("") == NULL);
}

/* ---- what every policy promises ---- */

/* The policy that is tested, and which ids are in it, may go, and have been asked for. */
static struct tsri_policy *p;
static uint64_t in, allowed, asked;

static void open_one(const struct tsri_policy_ops *ops)
{
    p = policy_open(ops, IDS, IDS);
    in = 0;
}

static void insert(uint32_t id, const struct tsri_policy_item *item)
{
    p->ops->insert(p, id, item);
    in |= (uint64_t)1 << id;
}

static void remove_one(uint32_t id)
{
    p->ops->remove(p, id);
    in &= ~((uint64_t)1 << id);
}

static int may(void *arg, uint32_t id)
{
    CHECK(arg == &allowed);
    CHECK(in >> id & 1);
    CHECK(!(asked >> id & 1)); /* at most once */
    asked |= (uint64_t)1 << id;
    return (int)(allowed >> id & 1);
}

/* A victim by the rules: in, allowed, asked for; none only when none is allowed. */
static uint32_t victim(void)
{
    asked = 0;
    uint32_t id = p->ops->victim(p, may, &allowed);
    if (id == TSRI_POLICY_NONE) {
        CHECK((in & allowed) == 0);
        CHECK(asked == in);
    } else {
        CHECK(in >> id & 1);
        CHECK(allowed >> id & 1);
        CHECK(asked >> id & 1);
    }
    return id;
}

static void check_order(void)
{
    uint32_t order[IDS];
    uint64_t listed = 0;
    if (!p->ops->order) return;
    size_t n = p->ops->order(p, order, IDS);
    for (size_t i = 0; i < n; i++) {
        CHECK(!(listed >> order[i] & 1));
        listed |= (uint64_t)1 << order[i];
    }
    CHECK(listed == in);
}

static void has_every_member(const struct tsri_policy_ops *ops)
{
    CHECK(ops->open && ops->close && ops->insert && ops->touch && ops->remove && ops->victim);
}

static void random_step(uint64_t *seed)
{
    uint32_t id = (uint32_t)(test_rand(seed) % IDS), ids[4], n = 0;
    struct tsri_policy_item item = {.hash = policy_hash(test_rand(seed) % 200),
                                    .units = 1 + (uint32_t)(test_rand(seed) % 40),
                                    .n_tokens = 1 + (uint32_t)(test_rand(seed) % 500),
                                    .parent = TSRI_POLICY_NONE,
                                    .cost_s = (float)(test_rand(seed) % 3)};
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t other = (uint32_t)(test_rand(seed) % IDS);
        if (in >> other & 1) ids[n++] = other;
    }
    switch (test_rand(seed) % 6) {
    case 0:
    case 1:
        if (!(in >> id & 1)) insert(id, &item);
        break;
    case 2:
        if (in >> id & 1) remove_one(id);
        break;
    case 3:
        p->ops->touch(p, ids, n);
        break;
    case 4:
        tsri_policy_refresh(p, ids, n);
        break;
    default:
        allowed = test_rand(seed) & test_rand(seed) & test_rand(seed);
        if (test_rand(seed) % 4 == 0) allowed = 0;
        if (test_rand(seed) % 4 == 0) allowed = (uint64_t)1 << id;
        id = victim();
        if (id != TSRI_POLICY_NONE && test_rand(seed) % 4) remove_one(id);
    }
}

static void keeps_the_rules_whatever_happens(const struct tsri_policy_ops *ops)
{
    uint64_t seed = 11;
    open_one(ops);
    for (uint32_t i = 0; i < 30000; i++) {
        random_step(&seed);
        check_order();
    }
    ops->close(p);
}

static void the_same_calls_give_the_same_victims(const struct tsri_policy_ops *ops)
{
    struct tsri_policy *both[2] = {policy_open(ops, IDS, IDS), policy_open(ops, IDS, IDS)};
    uint64_t seed = 17;
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t i = 0; i < 2; i++)
            policy_insert(both[i], id, id);
    for (uint32_t step = 0; step < 5000; step++) {
        uint32_t id = (uint32_t)(test_rand(&seed) % IDS);
        uint64_t key = test_rand(&seed) % 300;
        uint32_t gone[2];
        for (uint32_t i = 0; i < 2; i++) {
            ops->touch(both[i], &id, 1);
            gone[i] = policy_evict(both[i]);
            policy_insert(both[i], gone[i], key);
        }
        CHECK_INT(gone[0], gone[1]);
    }
    ops->close(both[0]);
    ops->close(both[1]);
}

static void all_go_when_all_must(const struct tsri_policy_ops *ops)
{
    open_one(ops);
    for (uint32_t id = 0; id < IDS; id++) {
        struct tsri_policy_item item = {.hash = policy_hash(id), .units = 1, .n_tokens = 1};
        insert(id, &item);
    }
    allowed = UINT64_MAX;
    for (uint32_t i = 0; i < IDS; i++)
        remove_one(victim());
    CHECK_INT(victim(), TSRI_POLICY_NONE);
    CHECK(in == 0);
    check_order();
    ops->close(p);
}

/* Blocks come in root first; the cache tells the order when all are there. */
static void a_chain_goes_leaf_first(const struct tsri_policy_ops *ops)
{
    uint32_t leaf_first[8];
    open_one(ops);
    for (uint32_t id = 0; id < 8; id++) {
        struct tsri_policy_item item = {.hash = policy_hash(id),
                                        .units = 1,
                                        .n_tokens = 64,
                                        .parent = id ? id - 1 : TSRI_POLICY_NONE};
        insert(id, &item);
        leaf_first[7 - id] = id;
    }
    tsri_policy_refresh(p, leaf_first, 8);
    allowed = UINT64_MAX;
    for (uint32_t i = 0; i < 8; i++) {
        CHECK_INT(victim(), 7 - i);
        remove_one(7 - i);
    }
    ops->close(p);
}

static void who_is_used_often_outlives_a_few_newcomers(const struct tsri_policy_ops *ops)
{
    open_one(ops);
    for (uint32_t id = 0; id < IDS; id++)
        policy_insert(p, id, id);
    for (uint64_t round = 0; round < 200; round++) {
        for (uint32_t id = 0; id < 8; id++)
            ops->touch(p, (uint32_t[]){id % 4}, 1);
        uint32_t gone = policy_evict(p);
        CHECK(gone >= 4);
        policy_insert(p, gone, 1000 + round);
    }
    ops->close(p);
}

static void odd_items_are_taken_as_they_come(const struct tsri_policy_ops *ops)
{
    static const float costs[] = {0, -1, NAN, INFINITY, 1e-30f, 1e30f};
    static const uint32_t units[] = {0, 1, UINT32_MAX};
    open_one(ops);
    uint32_t id = 0;
    for (uint32_t c = 0; c < TSRI_COUNT(costs); c++)
        for (uint32_t u = 0; u < TSRI_COUNT(units); u++, id++) {
            struct tsri_policy_item item = {.hash = id ? policy_hash(id) : 0,
                                            .units = units[u],
                                            .n_tokens = units[(u + c) % 3],
                                            .parent = TSRI_POLICY_NONE,
                                            .cost_s = costs[c]};
            insert(id, &item);
            ops->touch(p, &id, 1);
        }
    allowed = UINT64_MAX;
    for (uint32_t i = 0; i < id; i++)
        remove_one(victim());
    CHECK_INT(victim(), TSRI_POLICY_NONE);
    ops->close(p);
}

/* Lower tiers do not know their capacity in units. */
static void no_capacity_is_no_harm(const struct tsri_policy_ops *ops)
{
    struct tsri_policy *q = policy_open(ops, IDS, 0);
    CHECK_INT(policy_evict(q), TSRI_POLICY_NONE);
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t id = (uint32_t)(i % IDS);
        if (i >= IDS) id = policy_evict(q);
        CHECK(id < IDS);
        policy_insert(q, id, i % 100);
    }
    ops->close(q);
}

static void each(void (*promise)(const struct tsri_policy_ops *ops))
{
    const struct tsri_option *o = tsri_option_find("policy");
    for (size_t i = 0; o->names[i]; i++) {
        const struct tsri_policy_ops *ops = tsri_policy_find(o->names[i]);
        CHECK(ops);
        promise(ops);
    }
}

#define PROMISE(name) \
    TEST(every_policy_##name) \
    { \
        each(name); \
    }
PROMISE(has_every_member)
PROMISE(keeps_the_rules_whatever_happens)
PROMISE(the_same_calls_give_the_same_victims)
PROMISE(all_go_when_all_must)
PROMISE(a_chain_goes_leaf_first)
PROMISE(who_is_used_often_outlives_a_few_newcomers)
PROMISE(odd_items_are_taken_as_they_come)
PROMISE(no_capacity_is_no_harm)

int main(void)
{
    RUN(every_name_the_option_knows_is_a_policy);
    RUN(an_unknown_name_finds_nothing);
    RUN(every_policy_has_every_member);
    RUN(every_policy_keeps_the_rules_whatever_happens);
    RUN(every_policy_the_same_calls_give_the_same_victims);
    RUN(every_policy_all_go_when_all_must);
    RUN(every_policy_a_chain_goes_leaf_first);
    RUN(every_policy_who_is_used_often_outlives_a_few_newcomers);
    RUN(every_policy_odd_items_are_taken_as_they_come);
    RUN(every_policy_no_capacity_is_no_harm);
    return test_end();
}
