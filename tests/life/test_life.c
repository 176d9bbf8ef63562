/* test_life.c - whole lives of a store (life.h), a seed each. A life that breaks a promise prints
 * its steps and how to live it again:
 *
 *   test_life                  25 lives; with TESSERA_TEST_LONG as many as ten minutes have
 *   test_life --seed=N         one life, with its steps; the same seed has the same plan
 *   test_life --seeds=A-B      several
 *   test_life --steps=N        with --seed: only the first N steps
 *   test_life --shrink         with --seed: leaves out every step that is not needed to break it
 *   test_life --jobs=N         lives at once; 2 if not given
 *   test_life --without=PART   leaves out a part of every life: life.h, LIFE_PARTS
 *
 * What processes do at the same time, and where a kill meets them, is not the plan's: a seed that
 * broke something once may need a few tries, and --shrink makes several. */
#include "life/life.h"

#include "support/test.h"
#include "support/tmpdir.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIVES 25u
#define LONG_S 600u
#define LIFE_S 300u /* of one life, with a sanitizer on a busy machine */
#define JOBS_MAX 16u
#define TRIES 2u /* of a shrunk plan before a step counts as needed */

/* What lives have in them. */
static uint32_t parts = LIFE_WITH_ALL;

/* One life in a process of its own, and a folder with its trace. */
struct job {
    pid_t pid; /* 0: free */
    uint64_t seed;
    time_t until;
    struct tmpdir dir;
};

static void start(struct job *j, const struct life_plan *p, const bool *mask)
{
    char path[300];
    pid_t parent = getpid();
    tmpdir_init_fast(&j->dir);
    j->seed = p->seed;
    j->until = time(NULL) + LIFE_S;
    fflush(stdout);
    j->pid = fork();
    if (j->pid < 0) abort();
    if (j->pid > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    snprintf(path, sizeof path, "%s/trace", j->dir.path);
    FILE *trace = fopen(path, "w");
    if (!trace) abort();
    setvbuf(trace, NULL, _IOLBF, 0);
    bool held = life_drive(p, mask, j->dir.path, trace);
    fclose(trace);
    _exit(held ? 0 : 1);
}

static void print_file(const struct job *j, const char *name)
{
    char path[300], line[600];
    snprintf(path, sizeof path, "%s/%s", j->dir.path, name);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        printf("    %s", line);
    if (f) fclose(f);
}

/* Whether it has ended, and how. */
static bool ended(struct job *j, bool *held)
{
    int status;
    if (waitpid(j->pid, &status, WNOHANG) != j->pid) {
        if (time(NULL) < j->until) return false;
        kill(j->pid, SIGKILL);
        waitpid(j->pid, &status, 0);
    }
    *held = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    j->pid = 0;
    return true;
}

static const char *program = "test_life";

static void report(const struct job *j)
{
    printf("    seed %llu broke a promise; again: %s --seed=%llu\n", (unsigned long long)j->seed,
           program, (unsigned long long)j->seed);
    print_file(j, "trace");
    print_file(j, "log");
    fflush(stdout);
}

/* Lives with seeds from `first` on, n of them or as many as begin in so many seconds; how many
 * broke a promise. */
static uint32_t live(uint64_t first, uint64_t n, uint32_t seconds, uint32_t jobs, uint64_t *lived)
{
    static struct life_plan plan;
    struct job all[JOBS_MAX];
    uint32_t n_running = 0, n_broken = 0;
    uint64_t next = 0;
    time_t until = time(NULL) + seconds;
    memset(all, 0, sizeof all);
    while (n_running || (next < n && (!seconds || time(NULL) < until))) {
        for (uint32_t i = 0; i < jobs; i++) {
            bool held;
            if (all[i].pid && ended(&all[i], &held)) {
                n_running--;
                n_broken += !held;
                if (!held) report(&all[i]);
                tmpdir_fini(&all[i].dir);
            }
            if (all[i].pid || next >= n || (seconds && time(NULL) >= until)) continue;
            life_plan_make(&plan, first + next++, parts);
            start(&all[i], &plan, NULL);
            n_running++;
        }
        usleep(5000);
    }
    *lived = next;
    return n_broken;
}

/* ---- one seed, by hand ---- */

static bool live_one(const struct life_plan *p, const bool *mask, bool tell)
{
    struct job j;
    bool held;
    start(&j, p, mask);
    while (!ended(&j, &held))
        usleep(2000);
    if (tell && !held)
        report(&j);
    else if (tell)
        print_file(&j, "trace");
    tmpdir_fini(&j.dir);
    return held;
}

/* Leaves out halves, quarters, .. and single steps as long as it still breaks. */
static void shrink(const struct life_plan *p)
{
    bool mask[LIFE_STEPS_MAX], less[LIFE_STEPS_MAX];
    for (uint32_t i = 0; i < LIFE_STEPS_MAX; i++)
        mask[i] = i < p->n_steps;
    for (uint32_t size = p->n_steps / 2; size > 0; size /= 2)
        for (uint32_t at = 0; at < p->n_steps; at += size) {
            bool held = true, any = false;
            memcpy(less, mask, sizeof mask);
            for (uint32_t i = at; i < at + size && i < p->n_steps; i++)
                any |= mask[i], less[i] = false;
            for (uint32_t i = 0; any && held && i < TRIES; i++)
                held = live_one(p, less, false);
            if (any && !held) memcpy(mask, less, sizeof mask);
        }
    live_one(p, mask, true);
}

/* ---- tests ---- */

/* Step by step, as they are said: not by the bytes, for what is between members is the compiler's.
 */
static bool same_plan(const struct life_plan *a, const struct life_plan *b)
{
    for (uint32_t i = 0; i < a->n_steps; i++) {
        const struct life_step *x = &a->steps[i], *y = &b->steps[i];
        char one[300], other[300];
        life_step_say(x, one, sizeof one);
        life_step_say(y, other, sizeof other);
        if (strcmp(one, other) != 0 || x->seed != y->seed || x->delay_us != y->delay_us)
            return false;
    }
    return a->n_steps == b->n_steps && a->tiers == b->tiers && a->owner == b->owner;
}

TEST(a_seed_has_one_plan)
{
    static struct life_plan a, b;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        life_plan_make(&a, seed, LIFE_WITH_ALL);
        life_plan_make(&b, seed, LIFE_WITH_ALL);
        CHECK(same_plan(&a, &b));
        life_plan_make(&b, seed + 1000, LIFE_WITH_ALL);
        CHECK(!same_plan(&a, &b));
        CHECK(a.n_steps > 0 && a.n_steps <= LIFE_STEPS_MAX);
    }
}

