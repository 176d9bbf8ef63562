/* test_s3fifo.c - who comes once leaves first, who was used stays, and who comes back is known. */
#include "policy/policy.h"

#include "support/policy_kit.h"
#include "support/test.h"

#define IDS 100u

TEST(who_came_once_leaves_before_who_was_used_twice)
{
    struct tsri_policy *p = policy_open(&tsri_policy_s3fifo, IDS, IDS);
    for (uint32_t id = 0; id < IDS; id++)
        policy_insert(p, id, id);
    for (uint32_t id = 0; id < 10; id++) {
        p->ops->touch(p, &id, 1);
        p->ops->touch(p, &id, 1);
    }
    for (uint32_t i = 0; i < IDS - 20; i++)
        CHECK_INT(policy_evict(p), 10 + i);
    p->ops->close(p);
}

TEST(one_use_is_not_enough)
{
    struct tsri_policy *p = policy_open(&tsri_policy_s3fifo, IDS, IDS);
    for (uint32_t id = 0; id < IDS; id++)
        policy_insert(p, id, id);
    p->ops->touch(p, (uint32_t[]){0}, 1);
    CHECK_INT(policy_evict(p), 0);
    p->ops->close(p);
}

/* Fills the main queue: entries used twice, pushed out of the small queue by a scan. */
static void fill_main(struct tsri_policy *p, uint32_t n)
{
    for (uint32_t id = 0; id < n; id++) {
        policy_insert(p, id, id);
        p->ops->touch(p, &id, 1);
        p->ops->touch(p, &id, 1);
    }
    for (uint32_t id = n; id < IDS; id++)
        policy_insert(p, id, id);
    CHECK_INT(policy_evict(p), n);
}

TEST(who_comes_back_soon_goes_to_the_main_queue)
{
    struct tsri_policy *p = policy_open(&tsri_policy_s3fifo, IDS, IDS);
    fill_main(p, 50);
    policy_insert(p, 50, 50); /* the key that has just gone */
    /* The rest of the scan goes first, then a newcomer; the one that came back stays. */
    for (uint32_t i = 51; i < IDS; i++)
        CHECK(policy_evict(p) != 50);
    p->ops->close(p);
}

TEST(who_comes_back_late_is_a_newcomer)
{
    struct tsri_policy *p = policy_open(&tsri_policy_s3fifo, IDS, IDS);
    fill_main(p, 50);
    /* More leave the small queue than there are in the main one: the first is forgotten. */
    for (uint32_t i = 0; i < 400; i++) {
        policy_insert(p, 50, 1000 + i);
        uint32_t gone = policy_evict(p);
        if (gone != 50) policy_insert(p, gone, 2000 + i), p->ops->remove(p, 50);
    }
    policy_insert(p, 50, 50);
    uint32_t order[IDS];
    size_t n = p->ops->order(p, order, IDS), at = 0;
    while (order[at] != 50)
        at++;
    CHECK(at < n - 50); /* in front of the main queue */
    p->ops->close(p);
}

TEST(the_small_queue_has_a_tenth_in_units)
{
    struct tsri_policy *p = policy_open(&tsri_policy_s3fifo, IDS, IDS);
    fill_main(p, 50);
    for (uint32_t i = 0; i < 44; i++)
        CHECK_INT(policy_evict(p), 51 + i);
    /* 50 units in the main queue, 5 in the small one: that is within its tenth. */
    CHECK(policy_evict(p) < 50);
    struct tsri_policy_item item = {.units = 5};
    for (uint32_t id = 50; id < 53; id++) {
        item.hash = policy_hash(900 + id);
        p->ops->insert(p, id, &item);
    }
    /* Now it has more, in few entries, and gives until it is within it again. */
    for (uint32_t i = 0; i < 5; i++)
        CHECK_INT(policy_evict(p), 95 + i);
    CHECK_INT(policy_evict(p), 50);
    CHECK_INT(policy_evict(p), 51);
    CHECK(policy_evict(p) < 50);
    p->ops->close(p);
}

int main(void)
{
    RUN(who_came_once_leaves_before_who_was_used_twice);
    RUN(one_use_is_not_enough);
    RUN(who_comes_back_soon_goes_to_the_main_queue);
    RUN(who_comes_back_late_is_a_newcomer);
    RUN(the_small_queue_has_a_tenth_in_units);
    return test_end();
}
