/* kill -9 at random moments. A child puts, drops and flushes, and tells what it is about to do and
 * what is done through a pipe; the parent kills it, opens the store and reads everything: what a
 * flush had acknowledged is there, what was dropped and flushed is not, and no byte is wrong. The
 * store is carried from round to round, so that each recovers from the crashes before it. */
#include "support/disk_kit.h"
#include "support/test.h"

#include <signal.h>
#include <sys/wait.h>

enum { KEYS = 48, N_THREADS = 2 };
enum state { GONE, THERE, EITHER };

static const struct kv_shape shapes[] = {
    {40, 16, 2, 2, {48, 32}, 10, 0},
    {128, 64, 3, 2, {64, 64}, 0, 0},
    {300, 64, 4, 2, {128, 128}, 3, 1},
};

static const struct kv_shape *shape_of(uint64_t key)
{
    return &shapes[key % TSRI_COUNT(shapes)];
}

/* One line through the pipe: shorter than PIPE_BUF, so whole or not at all. */
struct message {
    char what; /* p, d: begins to put or drop; P, D: has; f, F: flush; E: something is wrong;
                  N: there was nothing to drop */
    uint8_t key;
    uint8_t flush; /* which flush begins or ends */
};

static struct disk_kit kit;
static int told[2];

/* ---- the child ---- */

struct worker {
    pthread_t thread;
    uint64_t state;
    uint8_t number;
};

static void tell(char what, uint64_t key, uint8_t flush)
{
    struct message m = {what, (uint8_t)key, flush};
    if (write(told[1], &m, sizeof m) != (ssize_t)sizeof m) _exit(3);
}

static void drop(uint64_t key)
{
    tell('d', key, 0);
    tell(kv_tier_drop(kit.tier, shape_of(key), key) == 1 ? 'D' : 'N', key, 0);
}

static void put(struct worker *w, uint64_t key)
{
    tell('p', key, 0);
    int r = kv_tier_put(kit.tier, shape_of(key), key);
    if (r == 0) tell('P', key, 0);
    if (r != 0 && r != TSR_EFULL) tell('E', key, 0);
    /* As a cache would: something of its own goes. Keys belong to one worker each. */
    if (r == TSR_EFULL) drop(test_rand(&w->state) % (KEYS / N_THREADS) * N_THREADS + w->number);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    uint8_t n_flushes = 0;
    for (;;) {
        uint64_t key = test_rand(&w->state) % (KEYS / N_THREADS) * N_THREADS + w->number;
        switch (test_rand(&w->state) % 16) {
        case 0: {
            uint8_t flush = (uint8_t)(n_flushes++ % 64 * N_THREADS + w->number);
            tell('f', 0, flush);
            if (tsri_tier_flush(kit.tier) == 0) tell('F', 0, flush);
            break;
        }
        case 1:
        case 2:
        case 3:
        case 4:
            drop(key);
            break;
        case 5:
            if (kv_tier_get(kit.tier, shape_of(key), key, 0) > 0) tell('E', key, 1);
            break;
        default:
            put(w, key);
        }
    }
    return NULL;
}

static void run_child(uint64_t round)
{
    close(told[0]);
    if (disk_kit_open(&kit) != 0) _exit(4);
    struct worker w[N_THREADS];
    for (uint32_t i = 0; i < N_THREADS; i++) {
        w[i] = (struct worker){.state = round * 100 + i + 1, .number = (uint8_t)i};
        if (i && pthread_create(&w[i].thread, NULL, work, &w[i]) != 0) _exit(5);
    }
    work(&w[0]);
}

/* ---- the parent ---- */

static enum state acked[KEYS]; /* what must be found */

/* Follows the child's messages and kills it after some of them. A flush that began acknowledges,
 * when it ends, what was done before it began and not begun anew since. */
