/* The same crowd on ggml: rows of several sessions share a pass, and mode exact says what it says
 * alone. The model has random weights; libtessera-model.so and make_gguf are those of this build. */
#include "serve/crowd.h"
#include "support/tmpdir.h"

#include <time.h>
#include <unistd.h>

struct rig {
    struct tmpdir dir;
    struct tsr_model *model;
    struct tsr_blend *blend;
    struct tsr_model_info info;
};

/* A path of this build: <where this test is>/../../<rest>. */
static bool of_build(const char *rest, char *path, size_t bytes)
{
    char own[2048];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n <= 0) return false;
    own[n] = 0;
    for (int up = 0; up < 3; up++)
        *strrchr(own, '/') = 0;
    snprintf(path, bytes, "%s/%s", own, rest);
    return access(path, R_OK) == 0;
}

static void rig_open(struct rig *r)
{
    char library[2304], make[2304], path[600], command[4096];
    if (!of_build("lib/libtessera-model.so", library, sizeof library) ||
        !of_build("tests/model/make_gguf", make, sizeof make))
        SKIP("llama.cpp is not installed: tools/setup --model");
    memset(r, 0, sizeof *r);
    tmpdir_init_fast(&r->dir);
    snprintf(path, sizeof path, "%s/m.gguf", r->dir.path);
    snprintf(command, sizeof command, "'%s' '%s' qwen2", make, path);
    CHECK_INT(system(command), 0);
    struct tsr_model_desc desc = {
        .size = sizeof desc, .path = path, .library = library, .n_threads = 1};
    r->info.size = sizeof r->info;
    CHECK_INT(tsr_model_open(&r->model, NULL, &desc), 0);
    CHECK_INT(tsr_model_info(r->model, &r->info), 0);
    struct tsr_blend_desc blend = {.size = sizeof blend, .model = r->model};
    CHECK_INT(tsr_blend_open(&r->blend, &blend), 0);
}

static void rig_close(struct rig *r)
{
    tsr_blend_close(r->blend);
    tsr_model_close(r->model);
    tmpdir_fini(&r->dir);
}

static void run(struct crowd *c, const struct rig *r, uint32_t n_running, uint32_t n_clients,
                bool cancels)
{
    struct tsri_engine_desc d = {.model = r->model, .blend = r->blend, .n_running_max = n_running};
    engine_kit_init(&c->kit);
    CHECK_INT(tsri_engine_open(&c->kit.engine, &d), 0);
    crowd_run(c, n_clients, cancels);
    tsri_engine_close(c->kit.engine);
}

TEST(a_crowd_on_ggml_is_answered_as_one_by_one)
{
    struct rig r;
    rig_open(&r);
    struct crowd *c = calloc(1, sizeof *c);
    CHECK(c);
    crowd_prompts(c, r.info.n_vocab);
    run(c, &r, 1, 1, false);
    memcpy(c->alone, c->jobs, sizeof c->alone);
    run(c, &r, 8, CLIENTS, true);
    crowd_check(c);
    free(c);
    rig_close(&r);
}

/* Decoding has kernels of its own, so the KV of an answer is not what a prompt with it has: the next
 * turn must find the latter. */
static void two_turns(const struct rig *r, struct tsr_blend *blend, bool fresh,
                      struct engine_job jobs[2])
{
    struct engine_kit k;
    uint32_t tokens[600];
    struct tsri_engine_desc d = {.model = r->model, .blend = blend};
    engine_kit_init(&k);
    CHECK_INT(tsri_engine_open(&k.engine, &d), 0);
    struct tsri_job_desc job = engine_kit_desc(tokens, 150, r->info.n_vocab, 3);
    job.keeps = fresh ? TSRI_KEEP_NOTHING : TSRI_KEEP_EXACT;
    job.fresh = fresh;
    job.ignore_end = job.logprobs = true;
    job.max_tokens = 50;
    CHECK_INT(engine_kit_submit(&k, &jobs[0], &job), 0);
    engine_kit_wait(&k, 1);
    WAIT_FOR(engine_kit_is_idle(&k));
    memcpy(tokens + 150, jobs[0].tokens, 50 * sizeof *tokens);
    for (uint32_t i = 0; i < 10; i++)
        tokens[200 + i] = 5 + i;
    job.n_tokens = 210;
    CHECK_INT(engine_kit_submit(&k, &jobs[1], &job), 0);
    engine_kit_wait(&k, 2);
    tsri_engine_close(k.engine);
}

TEST(the_next_turn_finds_the_answer_with_the_bits_of_a_full_read)
{
    struct rig r;
    struct kit cache;
    struct tsr_blend *blend;
    struct engine_job full[2] = {0}, jobs[2] = {0};
    rig_open(&r);
    kit_open(&cache, (const char *const[]){"host_size", "64M", NULL});
    struct tsr_blend_desc d = {
        .size = sizeof d, .model = r.model, .cache = cache.cache, .prefix_block_tokens = 8};
    CHECK_INT(tsr_blend_open(&blend, &d), 0);
    two_turns(&r, r.blend, true, full);
    two_turns(&r, blend, false, jobs);
    CHECK_INT(jobs[1].report.n_exact, 200);
    CHECK(memcmp(jobs[1].tokens, full[1].tokens, sizeof full[1].tokens) == 0);
    CHECK(memcmp(jobs[1].logprobs, full[1].logprobs, sizeof full[1].logprobs) == 0);
    tsr_blend_close(blend);
    CHECK(kit_end(&cache));
    rig_close(&r);
}

int main(void)
{
    RUN(a_crowd_on_ggml_is_answered_as_one_by_one);
    RUN(the_next_turn_finds_the_answer_with_the_bits_of_a_full_read);
    return test_end();
}
