/* What a model file says is checked before anything is loaded. */
#ifdef TSRI_HAVE_LLAMA
#include "model/gguf_kit.h"
#include "model/model.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <ggml-backend.h>
#include <unistd.h>

static struct tmpdir dir;
static char path[sizeof dir.path + 16];

/* Writes a model and reads its header; the result of the first step that fails. */
static int read_model(const struct kit_model *m, struct tsri_header *h)
{
    struct tsri_weights w = {0};
    CHECK(kit_write(path, m));
    int e = tsri_weights_map(&w, path, kit_fail);
    if (!e) e = tsri_header_init(h, w.gguf, w.file_tensors, w.map, w.map_bytes, kit_fail);
    tsri_weights_fini(&w);
    return e;
}

static void check_refused(const struct kit_model *m, int err, const char *why)
{
    struct tsri_header h;
    int e = read_model(m, &h);
    if (e != err || !strstr(kit_said, why))
        printf("    got %d: %s\n", e, e ? kit_said : "(accepted)");
    if (!e) tsri_header_fini(&h);
    CHECK_INT(e, err);
    CHECK_HAS(kit_said, why);
}

TEST(all_three_architectures_are_read_with_their_sizes)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (int i = 0; i < 3; i++) {
        struct kit_model m = {.arch = archs[i], .head_dim = 48, .tied = i == 1};
        struct tsri_header h;
        CHECK_INT(read_model(&m, &h), 0);
        CHECK_STR(h.architecture, archs[i]);
        CHECK_INT(h.n_layers, 3);
        CHECK_INT(h.n_heads, 4);
        CHECK_INT(h.n_kv_heads, 2);
        CHECK_INT(h.head_dim, 48);
        CHECK_INT(h.n_embd, 128);
        CHECK_INT(h.n_vocab, KIT_VOCAB);
        CHECK_INT(h.rope.pairing, i == 0 ? TSR_ROPE_GPTJ : TSR_ROPE_NEOX);
        CHECK((h.model_tensors[TSRI_OUTPUT] < 0) == (i == 1));
        CHECK((h.layer_tensors[2][TSRI_ATTN_K_BIAS] >= 0) == (i == 1));
        CHECK((h.layer_tensors[2][TSRI_ATTN_K_NORM] >= 0) == (i == 2));
        tsri_header_fini(&h);
    }
}

TEST(every_kind_of_rope_in_a_file_has_its_description)
{
    static const uint32_t scaling[] = {TSR_ROPE_PLAIN, TSR_ROPE_LINEAR, TSR_ROPE_YARN,
                                       TSR_ROPE_LONGROPE, TSR_ROPE_LONGROPE};
    for (int i = KIT_PLAIN; i <= KIT_LONGROPE; i++) {
        struct kit_model m = {.rope = (enum kit_rope)i};
        struct tsri_header h;
        CHECK_INT(read_model(&m, &h), 0);
        CHECK_INT(h.rope.scaling, scaling[i]);
        CHECK_INT(h.rope.dims, 32);
        tsri_header_fini(&h);
    }
}

TEST(other_architectures_are_refused_by_name)
{
    struct kit_model m = {.arch = "mamba"};
    check_refused(&m, TSR_EUNSUP, "architecture 'mamba' is not supported");
}

/* ---- features ---- */

static void experts(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.expert_count", 8);
}
static void no_experts(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.expert_count", 0);
}
static void window(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.attention.sliding_window", 4096);
}
static void alibi(struct gguf_context *g)
{
    gguf_set_val_f32(g, "llama.attention.max_alibi_bias", 8);
}
static void sections(struct gguf_context *g)
{
    static const int32_t four[4] = {4, 4, 4, 4};
    gguf_set_arr_data(g, "llama.rope.dimension_sections", GGUF_TYPE_INT32, four, 4);
}
static void hybrid(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.ssm.state_size", 16);
}
static void both_ways(struct gguf_context *g)
{
    gguf_set_val_bool(g, "llama.attention.causal", false);
}
static void per_layer(struct gguf_context *g)
{
    static const int32_t heads[3] = {2, 1, 2};
    gguf_remove_key(g, "llama.attention.head_count_kv");
    gguf_set_arr_data(g, "llama.attention.head_count_kv", GGUF_TYPE_INT32, heads, 3);
}
static void partial(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.rope.dimension_count", 16);
}
static void odd_scaling(struct gguf_context *g)
{
    gguf_set_val_str(g, "llama.rope.scaling.type", "spiral");
}