static int follow(pid_t pid, uint64_t n_messages)
{
    static enum state now[KEYS], at_flush[256][KEYS];
    int n_flushed = 0;
    memcpy(now, acked, sizeof now);
    struct message m;
    while (read(told[0], &m, sizeof m) == (ssize_t)sizeof m) {
        if (n_messages-- == 0) kill(pid, SIGKILL); /* what it has told before is still read */
        switch (m.what) {
        case 'p':
        case 'd':
            now[m.key] = EITHER;
            acked[m.key] = EITHER;
            for (size_t f = 0; f < 256; f++)
                at_flush[f][m.key] = EITHER;
            break;
        case 'P':
            now[m.key] = THERE;
            break;
        case 'D':
            now[m.key] = GONE;
            break;
        case 'N':
            break;
        case 'f':
            memcpy(at_flush[m.flush], now, sizeof now);
            break;
        case 'F':
            for (size_t k = 0; k < KEYS; k++)
                if (at_flush[m.flush][k] != EITHER) acked[k] = at_flush[m.flush][k];
            n_flushed++;
            break;
        default:
            printf("    the child found key %u wrong\n", m.key);
            CHECK(m.what != 'E');
        }
    }
    return n_flushed;
}

/* A key whose last put failed because the store was full may have been dropped to make room, which
 * is told; nothing else leaves the store. */
static void check_store(uint64_t round)
{
    CHECK_INT(disk_kit_open(&kit), 0);
    for (uint64_t k = 0; k < KEYS; k++) {
        int r = kv_tier_get(kit.tier, shape_of(k), k, 0);
        bool right =
            r != KIT_WRONG && !(acked[k] == THERE && r != 0) && !(acked[k] == GONE && r == 0);
        if (!right)
            printf("    round %llu: key %llu, acknowledged %d, got %d: %s\n",
                   (unsigned long long)round, (unsigned long long)k, (int)acked[k], r,
                   tsr_errmsg());
        CHECK(right);
        /* A write that the kernel still had in hand may reach the disk after this: what is not
         * there and was never acknowledged may be there the next time. */
        if (acked[k] == EITHER && r == 0) acked[k] = THERE;
    }
    /* Sometimes a clean close between two crashes. What is read here was on disk, or in the page
     * cache, which a kill does not empty: it is still there in the next round. */
    if (round % 4 == 0)
        disk_kit_close(&kit);
    else
        disk_kit_crash(&kit);
}

static uint64_t rounds(void)
{
    const char *text = getenv("TESSERA_TEST_LONG");
    return text && *text && strcmp(text, "0") != 0 ? 1000 : TEST_SANITIZED ? 40 : 200;
}

/* Returns how many flushes were acknowledged. */
static int run_rounds(uint64_t from, uint64_t to)
{
    static const enum tsri_aio_mode modes[] = {TSRI_AIO_AUTO, TSRI_AIO_AUTO, TSRI_AIO_THREADS};
    memset(acked, 0, sizeof acked);
    kit.setup.bytes_max = 12 << 20;
    kit.setup.segment_bytes = 512 << 10;
    kit.n_threads = N_THREADS;
    uint64_t state = from + 77;
    int n_flushed = 0;
    for (uint64_t round = from; round < to; round++) {
        kit.setup.mode = modes[round % TSRI_COUNT(modes)];
        kit.setup.buffered = round % 5 == 4;
        CHECK_INT(pipe(told), 0);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) run_child(round);
        close(told[1]);
        /* Counted in what it has done rather than in time, so that a slow machine tests as much;
         * and sometimes while it still opens. */
        uint64_t n_messages = test_rand(&state) % (round % 8 ? 120 : 600);
        if (round % 8 == 1) {
            usleep((useconds_t)(test_rand(&state) % 5000));
            kill(pid, SIGKILL);
        }
        n_flushed += follow(pid, n_messages);
        close(told[0]);
        int status;
        CHECK_INT(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        check_store(round);
    }
    return n_flushed;
}

TEST(nothing_acknowledged_is_lost_by_a_kill_at_any_moment)
{
    disk_kit_init(&kit);
    CHECK(run_rounds(0, rounds() / 2) > 20);
    disk_kit_fini(&kit);
}

/* A sync takes no time there: many more of them, and of everything else, in the same time. */
TEST(nor_on_a_file_system_in_memory)
{
    disk_kit_init_fast(&kit);
    CHECK(run_rounds(rounds() / 2, rounds()) > 20);
    disk_kit_fini(&kit);
}

int main(void)
{
    RUN(nothing_acknowledged_is_lost_by_a_kill_at_any_moment);
    RUN(nor_on_a_file_system_in_memory);
    return test_end();
}
