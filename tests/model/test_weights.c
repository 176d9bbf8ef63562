/* Weights where the kernels want them, and the digests that tell models apart. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "model/session_kit.h"

#include <math.h>

static struct tmpdir dir;
static char path[sizeof dir.path + 16];

struct loaded {
    struct tsri_weights w;
    struct tsri_header h;
    uint8_t digest[TSR_MODEL_WEIGHTS_BYTES], tokenizer[16];
};

static void load_for(struct loaded *l, const struct kit_model *m, enum ggml_type convert,
                     bool tiles)
{
    memset(l, 0, sizeof *l);
    if (m) CHECK(kit_write(path, m));
    l->w.device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    CHECK(l->w.device);
    CHECK_INT(tsri_weights_map(&l->w, path, kit_fail), 0);
    CHECK_INT(
        tsri_header_init(&l->h, l->w.gguf, l->w.file_tensors, l->w.map, l->w.map_bytes, kit_fail),
        0);
    CHECK_INT(tsri_weights_place(&l->w, &l->h, convert, tiles, kit_fail), 0);
    CHECK_INT(
        tsri_weights_digest(&l->w, convert == GGML_TYPE_COUNT ? "" : "q8_0", l->digest, kit_fail),
        0);
    CHECK_INT(tsri_tokenizer_digest(&l->w, l->tokenizer, kit_fail), 0);
}

static void load(struct loaded *l, const struct kit_model *m, enum ggml_type convert)
{
    load_for(l, m, convert, false);
}

static void unload(struct loaded *l)
{
    tsri_header_fini(&l->h);
    tsri_weights_fini(&l->w);
}

TEST(f32_weights_stay_in_the_mapped_file)
{
    struct kit_model m = {0};
    struct loaded l;
    load(&l, &m, GGML_TYPE_COUNT);
    const uint8_t *map = l.w.map, *at = l.w.layers[1][TSRI_FFN_UP]->data;
    CHECK(at > map && at < map + l.w.map_bytes);
    CHECK_INT(l.w.n_places, 1);
    unload(&l);
}

/* ggml would repack Q4_0, and take the AMX kernels of its own for others. */
TEST(what_tiles_multiply_stays_in_the_mapped_file)
{
    static const enum ggml_type types[] = {GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q8_0};
    if (!tsri_tiles_here()) SKIP("this processor has no AMX");
    for (size_t i = 0; i < 3; i++) {
        struct kit_model m = {.type = types[i], .n_embd = 256};
        struct loaded l;
        load_for(&l, &m, GGML_TYPE_COUNT, true);
        const struct ggml_tensor *up = l.w.layers[1][TSRI_FFN_UP];
        const uint8_t *map = l.w.map, *at = up->data;
        CHECK(at > map && at < map + l.w.map_bytes);
        CHECK_INT(tsri_multiplier(up, false, true), TSRI_BY_TILES);
        CHECK(tsri_multiplier(up, true, true) != TSRI_BY_GGML);
        unload(&l);
    }
}

TEST(embeddings_are_read_row_by_row_in_every_type)
{
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_1};
    float first[128], row[128];
    for (size_t i = 0; i < 4; i++) {
        struct kit_model m = {.type = types[i]};
        struct loaded l;
        load(&l, &m, GGML_TYPE_COUNT);
        tsri_weights_embed(&l.w, 17, 128, row);
        if (i == 0) memcpy(first, row, sizeof row);
        CHECK(kit_max_difference(first, row, 128) < (i < 3 ? 0.02 : 0.3));
        unload(&l);
    }
}

TEST(converted_matrices_are_q8_0_and_close_to_what_they_were)
{
    struct kit_model m = {.type = GGML_TYPE_F16};
    struct loaded l;
    load(&l, &m, GGML_TYPE_Q8_0);
    CHECK_INT(l.w.layers[0][TSRI_ATTN_Q]->type, GGML_TYPE_Q8_0);
    CHECK_INT(l.w.layers[0][TSRI_ATTN_NORM]->type, GGML_TYPE_F32);
    CHECK_INT(l.w.output->type, GGML_TYPE_Q8_0);
    unload(&l);

    enum { N = 200 };
    static uint32_t tokens[N];
    static float before[KIT_VOCAB], after[KIT_VOCAB];
    struct kit k = {0}, converted = {0};
    kit_open_file(&k, path, 0, N, NULL);
    kit_open_file(&converted, path, 0, N, "q8_0");
    kit_tokens(tokens, N, KIT_VOCAB);
    kit_prefill(&k, tokens, 0, N, 1, before);
    kit_prefill(&converted, tokens, 0, N, 1, after);
    CHECK(fabs(kit_kl(before, after, 1, KIT_VOCAB)) < 0.02);
    CHECK(kit_max_difference(before, after, KIT_VOCAB) > 0);
    CHECK(memcmp(k.info.weights, converted.info.weights, sizeof k.info.weights) != 0);
    kit_close(&k);
    kit_close(&converted);
}

static void rename_model(struct gguf_context *g)
{
    gguf_set_val_str(g, "general.name", "other");
}
static void retokenize(struct gguf_context *g)
{
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 5);
}

TEST(a_digest_tells_models_and_tokenizers_apart)
{
    struct kit_model plain = {0}, renamed = {.edit = rename_model}, text = {.edit = retokenize};
    struct loaded a, b;
    load(&a, &plain, GGML_TYPE_COUNT);
    load(&b, &plain, GGML_TYPE_COUNT);
    CHECK(memcmp(a.digest, b.digest, sizeof a.digest) == 0);
    CHECK(memcmp(a.tokenizer, b.tokenizer, sizeof a.tokenizer) == 0);
    unload(&b);
    load(&b, &renamed, GGML_TYPE_COUNT);
    CHECK(memcmp(a.digest, b.digest, sizeof a.digest) != 0);
    CHECK(memcmp(a.tokenizer, b.tokenizer, sizeof a.tokenizer) == 0);
    unload(&b);
    load(&b, &text, GGML_TYPE_COUNT);
    CHECK(memcmp(a.tokenizer, b.tokenizer, sizeof a.tokenizer) != 0);
    unload(&b);
    /* one weight of the last tensor */
    CHECK(kit_write(path, &plain));
    FILE *f = fopen(path, "r+b");
    CHECK(f && fseek(f, -40, SEEK_END) == 0 && fputc(0x3f, f) != EOF && fclose(f) == 0);
    load(&b, NULL, GGML_TYPE_COUNT);
    CHECK(memcmp(a.digest, b.digest, sizeof a.digest) != 0);
    unload(&b);
    unload(&a);
}

int main(void)
{
    struct kit warm = {0};
    struct kit_model m = {0};
    kit_open(&warm, &m, 0, 64); /* starts ggml, which otherwise prints */
    kit_close(&warm);
    tmpdir_init_fast(&dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir.path);
    RUN(f32_weights_stay_in_the_mapped_file);
    RUN(what_tiles_multiply_stays_in_the_mapped_file);
    RUN(embeddings_are_read_row_by_row_in_every_type);
    RUN(converted_matrices_are_q8_0_and_close_to_what_they_were);
    RUN(a_digest_tells_models_and_tokenizers_apart);
    tmpdir_fini(&dir);
    return test_end();
}
#else
#include "model/absent.h"
#endif
