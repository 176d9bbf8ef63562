/* What was lost, and who knows of it: every thread is told of every loss, once. */
#include "cache/cache.h"
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
    CHECK_INT(another(true), 0);
    tsri_losses_join(&losses);
    CHECK_INT(tsri_losses_tell(&losses), 0);
    tsri_losses_add(&losses, 1);
    tsri_losses_join(&losses); /* it is in already */
    CHECK_INT(tsri_losses_tell(&losses), 1);
}

/* More threads than places: some are told again, none too little. */
TEST(a_thread_without_a_place_is_told_again_rather_than_not)
{
    tsri_losses_add(&losses, 1);
    CHECK_INT(tsri_losses_tell(&losses), 1);
    for (int i = 0; i < 600; i++)
        CHECK(another(false) == 1000);
    uint64_t again = tsri_losses_tell(&losses);
    CHECK(again == 0 || again == 1);
    tsri_losses_add(&losses, 1);
    CHECK(tsri_losses_tell(&losses) >= 1);
}

#define RUN_FRESH(promise) \
    do { \
        tsri_losses_init(&losses); \
        RUN(promise); \
        tsri_losses_fini(&losses); \
    } while (0)

int main(void)
{
    RUN_FRESH(every_thread_is_told_of_every_loss_once);
    RUN_FRESH(a_thread_that_joins_later_is_told_of_what_comes_after);
    RUN_FRESH(a_thread_without_a_place_is_told_again_rather_than_not);
    return test_end();
}
