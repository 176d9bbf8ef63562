/* What was lost, and who knows of it: every thread is told of every loss, once. */
#include "cache/core.h"
#include "support/test.h"

static struct tsri_losses losses;

static void *tell(void *arg)
{
    if (arg) tsri_losses_join(&losses);
    uint64_t first = tsri_losses_tell(&losses);
    return (void *)(uintptr_t)(first * 1000 + tsri_losses_tell(&losses));
}

/* What another thread is told, times 1000, and what the second time. */
static uint64_t another(bool joins)
{
    pthread_t thread;
    void *told = NULL;
    CHECK_INT(pthread_create(&thread, NULL, tell, joins ? &losses : NULL), 0);
    pthread_join(thread, &told);
    return (uint64_t)(uintptr_t)told;
}

TEST(every_thread_is_told_of_every_loss_once)
{
    CHECK_INT(tsri_losses_tell(&losses), 0);
    tsri_losses_add(&losses, 3);
    CHECK_INT(tsri_losses_tell(&losses), 3);
    CHECK_INT(tsri_losses_tell(&losses), 0);
    CHECK_INT(another(false), 3000);
    tsri_losses_add(&losses, 2);
    CHECK_INT(another(false), 5000);
    CHECK_INT(tsri_losses_tell(&losses), 2);
    CHECK_INT(tsri_losses_tell(&losses), 0);
    CHECK_INT(tsri_losses_count(&losses), 5);
}

TEST(a_thread_that_joins_later_is_told_of_what_comes_after)
{
    tsri_losses_add(&losses, 3);
    CHECK_INT(another(false), 3000);
    CHECK_INT(another(true), 0);
    tsri_losses_join(&losses);
    CHECK_INT(tsri_losses_tell(&losses), 0);
    tsri_losses_add(&losses, 1);
    tsri_losses_join(&losses); /* it is in already */
    CHECK_INT(tsri_losses_tell(&losses), 1);
}

/* Threads that stored may have ended: whoever flushes then hears of what they lost. */
TEST(a_loss_that_no_thread_was_told_of_is_told_to_one_that_joins_later)
{
    tsri_losses_add(&losses, 3);
    tsri_losses_join(&losses);
    CHECK_INT(another(true), 3000);
    CHECK_INT(another(true), 0);
    CHECK_INT(tsri_losses_tell(&losses), 3); /* it joined before that other thread was told */
    CHECK_INT(tsri_losses_tell(&losses), 0);
}

/* Its place is from before the loss: the entries may be its own. */
TEST(a_thread_that_joined_before_a_loss_is_told_though_it_joins_again)
{
    tsri_losses_join(&losses);
    tsri_losses_add(&losses, 3);
    tsri_losses_join(&losses);
    CHECK_INT(tsri_losses_tell(&losses), 3);
    CHECK_INT(tsri_losses_tell(&losses), 0);
}

TEST(any_number_of_threads_have_their_place)
{
    tsri_losses_join(&losses);
    tsri_losses_add(&losses, 1);
    CHECK_INT(another(true), 1000);
    for (int i = 0; i < 600; i++)
        CHECK(another(i % 2 == 0) == (i % 2 ? 1000 : 0));
    tsri_losses_join(&losses);
    CHECK_INT(tsri_losses_tell(&losses), 1);
    CHECK_INT(tsri_losses_tell(&losses), 0);
}

/* More caches than a thread remembers: it is told again of some, of none too little. */
TEST(what_a_thread_has_forgotten_it_is_told_again_rather_than_not)
{
    enum { MANY = 40 };
    static struct tsri_losses many[MANY];
    for (int i = 0; i < MANY; i++) {
        tsri_losses_init(&many[i]);
        tsri_losses_join(&many[i]);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MANY; i++)
            tsri_losses_add(&many[i], 2);
        for (int i = 0; i < MANY; i++) {
            tsri_losses_join(&many[i]);
            CHECK(tsri_losses_tell(&many[i]) >= 2);
        }
    }
    CHECK_INT(tsri_losses_tell(&many[MANY - 1]), 0);
    /* Of one that is new it has forgotten nothing. */
    tsri_losses_init(&many[0]);
    tsri_losses_add(&many[0], 1);
    CHECK_INT(tsri_losses_tell(&many[0]), 1);
    CHECK_INT(tsri_losses_tell(&many[0]), 0);
}

#define RUN_FRESH(promise) \
    do { \
        tsri_losses_init(&losses); \
        RUN(promise); \
    } while (0)

int main(void)
{
    RUN_FRESH(every_thread_is_told_of_every_loss_once);
    RUN_FRESH(a_thread_that_joins_later_is_told_of_what_comes_after);
    RUN_FRESH(a_loss_that_no_thread_was_told_of_is_told_to_one_that_joins_later);
    RUN_FRESH(a_thread_that_joined_before_a_loss_is_told_though_it_joins_again);
    RUN_FRESH(any_number_of_threads_have_their_place);
    RUN_FRESH(what_a_thread_has_forgotten_it_is_told_again_rather_than_not);
    return test_end();
}
