/* test_roster.c - sessions by number: an event of one that is gone means nothing, also when its row
 * has another session by then. */
#include "daemon/daemon.h"

#include "support/test.h"

enum { N = 5 };

TEST(an_event_names_its_session_and_what_it_is_about)
{
    struct tsri_roster r;
    struct tsri_session *x = tsri_alloc(N, sizeof *x);
    CHECK_INT(tsri_roster_init(&r, N), 0);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t row;
        CHECK(tsri_roster_take(&r, &x[i], &row));
        uint64_t socket = tsri_roster_event(&r, row, TSRI_WATCH_SOCKET);
        uint64_t process = tsri_roster_event(&r, row, TSRI_WATCH_PROCESS);
        CHECK(tsri_roster_at(&r, socket) == &x[i] && tsri_roster_at(&r, process) == &x[i]);
        CHECK_INT(tsri_event_watch(socket), TSRI_WATCH_SOCKET);
        CHECK_INT(tsri_event_watch(process), TSRI_WATCH_PROCESS);
    }
    CHECK_INT(tsri_event_watch(TSRI_WATCH_LISTEN), TSRI_WATCH_LISTEN);
    CHECK_INT(tsri_event_watch(TSRI_WATCH_WAKE), TSRI_WATCH_WAKE);
    tsri_roster_fini(&r);
    tsri_free(x);
}

TEST(an_event_of_a_session_that_is_gone_means_nothing)
{
    struct tsri_roster r;
    struct tsri_session *x = tsri_alloc(2, sizeof *x);
    uint32_t row, again;
    CHECK_INT(tsri_roster_init(&r, N), 0);
    CHECK(tsri_roster_take(&r, &x[0], &row));
    uint64_t event = tsri_roster_event(&r, row, TSRI_WATCH_PROCESS);
    tsri_roster_give(&r, row);
    CHECK(tsri_roster_at(&r, event) == NULL);
    CHECK(tsri_roster_take(&r, &x[1], &again));
    CHECK_INT(again, row);
    CHECK(tsri_roster_at(&r, event) == NULL);
    CHECK(tsri_roster_at(&r, tsri_roster_event(&r, again, TSRI_WATCH_PROCESS)) == &x[1]);
    CHECK(tsri_roster_at(&r, UINT64_MAX) == NULL);
    tsri_roster_fini(&r);
    tsri_free(x);
}

TEST(there_are_as_many_rows_as_there_should_be)
{
    struct tsri_roster r;
    struct tsri_session *x = tsri_alloc(1, sizeof *x);
    uint32_t row, rows[N];
    bool seen[N] = {false};
    CHECK_INT(tsri_roster_init(&r, N), 0);
    for (int round = 0; round < 3; round++) {
        memset(seen, 0, sizeof seen);
        for (uint32_t i = 0; i < N; i++) {
            CHECK(tsri_roster_take(&r, x, &rows[i]));
            CHECK(rows[i] < N && !seen[rows[i]]);
            seen[rows[i]] = true;
        }
        CHECK(!tsri_roster_take(&r, x, &row));
        for (uint32_t i = 0; i < N; i++)
            tsri_roster_give(&r, rows[(i * 2) % N]);
        CHECK_INT(r.n_used, 0);
    }
    tsri_roster_fini(&r);
    tsri_free(x);
}

int main(void)
{
    RUN(an_event_names_its_session_and_what_it_is_about);
    RUN(an_event_of_a_session_that_is_gone_means_nothing);
    RUN(there_are_as_many_rows_as_there_should_be);
    return test_end();
}
