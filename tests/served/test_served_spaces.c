/* test_served_spaces.c - the spaces of a client. */
#include "served/served.h"

#include "support/served_kit.h"
#include "support/test.h"

TEST(spaces_come_and_go_and_are_told_apart)
{
    struct server_kit s;
    struct kit k;
    server_open(&s, NULL);
    served_kit_open(&k, s.path, (const char *const[]){"spaces_max", "2", NULL});
    uint32_t *tokens = kit_tokens(3, 64);
    struct tsr_prompt p = kit_prefix_prompt(tokens, 64);
    struct kit other = k;
    for (uint32_t i = 0; i < 20; i++) { /* the same slot here, another space each time */
        struct tsr_space_desc desc = kit_desc();
        desc.group = i % 5 + 1;
        other.space = kit_space(k.cache, &desc);
        CHECK_INT(kit_find_prefix(&other, tokens, 64), i < 5 ? 0 : 64);
        if (i < 5) CHECK_INT(kit_store_prefix(&other, tokens, 64), 64);
        CHECK_INT(kit_load_and_check(&other, &p), 64);
        tsr_space_close(other.space);
    }
    CHECK_INT(kit_find_prefix(&k, tokens, 64), 0);
    kit_close(&k);
    free(tokens);
    CHECK(server_end(&s));
}

int main(void)
{
    RUN(spaces_come_and_go_and_are_told_apart);
    return test_end();
}
