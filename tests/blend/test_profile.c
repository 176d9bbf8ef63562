/* What a profile is that nobody measured. */
#include "blend/blend.h"
#include "support/test.h"

static int parse(struct tsr_profile *p, const char *text)
{
    return tsr_profile_parse(p, text, strlen(text), "p.yaml");
}

TEST(an_empty_profile_is_the_default)
{
    struct tsr_profile p, q;
    tsr_profile_init(&p);
    CHECK_INT(parse(&q, ""), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
    CHECK_INT(parse(&q, "version: 1\nbias: []\nfrontier: []\n"), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
}

TEST(the_default_primer_is_passages)
{
    struct tsr_profile p;
    tsr_profile_init(&p);
    CHECK(strlen(p.primer) > 500 && strcmp(p.primer, tsri_primer_text) == 0);
    uint32_t n_passages = 0;
    for (const char *at = p.primer; (at = strstr(at, "\n\n")); at += 2)
        n_passages++;
    CHECK_INT(n_passages, 6);
    CHECK(strcmp(p.primer + strlen(p.primer) - 2, "\n\n") == 0);
}

int main(void)
{
    RUN(an_empty_profile_is_the_default);
    RUN(the_default_primer_is_passages);
    return test_end();
}
