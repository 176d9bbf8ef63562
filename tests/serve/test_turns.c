/* Time is shared between clients, and nobody saves it up. */
#include "serve/task.h"
#include "support/test.h"

TEST(a_new_client_begins_with_the_least_time)
{
    struct tsri_turns t;
    CHECK_INT(tsri_turns_init(&t, 4), 0);
    struct tsri_client_turn *a = tsri_turns_enter(&t, 7), *b = tsri_turns_enter(&t, 8);
    CHECK_INT(a->used_ns, 0);
    a->used_ns = 500;
    b->used_ns = 300;
    struct tsri_client_turn *c = tsri_turns_enter(&t, 9);
    CHECK_INT(c->used_ns, 300);
    tsri_turns_fini(&t);
}

TEST(an_entry_stays_until_its_last_task_leaves)
{
    struct tsri_turns t;
    CHECK_INT(tsri_turns_init(&t, 3), 0);
    struct tsri_client_turn *a = tsri_turns_enter(&t, 7);
    CHECK(tsri_turns_enter(&t, 7) == a);
    a->used_ns = 100;
    tsri_turns_leave(a);
    CHECK(tsri_turns_enter(&t, 7) == a);
    CHECK_INT(a->used_ns, 100);
    tsri_turns_leave(a);
    tsri_turns_leave(a);
    CHECK_INT(tsri_turns_enter(&t, 7)->used_ns, 0);
    tsri_turns_fini(&t);
}

int main(void)
{
    RUN(a_new_client_begins_with_the_least_time);
    RUN(an_entry_stays_until_its_last_task_leaves);
    return test_end();
}
