/* test_lru.c - the list goes in the order of last use, held against a plain array; what may not go
 * is passed over and counts as used. */
#include "policy/policy.h"

#include "support/test.h"

#define IDS 64u

/* Oldest first. */
struct naive {
    uint32_t ids[IDS], n;
};

static void naive_remove(struct naive *m, uint32_t id)
{
    uint32_t at = 0;
    while (m->ids[at] != id)
        at++;
    memmove(m->ids + at, m->ids + at + 1, (m->n - at - 1) * sizeof m->ids[0]);
    m->n--;
}

static void naive_add(struct naive *m, uint32_t id)
{
    m->ids[m->n++] = id;
}

static uint64_t allowed; /* by id */
static uint32_t n_asked;

static int may(void *arg, uint32_t id)
{
    CHECK(arg == &allowed);
    n_asked++;
    return (int)(allowed >> id & 1);
}

static uint32_t naive_victim(struct naive *m)
{
    for (uint32_t i = 0, n = m->n; i < n; i++) {
        uint32_t id = m->ids[0];
        if (allowed >> id & 1) return id;
        naive_remove(m, id);
        naive_add(m, id);
    }
    return TSRI_POLICY_NONE;
}

static struct tsri_policy *open_lru(void)
{
    struct tsri_policy *p;
    struct tsri_policy_env env = {.ids_max = IDS};
    CHECK_INT(tsri_policy_lru.open(&p, &env), 0);
    return p;
}

static void check_order(struct tsri_policy *p, const struct naive *m)
{
    uint32_t order[IDS];
    CHECK_INT(p->ops->order(p, order, IDS), m->n);
    CHECK(memcmp(order, m->ids, m->n * sizeof order[0]) == 0);
}

TEST(it_does_what_a_plain_list_does)
{
    struct tsri_policy *p = open_lru();
    struct naive m = {.n = 0};
    uint64_t in = 0, seed = 3;
    struct tsri_policy_item item = {.units = 1};
    for (uint32_t step = 0; step < 50000; step++) {
        uint32_t id = (uint32_t)(test_rand(&seed) % IDS), ids[5], n = 0;
        switch (test_rand(&seed) % 4) {
        case 0:
            if (in >> id & 1) break;
            p->ops->insert(p, id, &item);
            naive_add(&m, id);
            in |= (uint64_t)1 << id;
            break;
        case 1:
            if (!(in >> id & 1)) break;
            p->ops->remove(p, id);
            naive_remove(&m, id);
            in &= ~((uint64_t)1 << id);
            break;
        case 2:
            for (uint32_t i = 0; i < 5; i++) {
                uint32_t other = (uint32_t)(test_rand(&seed) % IDS);
                if (in >> other & 1) ids[n++] = other;
            }
            p->ops->touch(p, ids, n);
            for (uint32_t i = 0; i < n; i++) {
                naive_remove(&m, ids[i]);
                naive_add(&m, ids[i]);
            }
            break;
        default:
            allowed = test_rand(&seed) & test_rand(&seed) & test_rand(&seed);
            if (test_rand(&seed) % 8 == 0) allowed = 0;
            n_asked = 0;
            CHECK_INT(p->ops->victim(p, may, &allowed), naive_victim(&m));
            CHECK(n_asked <= m.n);
        }
        check_order(p, &m);
    }
    p->ops->close(p);
}

TEST(the_oldest_goes_first_and_stays_until_it_is_removed)
{
    struct tsri_policy *p = open_lru();
    struct tsri_policy_item item = {.units = 1};
    for (uint32_t id = 0; id < 4; id++)
        p->ops->insert(p, id, &item);
    allowed = UINT64_MAX;
    CHECK_INT(p->ops->victim(p, may, &allowed), 0);
    CHECK_INT(p->ops->victim(p, may, &allowed), 0);
    p->ops->touch(p, (uint32_t[]){0, 1}, 2);
    CHECK_INT(p->ops->victim(p, may, &allowed), 2);
    p->ops->remove(p, 2);
    CHECK_INT(p->ops->victim(p, may, &allowed), 3);
    p->ops->close(p);
}

TEST(asking_in_vain_changes_no_order)
{
    struct tsri_policy *p = open_lru();
    struct tsri_policy_item item = {.units = 1};
    struct naive m = {.n = 0};
    for (uint32_t id = 0; id < IDS; id++) {
        p->ops->insert(p, id, &item);
        naive_add(&m, id);
    }
    allowed = 0;
    n_asked = 0;
    CHECK_INT(p->ops->victim(p, may, &allowed), TSRI_POLICY_NONE);
    CHECK_INT(n_asked, IDS);
    check_order(p, &m);
    p->ops->close(p);
}

TEST(an_empty_list_has_no_victim_and_no_order)
{
    struct tsri_policy *p = open_lru();
    struct tsri_policy_item item = {.units = 1};
    uint32_t order[1];
    allowed = UINT64_MAX;
    CHECK_INT(p->ops->victim(p, may, &allowed), TSRI_POLICY_NONE);
    CHECK_INT(p->ops->order(p, order, 1), 0);
    p->ops->insert(p, 9, &item);
    p->ops->remove(p, 9);
    CHECK_INT(p->ops->victim(p, may, &allowed), TSRI_POLICY_NONE);
    p->ops->close(p);
}

TEST(order_writes_no_more_than_asked_for)
{
    struct tsri_policy *p = open_lru();
    struct tsri_policy_item item = {.units = 1};
    for (uint32_t id = 0; id < 10; id++)
        p->ops->insert(p, id, &item);
    uint32_t order[4] = {77, 77, 77, 77};
    CHECK_INT(p->ops->order(p, order, 3), 3);
    CHECK_INT(order[2], 2);
    CHECK_INT(order[3], 77);
    p->ops->close(p);
}

int main(void)
{
    RUN(it_does_what_a_plain_list_does);
    RUN(the_oldest_goes_first_and_stays_until_it_is_removed);
    RUN(asking_in_vain_changes_no_order);
    RUN(an_empty_list_has_no_victim_and_no_order);
    RUN(order_writes_no_more_than_asked_for);
    return test_end();
}
