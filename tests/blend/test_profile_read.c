/* What is read of a profile, and what is refused. */
#include "blend/blend.h"
#include "support/test.h"
#include "support/tmpdir.h"

static int parse(struct tsr_profile *p, const char *text)
{
    return tsr_profile_parse(p, text, strlen(text), "p.yaml");
}

TEST(what_is_no_profile_is_refused_with_its_place_and_changes_nothing)
{
    const struct {
        const char *text, *says;
    } bad[] = {{"ratio: 2", "p.yaml:1:8"},
               {"ratio: nan", "not a number"},
               {"ratio: 0.1\nratio: 0.2", "p.yaml:2:1"},
               {"ratoi: 0.1", "unknown key \"ratoi\""},
               {"version: 2", "unknown version"},
               {"selector: best", "unknown selector"},
               {"context: other", "none of same, pure, primer"},
               {"primer: [a]", "missing or too long"},
               {"primer: \"a\\0b\"", "missing or too long"},
               {"boundary: 1.5", "whole"},
               {"query_layers: [0.5, 0.5]", "ascending"},
               {"query_layers: [0, 1.1]", "shares of the depth"},
               {"query_layers: [0.5]", "too short"},
               {"space: xyz", "fingerprint"},
               {"space: 0011", "fingerprint"},
               {"bias: 3", "not a list"},
               {"bias: [[0, 1], [0, 2]]", "ascend"},
               {"bias: [[0, 1, 2]]", "too long"},
               {"bias: [[0]]", "too short"},
               {"rounds: [0.1, 0.1]", "ascend"},
               {"rounds: [0.1, 1]", "between 0 and 1"},
               {"rounds: [0]", "between 0 and 1"},
               {"rounds: [.1, .2, .3, .4, .5, .6, .7, .8, .9]", "too long"},
               {"gate: [1, 2, 3]", "not a mapping"},
               {"gate: {mood: 1}", "unknown weight \"mood\""},
               {"gate: {moved: x}", "not a number"},
               {"gate: {moved: 1, moved: 2}", "duplicate"},
               {"gate_limit: 1.5", "not a number in range"},
               {"lead: 3", "not a mapping"},
               {"lead: {draft: 3}", "unknown key \"draft\""},
               {"lead: {draft_floor: -1}", "not a number in range"},
               {"lead: {gate_limit: nan}", "not a number in range"},
               {"lead: {rounds: [0.2, 0.1]}", "ascend"},
               {"lead: {gate: {mood: 1}}", "unknown weight \"mood\""},
               {"lead: {rounds: [0.1], rounds: [0.2]}", "duplicate"},
               {"checks: [{layer: 1}, {layers: 1}]", "layers"},
               {"checks: [3]", "not a mapping"},
               {"checks: [{}, {}, {}, {}, {}]", "too long"},
               {"frontier: [{kl: -1}]", "not a number"},
               {"[1, 2]", "not a mapping"},
               {"a: [", "p.yaml:2"},
               {"ratio: {a: 1}", "not a number"},
               {"model: [a]", "missing or too long"}};
    struct tsr_profile p, before;
    tsr_profile_init(&p);
    p.ratio = 0.33;
    before = p;
    for (uint32_t i = 0; i < TSRI_COUNT(bad); i++) {
        CHECK_INT(parse(&p, bad[i].text), TSR_ECONFIG);
        CHECK_HAS(tsr_errmsg(), bad[i].says);
        CHECK(memcmp(&p, &before, sizeof p) == 0);
    }
}

TEST(a_primer_has_its_limit)
{
    struct tsr_profile p;
    char text[TSR_PROFILE_PRIMER_BYTES + 64];
    size_t n = strlen(strcpy(text, "primer: "));
    memset(text + n, 'x', TSR_PROFILE_PRIMER_BYTES);
    text[n + TSR_PROFILE_PRIMER_BYTES] = 0;
    CHECK_INT(parse(&p, text), TSR_ECONFIG);
    text[n + TSR_PROFILE_PRIMER_BYTES - 1] = 0;
    CHECK_INT(parse(&p, text), 0);
}

TEST(what_is_no_file_is_not_waited_for)
{
    struct tsr_profile p;
    tsr_profile_init(&p);
    CHECK_INT(tsr_profile_load(&p, "/nowhere/profile.yaml"), TSR_ENOENT);
    CHECK_INT(tsr_profile_load(&p, NULL), TSR_EINVAL);
    struct tmpdir dir;
    tmpdir_init(&dir);
    char fifo[300];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir.path);
    CHECK_INT(mkfifo(fifo, 0600), 0); /* nobody writes to it: a plain open would wait */
    CHECK_INT(tsr_profile_load(&p, fifo), TSR_EIO);
    tmpdir_fini(&dir);
}

int main(void)
{
    RUN(what_is_no_profile_is_refused_with_its_place_and_changes_nothing);
    RUN(a_primer_has_its_limit);
    RUN(what_is_no_file_is_not_waited_for);
    return test_end();
}
