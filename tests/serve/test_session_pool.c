/* Sessions are kept for the next task, within a limit of slots. */
#include "serve/task.h"
#include "support/model_kit.h"
#include "support/test.h"

#define MODEL "llama layers=1 heads=1 kv_heads=1 head_dim=8 ff=8 vocab=32 context=2000"

TEST(a_session_that_is_given_back_is_used_again)
{
    struct model_kit m;
    struct tsri_session_pool p;
    struct tsr_session *a, *b, *c;
    model_kit_open(&m, MODEL, TSR_DTYPE_F16, 64);
    CHECK_INT(tsri_session_pool_init(&p, m.model, 4096, 3), 0);
    CHECK_INT(tsri_session_pool_take(&p, 100, &a), 0);
    CHECK_INT(tsri_session_pool_take(&p, 1000, &b), 0);
    CHECK_INT(tsri_session_pool_slots(&p), 512 + 1024);
    tsri_session_pool_give(&p, a, false);
    tsri_session_pool_give(&p, b, false);
    CHECK_INT(tsri_session_pool_take(&p, 512, &c), 0);
    CHECK(c == a);
    CHECK_INT(tsri_session_pool_take(&p, 300, &c), 0);
    CHECK(c == b);
    tsri_session_pool_fini(&p);
    model_kit_close(&m);
}

TEST(spare_sessions_make_room_and_taken_ones_do_not)
{
    struct model_kit m;
    struct tsri_session_pool p;
    struct tsr_session *a, *b, *c;
    model_kit_open(&m, MODEL, TSR_DTYPE_F16, 64);
    CHECK_INT(tsri_session_pool_init(&p, m.model, 2048, 3), 0);
    CHECK_INT(tsri_session_pool_take(&p, 512, &a), 0);
    CHECK_INT(tsri_session_pool_take(&p, 1024, &b), 0);
    CHECK(tsri_session_pool_fits(&p, 512));
    CHECK(!tsri_session_pool_fits(&p, 513));
    CHECK_INT(tsri_session_pool_take(&p, 513, &c), TSR_EAGAIN);
    tsri_session_pool_give(&p, a, false);
    CHECK(tsri_session_pool_fits(&p, 1024));
    CHECK_INT(tsri_session_pool_take(&p, 1024, &c), 0);
    CHECK_INT(tsri_session_pool_slots(&p), 2048);
    CHECK(!tsri_session_pool_fits(&p, 1));
    tsri_session_pool_give(&p, b, false);
    tsri_session_pool_give(&p, c, false);
    tsri_session_pool_give(&p, NULL, false);
    /* No session has more slots than the context. */
    CHECK_INT(tsri_session_pool_round(&p, 1900), 2000);
    CHECK_INT(tsri_session_pool_take(&p, 1900, &a), 0);
    CHECK_INT(tsri_session_pool_slots(&p), 2000);
    tsri_session_pool_fini(&p);
    model_kit_close(&m);
}

int main(void)
{
    RUN(a_session_that_is_given_back_is_used_again);
    RUN(spare_sessions_make_room_and_taken_ones_do_not);
    return test_end();
}
