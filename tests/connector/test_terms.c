/* What both halves agree on. */
#include "support/connector_kit.h"
#include "support/test.h"

static struct ck k;

static int terms(struct tsri_terms *t, const struct tsr_connector_desc *d)
{
    return tsri_terms_init(t, k.cache, d, TSRI_ALL_RANKS);
}

TEST(both_halves_come_to_the_same_identity)
{
    struct tsri_terms *a = &k.scheduler->terms, *b = &k.workers[1]->terms;
    CHECK(memcmp(a->identity, b->identity, sizeof a->identity) == 0);
    CHECK_INT(a->chunk_tokens, b->chunk_tokens);
    CHECK(a->spaces[0] && a->spaces[1]);
    CHECK(!b->spaces[0] && b->spaces[1]); /* a worker has its own rank's alone */
}

TEST(any_difference_gives_another_identity)
{
    struct tsri_terms a, b;
    struct tsr_connector_desc d = k.desc;
    CHECK_INT(terms(&a, &d), 0);
    d.chunk_tokens *= 2;
    CHECK_INT(terms(&b, &d), 0);
    CHECK(memcmp(a.identity, b.identity, 16) != 0);
    tsri_terms_fini(&b);
    d = k.desc;
    struct tsr_space_desc spaces[2] = {k.spaces[0], k.spaces[1]};
    spaces[1].adapter = "another";
    d.spaces = spaces;
    CHECK_INT(terms(&b, &d), 0);
    CHECK(memcmp(a.identity, b.identity, 16) != 0);
    tsri_terms_fini(&b);
    tsri_terms_fini(&a);
}

TEST(what_cannot_be_is_refused)
{
    struct tsri_terms t;
    struct tsr_connector_desc d = k.desc;
    d.chunk_tokens = 12; /* no multiple of a block */
    CHECK_INT(terms(&t, &d), TSR_EINVAL);
    struct tsr_group odd = {.size = sizeof odd, .block_tokens = 65537};
    d = k.desc;
    d.groups = &odd;
    CHECK_INT(terms(&t, &d), TSR_EUNSUP);
    odd.block_tokens = 0;
    CHECK_INT(terms(&t, &d), TSR_EUNSUP);
    odd = (struct tsr_group){.size = sizeof odd, .block_tokens = 4, .flags = 2};
    CHECK_INT(terms(&t, &d), TSR_EINVAL);
    odd.flags = TSR_GROUP_STATE; /* and nothing else */
    CHECK_INT(terms(&t, &d), TSR_EUNSUP);
    d = k.desc;
    d.n_ranks = 65;
    CHECK_INT(terms(&t, &d), TSR_ERANGE);
    d = k.desc;
    d.flags = 1u << 20;
    CHECK_INT(terms(&t, &d), TSR_EINVAL);
    d = k.desc;
    d.boundary = 7;
    CHECK_INT(terms(&t, &d), TSR_EINVAL);
    d = k.desc;
    struct tsr_space_desc same[2] = {k.spaces[0], k.spaces[0]};
    d.spaces = same;
    CHECK_INT(terms(&t, &d), TSR_EINVAL); /* two ranks must never share a byte */
    d.spaces = NULL;
    CHECK_INT(terms(&t, &d), TSR_EINVAL);
    CHECK_INT(tsri_terms_init(&t, k.cache, &k.desc, 2), TSR_EINVAL);
}

/* Pipeline stages have the same tensor-parallel rank and other layers. */
TEST(stages_are_told_apart_by_their_layers)
{
    struct tsri_terms t;
    struct tsr_connector_desc d = k.desc;
    struct tsr_space_desc stages[2] = {k.spaces[0], k.spaces[0]};
    stages[1].layer_first = CK_LAYERS;
    stages[1].n_layers = CK_LAYERS + 1; /* they need not have equally many */
    d.spaces = stages;
    CHECK_INT(terms(&t, &d), 0);
    CHECK(t.spaces[0] && t.spaces[1]);
    CHECK(memcmp(t.identity, k.scheduler->terms.identity, sizeof t.identity) != 0);
    tsri_terms_fini(&t);
}

TEST(a_chunk_is_made_a_multiple_of_the_blocks)
{
    struct tsri_terms t;
    struct tsr_connector_desc d = k.desc;
    struct tsr_group big = {.size = sizeof big, .block_tokens = 512};
    d.groups = &big;
    d.chunk_tokens = 0;
    CHECK_INT(terms(&t, &d), 0);
    CHECK_INT(t.chunk_tokens, 512);
    tsri_terms_fini(&t);
    big.block_tokens = 64;
    CHECK_INT(terms(&t, &d), 0);
    CHECK_INT(t.chunk_tokens, 256); /* option chunk_size */
    tsri_terms_fini(&t);
}

TEST(media_are_cut_at_chunk_boundaries)
{
    struct tsri_extras x;
    struct tsr_extra e[] = {
        {.kind = TSR_EXTRA_MEDIA, .offset = 10, .n_tokens = 30, .bytes = 3, .data = "abc"},
        {.kind = TSR_EXTRA_SALT, .bytes = 2, .data = "xy"}};
    CHECK_INT(tsri_extras_init(&x, e, 2, 64, 16), 0);
    CHECK_INT(x.n, 4);
    CHECK_INT(x.items[0].kind, TSR_EXTRA_SALT);
    CHECK_INT(x.items[1].offset, 10);
    CHECK_INT(x.items[1].n_tokens, 6);
    CHECK_INT(x.items[2].offset, 16);
    CHECK_INT(x.items[2].n_tokens, 16);
    CHECK_INT(x.items[3].offset, 32);
    CHECK_INT(x.items[3].n_tokens, 8);
    CHECK(memcmp(x.items[3].data, "abc", 3) == 0);
    CHECK_INT(tsri_extras_within(&x, 16), 2);
    CHECK_INT(tsri_extras_within(&x, 32), 3);
    CHECK_INT(tsri_extras_within(&x, 64), 4);
    tsri_extras_fini(&x);
    e[0].n_tokens = 100; /* beyond the prompt */
    CHECK(tsri_extras_init(&x, e, 2, 64, 16) < 0);
}

int main(void)
{
    ck_open(&k, &(struct ck_options){.n_ranks = 2});
    RUN(both_halves_come_to_the_same_identity);
    RUN(any_difference_gives_another_identity);
    RUN(what_cannot_be_is_refused);
    RUN(stages_are_told_apart_by_their_layers);
    RUN(a_chunk_is_made_a_multiple_of_the_blocks);
    RUN(media_are_cut_at_chunk_boundaries);
    ck_close(&k);
    return test_end();
}
