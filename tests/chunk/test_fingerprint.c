/* Descriptions of spaces: what is refused, and what their fingerprint tells apart. */
#include "chunk/chunk.h"
#include "support/golden.h"
#include "support/test.h"

#include <stddef.h>

static const uint8_t weights[32] = {1, 2, 3};

/* Every field set to something that is not its default. */
static struct tsr_space_desc full(void)
{
    return (struct tsr_space_desc){.size = sizeof(struct tsr_space_desc),
                                   .model = "model",
                                   .weights = weights,
                                   .weights_bytes = 31,
                                   .tokenizer = "tokenizer",
                                   .adapter = "adapter",
                                   .salt = "salt",
                                   .rope = "rope",
                                   .dtype = TSR_DTYPE_BF16,
                                   .layout = TSR_LAYOUT_STANDARD,
                                   .n_layers = 16,
                                   .layer_first = 16,
                                   .n_heads = 8,
                                   .k_dim = 128,
                                   .v_dim = 64,
                                   .rank = 1,
                                   .world = 4,
                                   .group = 2,
                                   .block_tokens = 16};
}

struct print {
    uint8_t bytes[16];
};

static struct print print_of(const struct tsr_space_desc *d)
{
    struct print p;
    CHECK_INT(tsri_space_check(d), 0);
    tsri_space_fingerprint(d, p.bytes);
    return p;
}

static bool same(struct print a, struct print b)
{
    return memcmp(a.bytes, b.bytes, 16) == 0;
}

static const char *text_field(struct golden *g, uint32_t field, char text[256])
{
    size_t n = golden_bytes(g, field, (uint8_t *)text, 255);
    text[n] = 0;
    return n ? text : NULL;
}

TEST(fingerprints_are_the_golden_ones)
{
    struct golden g;
    golden_init(&g, "keys.txt");
    int n = 0;
    for (; golden_next(&g, "space"); n++) {
        char text[6][256];
        struct tsr_space_desc d = {.size = sizeof d};
        d.model = text_field(&g, 0, text[0]);
        d.weights_bytes = golden_bytes(&g, 1, (uint8_t *)text[1], sizeof text[1]);
        if (d.weights_bytes) d.weights = text[1];
        d.tokenizer = text_field(&g, 2, text[2]);
        d.adapter = text_field(&g, 3, text[3]);
        d.salt = text_field(&g, 4, text[4]);
        d.rope = text_field(&g, 5, text[5]);
        uint32_t *const numbers[] = {&d.dtype,   &d.layout, &d.n_layers,    &d.layer_first,
                                     &d.n_heads, &d.k_dim,  &d.v_dim,       &d.rank,
                                     &d.world,   &d.group,  &d.block_tokens};
        for (uint32_t i = 0; i < TSRI_COUNT(numbers); i++)
            *numbers[i] = golden_u32(&g, 6 + i);
        struct print p = print_of(&d);
        CHECK(golden_same(&g, 17, p.bytes, 16));
    }
    golden_fini(&g);
    CHECK_INT(n, 4);
}

/* The numbers of a description by offset, so that a field added to it is not forgotten here. */
#define NUMBER(name) \
    { \
#name, offsetof(struct tsr_space_desc, name) \
    }
static const struct {
    const char *name;
    size_t offset;
} numbers_of_desc[] = {NUMBER(dtype),   NUMBER(layout), NUMBER(n_layers),    NUMBER(layer_first),
                       NUMBER(n_heads), NUMBER(k_dim),  NUMBER(v_dim),       NUMBER(rank),
                       NUMBER(world),   NUMBER(group),  NUMBER(block_tokens)};
static const size_t texts_of_desc[] = {
    offsetof(struct tsr_space_desc, model), offsetof(struct tsr_space_desc, tokenizer),
    offsetof(struct tsr_space_desc, adapter), offsetof(struct tsr_space_desc, salt),
    offsetof(struct tsr_space_desc, rope)};

TEST(this_test_knows_every_field_of_a_description)
{
    size_t known = sizeof(size_t) * 2 + sizeof(void *) +
                   TSRI_COUNT(texts_of_desc) * sizeof(char *) +
                   TSRI_COUNT(numbers_of_desc) * sizeof(uint32_t);
    CHECK_INT(tsri_align_up(known, sizeof(void *)), sizeof(struct tsr_space_desc));
}

TEST(changing_any_single_field_changes_the_fingerprint)
{
    struct print prints[64];
    size_t n = 0;
    struct tsr_space_desc d = full();
    prints[n++] = print_of(&d);
    for (size_t i = 0; i < TSRI_COUNT(numbers_of_desc); i++) {
        d = full();
        uint32_t *field = (uint32_t *)(void *)((char *)&d + numbers_of_desc[i].offset);
        *field += 1;
        if (field == &d.layout) d.n_heads = 1; /* as MLA has it; compared with that below */
        prints[n++] = print_of(&d);
    }
    d = full();
    d.n_heads = 1;
    prints[n++] = print_of(&d);
    const char *const texts[] = {NULL, "other"};
    for (size_t i = 0; i < TSRI_COUNT(texts_of_desc); i++)
        for (size_t k = i ? 0 : 1; k < 2; k++) { /* the model must be there */
            d = full();
            *(const char **)(void *)((char *)&d + texts_of_desc[i]) = texts[k];
            prints[n++] = print_of(&d);
        }
    d = full();
    d.weights_bytes = 32;
    prints[n++] = print_of(&d);
    d = full();
    d.weights = weights + 1;
    prints[n++] = print_of(&d);
    d = full();
    d.weights = NULL, d.weights_bytes = 0;
    prints[n++] = print_of(&d);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            CHECK(!same(prints[i], prints[j]));
}

