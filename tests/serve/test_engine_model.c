/* The same crowd on ggml: rows of several sessions share a pass, and mode exact says what it says
 * alone. The model has random weights; libtessera-model.so and make_gguf are those of this build. */
#include "serve/crowd.h"
#include "support/tmpdir.h"

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

int main(void)
{
    RUN(a_crowd_on_ggml_is_answered_as_one_by_one);
    return test_end();
}
