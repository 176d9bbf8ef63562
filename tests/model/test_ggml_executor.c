/* Opening a model, and everything that can be wrong with how it is asked for. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "model/session_kit.h"

#include <unistd.h>

static struct kit k;

static void check_refused(struct tsr_model_desc config, int err, const char *why)
{
    struct tsr_executor *x;
    config.size = sizeof config;
    config.fail = kit_fail;
    if (!config.path) config.path = k.path;
    CHECK_INT(tsr_executor.open(&x, &config), err);
    CHECK_HAS(kit_said, why);
}

TEST(what_cannot_be_had_is_refused_in_words)
{
    check_refused((struct tsr_model_desc){.device = "abacus"}, TSR_EDEVICE,
                  "no device 'abacus' here, only");
    check_refused((struct tsr_model_desc){.weights = "q3_k"}, TSR_EINVAL, "not to 'q3_k'");
    check_refused((struct tsr_model_desc){.kv_dtype = TSR_DTYPE_INT8}, TSR_EINVAL, "dtype");
    check_refused((struct tsr_model_desc){.n_threads = 100000}, TSR_ERANGE, "threads");
    check_refused((struct tsr_model_desc){.path = "/nonexistent.gguf"}, TSR_ENOENT,
                  "/nonexistent.gguf");
}

TEST(a_model_describes_itself)
{
    CHECK_STR(k.info.architecture, "qwen2");
    CHECK_STR(k.info.name, "random");
    CHECK_INT(k.info.n_layers, 3);
    CHECK_INT(k.info.context, 2048);
    CHECK_INT(k.info.kv_dtype, TSR_DTYPE_F16);
    CHECK_INT(k.info.token_bos, 1);
    CHECK(k.info.weight_bytes > 100000);
    CHECK_HAS(k.info.device, "1 threads");
    CHECK_INT(k.info.caps & (TSR_MODEL_MASS | TSR_MODEL_DEVIATION | TSR_MODEL_BIAS),
              TSR_MODEL_MASS | TSR_MODEL_DEVIATION | TSR_MODEL_BIAS);
}

TEST(the_layout_of_a_session_holds_every_slot_and_begins_with_zeros)
{
    struct tsr_kv_layout layout;
    tsr_executor.session_layout(k.s, &layout);
    CHECK_INT(layout.n_planes, 2);
    CHECK_INT(layout.n_slots, 100);
    CHECK_INT(layout.planes[0].rope_dims, 32);
    CHECK_INT(layout.planes[1].rope_dims, 0);
    for (int p = 0; p < 2; p++)
        for (uint32_t l = 0; l < 3; l++) {
            const uint8_t *bytes = layout.planes[p].layers[l];
            CHECK(layout.planes[p].layer_bytes >= 100 * layout.planes[p].token_stride);
            for (uint64_t i = 0; i < layout.planes[p].layer_bytes; i++)
                CHECK(bytes[i] == 0);
        }
}

TEST(attention_of_more_rows_than_there_is_room_for_is_refused)
{
    static struct tsr_model_row rows[300];
    struct tsr_model_group group = {300, 1, {{0, 300}}};
    struct tsr_model_pass pass = {.size = sizeof pass,
                                  .rows = rows,
                                  .n_rows = 300,
                                  .n_groups = 1,
                                  .groups = &group,
                                  .n_mass_rows = TSRI_MASS_ROWS_MAX + 1};
    struct tsr_executor_session *s;
    CHECK_INT(tsr_executor.session_open(k.x, &s, 300), 0);
    for (uint32_t i = 0; i < 300; i++)
        rows[i] = (struct tsr_model_row){5, i, i};
    CHECK_INT(tsr_executor.begin(s, &pass), TSR_ERANGE);
    tsr_executor.session_close(s);
}

/* As a user's program does it: through the core, which finds the library and its one symbol. */
TEST(the_core_loads_the_library_and_runs_the_model)
{
    char library[4096];
    ssize_t n = readlink("/proc/self/exe", library, sizeof library - 1);
    CHECK(n > 0);
    library[n] = 0;
    for (int up = 0; up < 3; up++)
        *strrchr(library, '/') = 0;
    strncat(library, "/lib/libtessera-model.so", sizeof library - strlen(library) - 1);
    struct tsr_model_desc config = {
        .size = sizeof config, .path = k.path, .n_threads = 1, .library = library};
    struct tsr_model *model;
    struct tsr_model_info info = {.size = sizeof info};
    if (tsr_model_open(&model, NULL, &config) != 0) printf("    %s\n", tsr_errmsg());
    CHECK_INT(tsr_model_info(model, &info), 0);
    CHECK_STR(info.architecture, "qwen2");
    CHECK(memcmp(info.weights, k.info.weights, sizeof info.weights) == 0);
    tsr_model_close(model);
    config.path = "/nonexistent.gguf";
    CHECK_INT(tsr_model_open(&model, NULL, &config), TSR_ENOENT);
    CHECK_HAS(tsr_errmsg(), "/nonexistent.gguf: No such file");
}

int main(void)
{
    struct kit_model m = {.arch = "qwen2"};
    kit_open(&k, &m, 0, 100);
    RUN(what_cannot_be_had_is_refused_in_words);
    RUN(a_model_describes_itself);
    RUN(the_layout_of_a_session_holds_every_slot_and_begins_with_zeros);
    RUN(attention_of_more_rows_than_there_is_room_for_is_refused);
    RUN(the_core_loads_the_library_and_runs_the_model);
    kit_close(&k);
    return test_end();
}
#else
#include "model/absent.h"
#endif