TEST(text_moved_from_one_field_to_the_next_is_another_space)
{
    struct tsr_space_desc a = full(), b = full();
    a.adapter = "xy", a.salt = "z";
    b.adapter = "x", b.salt = "yz";
    CHECK(!same(print_of(&a), print_of(&b)));
    b.adapter = NULL, b.salt = "xyz";
    CHECK(!same(print_of(&a), print_of(&b)));
}

TEST(a_default_left_out_and_the_same_value_given_are_one_space)
{
    struct tsr_space_desc a = full(), b = full();
    a.v_dim = 0, b.v_dim = b.k_dim;
    CHECK(same(print_of(&a), print_of(&b)));
    a = full(), b = full();
    a.rank = b.rank = 0;
    a.world = 0, b.world = 1;
    CHECK(same(print_of(&a), print_of(&b)));
    a = full(), b = full();
    a.salt = NULL, b.salt = "";
    CHECK(same(print_of(&a), print_of(&b)));
    a = full(), b = full();
    a.layout = b.layout = TSR_LAYOUT_MLA;
    a.n_heads = 0, b.n_heads = 1;
    CHECK(same(print_of(&a), print_of(&b)));
    a.v_dim = 0, b.v_dim = b.k_dim; /* MLA without V is not MLA with one */
    CHECK(!same(print_of(&a), print_of(&b)));
}

TEST(a_bad_description_is_refused_by_the_name_of_its_field)
{
    static char long_text[TSRI_SPACE_TEXT_MAX + 2];
    memset(long_text, 'x', sizeof long_text - 1);
    struct tsr_space_desc d;
#define REFUSED(change, says) \
    do { \
        d = full(); \
        change; \
        CHECK_INT(tsri_space_check(&d), TSR_EINVAL); \
        CHECK_HAS(tsr_errmsg(), says); \
    } while (0)
    REFUSED(d.model = NULL, "model");
    REFUSED(d.model = "", "model");
    REFUSED(d.model = long_text, "model");
    REFUSED(d.weights = NULL, "weights");
    REFUSED(d.weights_bytes = 0, "weights");
    REFUSED(d.weights_bytes = TSRI_SPACE_TEXT_MAX + 1, "weights_bytes");
    REFUSED(d.tokenizer = long_text, "tokenizer");
    REFUSED(d.adapter = long_text, "adapter");
    REFUSED(d.salt = long_text, "salt");
    REFUSED(d.rope = long_text, "rope");
    REFUSED(d.dtype = 0, "dtype 0 is missing");
    REFUSED(d.dtype = TSR_DTYPE_OPAQUE + 1, "dtype 6 is unknown");
    REFUSED(d.layout = TSR_LAYOUT_OPAQUE + 1, "unknown layout 3");
    REFUSED(d.n_layers = 0, "n_layers is 0");
    REFUSED(d.n_layers = TSRI_SPACE_LAYERS_MAX + 1, "n_layers");
    REFUSED(d.layer_first = UINT32_MAX, "layer_first");
    REFUSED(d.n_heads = 0, "n_heads is 0");
    REFUSED(d.n_heads = TSRI_SPACE_HEADS_MAX + 1, "n_heads");
    REFUSED((d.layout = TSR_LAYOUT_MLA, d.n_heads = 2), "n_heads is 2");
    REFUSED(d.k_dim = 0, "k_dim is 0");
    REFUSED(d.k_dim = TSRI_SPACE_DIM_MAX + 1, "k_dim");
    REFUSED(d.v_dim = TSRI_SPACE_DIM_MAX + 1, "v_dim");
    REFUSED(d.rank = 4, "rank is 4, not 0 to 3");
    REFUSED((d.world = 0, d.rank = 1), "rank");
    REFUSED(d.world = TSRI_SPACE_RANKS_MAX + 1, "world");
    REFUSED(d.group = UINT32_MAX, "group");
    REFUSED(d.block_tokens = TSRI_SPACE_BLOCK_MAX + 1, "block_tokens");
    CHECK_INT(tsri_space_check(NULL), TSR_EINVAL);
}

TEST(texts_up_to_the_limit_are_taken)
{
    static char text[TSRI_SPACE_TEXT_MAX + 1];
    memset(text, 'x', sizeof text - 1);
    struct tsr_space_desc d = full();
    d.rope = text;
    struct print a = print_of(&d);
    text[TSRI_SPACE_TEXT_MAX - 1] = 'y';
    CHECK(!same(a, print_of(&d)));
}

int main(void)
{
    RUN(fingerprints_are_the_golden_ones);
    RUN(this_test_knows_every_field_of_a_description);
    RUN(changing_any_single_field_changes_the_fingerprint);
    RUN(text_moved_from_one_field_to_the_next_is_another_space);
    RUN(a_default_left_out_and_the_same_value_given_are_one_space);
    RUN(a_bad_description_is_refused_by_the_name_of_its_field);
    RUN(texts_up_to_the_limit_are_taken);
    return test_end();
}