TEST(no_life_breaks_a_promise)
{
    bool many = getenv("TESSERA_TEST_LONG") != NULL;
    uint64_t lived, n = many ? UINT64_MAX : LIVES, first = many ? 1000 : 1;
    uint32_t n_broken = live(first, n, many ? LONG_S : 0, 2, &lived);
    printf("    %llu lives, seeds from %llu on\n", (unsigned long long)lived,
           (unsigned long long)first);
    CHECK_INT(n_broken, 0);
}

static uint32_t part_of(const char *word)
{
#define PART_OF(name, text) \
    if (strcmp(word, text) == 0) return LIFE_WITH_##name;
    LIFE_PARTS(PART_OF)
#undef PART_OF
    fprintf(stderr, "no part of a life is called %s: life.h, LIFE_PARTS\n", word);
    exit(2);
}

static int by_hand(int argc, char **argv)
{
    static struct life_plan plan;
    uint64_t first = 1, last = 0, lived;
    uint32_t steps = LIFE_STEPS_MAX, jobs = 2;
    bool small = false;
    for (int i = 1; i < argc; i++) {
        unsigned long long a, b;
        if (sscanf(argv[i], "--seed=%llu", &a) == 1)
            first = last = a;
        else if (sscanf(argv[i], "--seeds=%llu-%llu", &a, &b) == 2)
            first = a, last = b;
        else if (sscanf(argv[i], "--steps=%llu", &a) == 1)
            steps = (uint32_t)a;
        else if (sscanf(argv[i], "--jobs=%llu", &a) == 1 && a > 0 && a <= JOBS_MAX)
            jobs = (uint32_t)a;
        else if (strncmp(argv[i], "--without=", 10) == 0)
            parts &= ~part_of(argv[i] + 10);
        else if (strcmp(argv[i], "--shrink") == 0)
            small = true;
        else
            return fprintf(stderr, "%s: %s? See the head of test_life.c\n", argv[0], argv[i]), 2;
    }
    if (last < first) return fprintf(stderr, "%s: which seeds?\n", argv[0]), 2;
    if (first < last) {
        uint32_t n_broken = live(first, last - first + 1, 0, jobs, &lived);
        printf("%llu lives, %u broke a promise\n", (unsigned long long)lived, n_broken);
        return n_broken ? 1 : 0;
    }
    life_plan_make(&plan, first, parts);
    if (steps < plan.n_steps) plan.n_steps = steps;
    if (small) return shrink(&plan), 1;
    return live_one(&plan, NULL, true) ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--worker") == 0) return life_worker(argc - 2, argv + 2);
    program = argv[0];
    if (!life_has_redis()) {
        puts("    skipped: lives with Redis: no redis-server (tools/setup)");
        parts &= ~(uint32_t)LIFE_WITH_REDIS;
    }
    if (!life_has_mounts()) {
        puts("    skipped: lives on a full file system: none can be mounted here");
        parts &= ~(uint32_t)LIFE_WITH_FILL;
    }
    if (argc > 1) return by_hand(argc, argv);
    RUN(a_seed_has_one_plan);
    RUN(no_life_breaks_a_promise);
    return test_end();
}