TEST(features_that_cannot_be_run_are_refused_by_name)
{
    static const struct {
        void (*edit)(struct gguf_context *);
        const char *why;
    } cases[] = {
        {experts, "experts"},
        {window, "a sliding window (llama.attention.sliding_window)"},
        {alibi, "ALiBi"},
        {sections, "M-RoPE"},
        {hybrid, "a hybrid model"},
        {both_ways, "attends to later tokens"},
        {per_layer, "llama.attention.head_count_kv is a"},
        {partial, "rotating 16 of 32"},
        {odd_scaling, "RoPE scaling 'spiral'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kit_model m = {.edit = cases[i].edit};
        check_refused(&m, TSR_EUNSUP, cases[i].why);
    }
    struct kit_model none = {.edit = no_experts};
    struct tsri_header h;
    CHECK_INT(read_model(&none, &h), 0);
    tsri_header_fini(&h);
}

/* ---- wrong numbers ---- */

static void no_layers(struct gguf_context *g)
{
    gguf_remove_key(g, "llama.block_count");
}
static void many_layers(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.block_count", 4000000000u);
}
static void negative(struct gguf_context *g)
{
    gguf_remove_key(g, "llama.embedding_length");
    gguf_set_val_i32(g, "llama.embedding_length", -128);
}
static void odd_heads(struct gguf_context *g)
{
    gguf_set_val_u32(g, "llama.attention.head_count", 3);
}
static void no_epsilon(struct gguf_context *g)
{
    gguf_set_val_f32(g, "llama.attention.layer_norm_rms_epsilon", 0);
}
static void bad_base(struct gguf_context *g)
{
    gguf_set_val_f32(g, "llama.rope.freq_base", 0.0f / 0.0f);
}

TEST(numbers_that_do_not_fit_are_refused_with_the_key)
{
    static const struct {
        void (*edit)(struct gguf_context *);
        const char *why;
    } cases[] = {
        {no_layers, "llama.block_count is missing"},
        {many_layers, "llama.block_count is 4e+09, not in 1..512"},
        {negative, "llama.embedding_length is -128"},
        {odd_heads, "3 heads over 2 heads of KV"},
        {no_epsilon, "layer_norm_rms_epsilon is 0"},
        {bad_base, "llama.rope.freq_base is not a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kit_model m = {.edit = cases[i].edit};
        check_refused(&m, TSR_ECORRUPT, cases[i].why);
    }
}

TEST(a_tensor_that_is_missing_too_large_or_unknown_is_named)
{
    struct kit_model missing = {.without = "blk.1.ffn_up.weight"};
    check_refused(&missing, TSR_ECORRUPT, "tensor blk.1.ffn_up.weight is missing");
    struct kit_model no_embd = {.without = "token_embd.weight"};
    check_refused(&no_embd, TSR_ECORRUPT, "tensor token_embd.weight is missing");
    struct kit_model wide = {.widen = "blk.2.attn_k.weight"};
    check_refused(&wide, TSR_ECORRUPT, "tensor blk.2.attn_k.weight is 128 x 65, not 128 x 64");
    struct kit_model more = {.more = "blk.0.ffn_gate_inp.weight"};
    check_refused(&more, TSR_EUNSUP,
                  "tensor blk.0.ffn_gate_inp.weight is not supported in a llama model");
    struct kit_model normed = {.more = "blk.0.attn_q_norm.weight"};
    check_refused(&normed, TSR_EUNSUP,
                  "tensor blk.0.attn_q_norm.weight is not supported in a llama model");
}

TEST(a_file_that_is_cut_off_anywhere_is_refused)
{
    struct kit_model m = {0};
    CHECK(kit_write(path, &m));
    FILE *f = fopen(path, "rb");
    CHECK(f && fseek(f, 0, SEEK_END) == 0);
    long bytes = ftell(f);
    fclose(f);
    for (long cut = bytes - 1; cut > 0; cut = cut > 40000 ? cut * 7 / 8 : cut - 701) {
        CHECK(truncate(path, cut) == 0);
        struct tsri_weights w = {0};
        struct tsri_header h;
        int e = tsri_weights_map(&w, path, kit_fail);
        if (!e) e = tsri_header_init(&h, w.gguf, w.file_tensors, w.map, w.map_bytes, kit_fail);
        tsri_weights_fini(&w);
        CHECK_INT(e, TSR_ECORRUPT);
    }
}

/* Bytes of the header, one to four at a time, are anything. The file is refused, or what it says
 * still fits what is in it: then the rows of its tensors can be read. */
TEST(a_header_with_wrong_bytes_is_refused_or_still_fits)
{
    struct kit_model m = {0};
    uint64_t state = 11;
    uint32_t n_refused = 0;
    CHECK(kit_write(path, &m));
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL);
    for (int round = 0; round < 400; round++) {
        uint8_t was[4];
        uint64_t random = test_rand(&state);
        long at = (long)(random % 6000);
        size_t n = 1 + random / 6000 % 4;
        CHECK(fseek(f, at, SEEK_SET) == 0 && fread(was, 1, n, f) == n);
        uint64_t bytes = test_rand(&state);
        CHECK(fseek(f, at, SEEK_SET) == 0 && fwrite(&bytes, 1, n, f) == n && fflush(f) == 0);
        struct tsri_weights w = {0};
        struct tsri_header h = {0};
        int e = tsri_weights_map(&w, path, kit_fail);
        if (!e) {
            e = tsri_header_init(&h, w.gguf, w.file_tensors, w.map, w.map_bytes, kit_fail);
            if (!e) CHECK(h.n_layers > 0 && h.n_heads % h.n_kv_heads == 0 && h.n_vocab > 0);
            if (!e) tsri_header_fini(&h);
        }
        n_refused += e != 0;
        tsri_weights_fini(&w);
        CHECK(fseek(f, at, SEEK_SET) == 0 && fwrite(was, 1, n, f) == n && fflush(f) == 0);
    }
    fclose(f);
    CHECK(n_refused > 50);
}

TEST(what_is_no_model_file_is_refused)
{
    struct tsri_weights w = {0};
    FILE *f = fopen(path, "wb");
    CHECK(f);
    for (int i = 0; i < 100; i++)
        fputs("These are not weights. ", f);
    fclose(f);
    CHECK_INT(tsri_weights_map(&w, path, kit_fail), TSR_ECORRUPT);
    CHECK_HAS(kit_said, "is not a GGUF file");
    tsri_weights_fini(&w);
    CHECK_INT(tsri_weights_map(&w, dir.path, kit_fail), TSR_ECORRUPT);
    tsri_weights_fini(&w);
    CHECK_INT(tsri_weights_map(&w, "/nonexistent/model.gguf", kit_fail), TSR_ENOENT);
    CHECK_HAS(kit_said, "No such file");
    tsri_weights_fini(&w);
}

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)level;
    (void)text;
    (void)arg;
}

int main(void)
{
    ggml_log_set(quiet, NULL);
    tmpdir_init_fast(&dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir.path);
    RUN(all_three_architectures_are_read_with_their_sizes);
    RUN(every_kind_of_rope_in_a_file_has_its_description);
    RUN(other_architectures_are_refused_by_name);
    RUN(features_that_cannot_be_run_are_refused_by_name);
    RUN(numbers_that_do_not_fit_are_refused_with_the_key);
    RUN(a_tensor_that_is_missing_too_large_or_unknown_is_named);
    RUN(a_file_that_is_cut_off_anywhere_is_refused);
    RUN(a_header_with_wrong_bytes_is_refused_or_still_fits);
    RUN(what_is_no_model_file_is_refused);
    tmpdir_fini(&dir);
    return test_end();
}
#else
#include "model/absent.h"
#endif
