/* bench_policy.c - how near the policy `adaptive` comes to the better of the two fixed ones, lru
 * and s3fifo, on each trace and size: hit rates are tokens reused / tokens asked, of a cache that
 * is only counted (tests/support/cache_sim.h). Sizes are 1, 5 and 20 hundredths of the text asked
 * for. What one that knows the future would reach is printed as belady.
 *
 * Traces are four made by code, one of conversations, and the files *.jsonl of the folder named as
 * argument or in TESSERA_TRACES, in the form of `tessera-lab replay`. Those whose requests are segments
 * are also replayed "again": requests drawn anew by Zipf's law, as a service sees them, since the
 * published lists ask each question once. */
#include "policy/policy.h"
#include "lab/lab.h"
#include "support/bench.h"
#include "support/cache_sim.h"
#include "support/policy_kit.h"

#include <dirent.h>
#include <stdlib.h>

#define TARGET 0.97
#define REDRAWN 10000u

/* ---- hit rates ---- */

static double run(const struct trace *t, const struct tsri_policy_ops *ops, uint64_t capacity)
{
    struct sim_result r = ops ? sim_run(t, ops, capacity) : sim_belady(t, capacity);
    BENCH_CHECK(r.tokens_asked > 0 && r.tokens_reused <= r.tokens_asked);
    return 100 * sim_rate(&r);
}

static void report(const struct trace *t, const char *policy, uint32_t hundredths, double rate,
                   double best)
{
    char name[96];
    snprintf(name, sizeof name, "%s %u %% %s", t->name, hundredths, policy);
    bench_report(name, rate, "%", best, best > 0 ? TARGET : 0, true);
}

static void measure(struct trace *t)
{
    static const uint32_t sizes[] = {1, 5, 20};
    for (size_t i = 0; i < TSRI_COUNT(sizes); i++) {
        uint64_t capacity = sim_footprint(t) * sizes[i] / 100;
        double lru = run(t, &tsri_policy_lru, capacity);
        double s3fifo = run(t, &tsri_policy_s3fifo, capacity);
        report(t, "lru", sizes[i], lru, 0);
        report(t, "s3fifo", sizes[i], s3fifo, 0);
        report(t, "belady", sizes[i], run(t, NULL, capacity), 0);
        report(t, "adaptive", sizes[i], run(t, &tsri_policy_adaptive, capacity),
               lru > s3fifo ? lru : s3fifo);
    }
}

/* ---- traces from files ---- */

/* Ids of a file and what they became, by open addressing. */
struct ids {
    struct slot {
        uint64_t id;
        uint32_t object;
        bool used;
    } * slots;
    size_t n_slots;
};

static uint32_t object_of(struct trace *t, struct ids *ids, const struct tsri_trace_chunk *chunk,
                          uint32_t parent)
{
    size_t at = policy_hash(chunk->id) % ids->n_slots;
    while (ids->slots[at].used && ids->slots[at].id != chunk->id)
        at = (at + 1) % ids->n_slots;
    struct slot *s = &ids->slots[at];
    if (!s->used) *s = (struct slot){chunk->id, trace_add_object(t, chunk->n_tokens, parent), true};
    return s->object;
}

static void convert(struct trace *t, const struct tsri_trace *from)
{
    struct ids ids = {.n_slots = 2 * from->n_chunks + 1};
    ids.slots = calloc(ids.n_slots, sizeof ids.slots[0]);
    BENCH_CHECK(ids.slots);
    t->chained = from->requests[0].prefix;
    for (size_t r = 0; r < from->n_requests; r++) {
        const struct tsri_trace_request *q = &from->requests[r];
        uint32_t parent = TRACE_NONE;
        BENCH_CHECK(q->prefix == t->chained);
        for (uint32_t i = 0; i < q->n_chunks; i++) {
            uint32_t object = object_of(t, &ids, &from->chunks[q->chunk_first + i], parent);
            if (t->chained) parent = object;
            trace_add_ref(t, object);
        }
        trace_end_request(t);
    }
    free(ids.slots);
}

static void measure_file(const char *folder, const char *file)
{
    struct tsri_trace read;
    struct trace t = {.chained = false}, again;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (tsri_trace_load(&read, path, SIZE_MAX) < 0) {
        fprintf(stderr, "bench_policy: %s\n", tsr_errmsg());
        exit(1);
    }
    snprintf(t.name, sizeof t.name, "%.*s", (int)strcspn(file, "."), file);
    convert(&t, &read);
    tsri_trace_fini(&read);
    measure(&t);
    if (!t.chained) {
        trace_redraw(&again, &t, REDRAWN, 1);
        measure(&again);
        trace_fini(&again);
    }
    trace_fini(&t);
}

static int is_trace(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 6 && strcmp(e->d_name + n - 6, ".jsonl") == 0;
}

static void measure_folder(const char *folder)
{
    struct dirent **files;
    int n = folder ? scandir(folder, &files, is_trace, alphasort) : 0;
    if (n <= 0) {
        fprintf(stderr,
                "bench_policy: no traces%s%s: only those made by code (name a folder of *.jsonl as "
                "argument or in TESSERA_TRACES)\n",
                folder ? " in " : "", folder ? folder : "");
        return;
    }
    for (int i = 0; i < n; i++) {
        measure_file(folder, files[i]->d_name);
        free(files[i]);
    }
    free(files);
}

/* ---- what a use costs ---- */

#define IDS 65536u

struct uses {
    struct tsri_policy *policies[2];
    uint32_t ids[4096];
};

static void touch_lru(void *arg)
{
    struct uses *u = arg;
    u->policies[0]->ops->touch(u->policies[0], u->ids, TSRI_COUNT(u->ids));
}

static void touch_adaptive(void *arg)
{
    struct uses *u = arg;
    u->policies[1]->ops->touch(u->policies[1], u->ids, TSRI_COUNT(u->ids));
}

static void measure_cost(void)
{
    static struct uses u;
    uint64_t seed = 1;
    u.policies[0] = policy_open(&tsri_policy_lru, IDS, IDS);
    u.policies[1] = policy_open(&tsri_policy_adaptive, IDS, IDS);
    for (uint32_t id = 0; id < IDS; id++)
        for (uint32_t i = 0; i < 2; i++)
            policy_insert(u.policies[i], id, id);
    for (size_t i = 0; i < TSRI_COUNT(u.ids); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        u.ids[i] = (uint32_t)(seed >> 33) % IDS;
    }
    bench_pair(NULL, "4096 uses, adaptive : lru", touch_adaptive, touch_lru, &u, 31, 0);
    for (uint32_t i = 0; i < 2; i++)
        u.policies[i]->ops->close(u.policies[i]);
}

int main(int argc, char **argv)
{
    const char *folder = getenv("TESSERA_TRACES");
    if (argc > 1 && argv[argc - 1][0] != '-') folder = argv[--argc];
    bench_init("bench_policy", argc, argv);
    void (*const make[])(struct trace *, uint64_t) = {trace_scan, trace_loop, trace_zipf,
                                                      trace_shift, trace_chat};
    for (size_t i = 0; i < TSRI_COUNT(make); i++) {
        struct trace t;
        make[i](&t, 1);
        measure(&t);
        trace_fini(&t);
    }
    measure_folder(folder);
    measure_cost();
    return bench_end();
}
