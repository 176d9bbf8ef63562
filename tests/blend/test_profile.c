/* Profiles as files. */
#include "blend/blend.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>

static int parse(struct tsr_profile *p, const char *text)
{
    return tsr_profile_parse(p, text, strlen(text), "p.yaml");
}

TEST(what_is_saved_is_loaded_again)
{
    struct tsr_profile p, q;
    struct tmpdir dir;
    char path[300];
    tsr_profile_init(&p);
    strcpy(p.space, "00112233445566778899aabbccddeeff");
    strcpy(p.model, "it's a model: #1");
    p.selector = TSR_SELECT_HKVD;
    p.context = TSR_CONTEXT_PURE;
    p.ratio = 0.05;
    p.boundary = 3, p.first_tokens = 4, p.query_rows = 16, p.bias_reused = 0;
    p.bias_answer = 1;
    p.query_layers[0] = 0.25, p.query_layers[1] = 0.75;
    p.n_checks = 2;
    p.checks[1] = (struct tsr_check){.layer = 7, .ratio = 0.25, .threshold = 1.5};
    p.bias = (struct tsr_curve){.n = 2, .points = {{0, -0.7}, {1, 0}}};
    p.bias_chunks = (struct tsr_curve){.n = 1, .points = {{4, 0.5}}};
    p.n_rounds = 3, p.rounds[0] = 0.0625, p.rounds[1] = 0.25, p.rounds[2] = 0.5;
    p.gate_limit = 0.75;
    for (uint32_t i = 0; tsr_gate_weight_name(i); i++)
        p.gate[i] = i * 0.5 - 1;
    p.lead.n_rounds = 2, p.lead.rounds[0] = 0.03125, p.lead.rounds[1] = 0.125;
    p.lead.draft_floor = 0, p.lead.gate_limit = 0.875;
    p.lead.gate[0] = 3, p.lead.gate[2] = -1.5;
    p.n_frontier = TSR_PROFILE_FRONTIER_MAX;
    for (uint32_t i = 0; i < p.n_frontier; i++)
        p.frontier[i] = (struct tsr_frontier){.selector = 1 + i % 5,
                                              .context = 1 + i % 2,
                                              .n_prompts = i,
                                              .ratio = 0.25,
                                              .bias = -0.5,
                                              .layers_from = 0.5,
                                              .layers_to = 1,
                                              .n_rounds = i % 3,
                                              .kl = 0.125,
                                              .agreement = 0.75,
                                              .speedup = 12};
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/profile.yaml", dir.path);
    CHECK_INT(tsr_profile_save(&p, path), 0);
    CHECK_INT(tsr_profile_load(&q, path), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
    tmpdir_fini(&dir);
}

TEST(a_primer_is_loaded_as_it_was_saved_and_the_default_is_passages)
{
    struct tsr_profile p, q;
    struct tmpdir dir;
    char path[300], text[TSR_PROFILE_PRIMER_BYTES + 64];
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/profile.yaml", dir.path);
    tsr_profile_init(&p);
    CHECK(strlen(p.primer) > 500 && strcmp(p.primer, tsri_primer_text) == 0);
    uint32_t n_passages = 0;
    for (const char *at = p.primer; (at = strstr(at, "\n\n")); at += 2)
        n_passages++;
    CHECK_INT(n_passages, 6);
    CHECK(strcmp(p.primer + strlen(p.primer) - 2, "\n\n") == 0);
    p.context = TSR_CONTEXT_PRIMER;
    CHECK_INT(tsr_profile_save(&p, path), 0);
    CHECK_INT(tsr_profile_load(&q, path), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
    memset(p.primer, 0, sizeof p.primer);
    strcpy(p.primer, " \"Z\xc3\xbcrich\": it's 5 %\\\n\tC:\\new # no\r\x01\x7f\n\n");
    CHECK_INT(tsr_profile_save(&p, path), 0);
    CHECK_INT(tsr_profile_load(&q, path), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
    size_t n = strlen(strcpy(text, "primer: "));
    memset(text + n, 'x', TSR_PROFILE_PRIMER_BYTES);
    text[n + TSR_PROFILE_PRIMER_BYTES] = 0;
    CHECK_INT(parse(&q, text), TSR_ECONFIG);
    text[n + TSR_PROFILE_PRIMER_BYTES - 1] = 0;
    CHECK_INT(parse(&q, text), 0);
    tmpdir_fini(&dir);
}

TEST(of_a_leading_document_only_what_is_given_is_loaded_and_saved)
{
    struct tsr_profile p, q;
    struct tmpdir dir;
    char path[300];
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/profile.yaml", dir.path);
    tsr_profile_init(&p);
    CHECK(p.lead.n_rounds == 0 && isnan(p.lead.draft_floor) && isnan(p.lead.gate_limit));
    const char *const texts[] = {"lead: {}", "lead: {rounds: [0.05]}", "lead: {draft_floor: 0}",
                                 "lead: {gate_limit: 0.5}", "lead: {gate: {constant: 2}}"};
    for (uint32_t i = 0; i < TSRI_COUNT(texts); i++) {
        CHECK_INT(parse(&p, texts[i]), 0);
        CHECK(p.lead.n_rounds == (i == 1) && p.lead.rounds[0] == (i == 1 ? 0.05 : 0));
        CHECK(i == 2 ? p.lead.draft_floor == 0 : isnan(p.lead.draft_floor));
        CHECK(i == 3 ? p.lead.gate_limit == 0.5 : isnan(p.lead.gate_limit));
        CHECK(p.lead.gate[0] == (i == 4 ? 2 : 0));
        CHECK_INT(tsr_profile_save(&p, path), 0);
        CHECK_INT(tsr_profile_load(&q, path), 0);
        CHECK(memcmp(&p, &q, sizeof p) == 0);
    }
    tmpdir_fini(&dir);
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

TEST(files_that_are_not_there_or_cannot_be_written_say_so)
{
    struct tsr_profile p;
    tsr_profile_init(&p);
    CHECK_INT(tsr_profile_load(&p, "/nowhere/profile.yaml"), TSR_ENOENT);
    struct tmpdir dir;
    tmpdir_init(&dir);
    char fifo[300];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir.path);
    CHECK_INT(mkfifo(fifo, 0600), 0); /* nobody writes to it: a plain open would wait */
    CHECK_INT(tsr_profile_load(&p, fifo), TSR_EIO);
    tmpdir_fini(&dir);
    CHECK_INT(tsr_profile_save(&p, "/nowhere/profile.yaml"), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "/nowhere");
    CHECK_INT(tsr_profile_load(&p, NULL), TSR_EINVAL);
}

int main(void)
{
    RUN(what_is_saved_is_loaded_again);
    RUN(a_primer_is_loaded_as_it_was_saved_and_the_default_is_passages);
    RUN(of_a_leading_document_only_what_is_given_is_loaded_and_saved);
    RUN(an_empty_profile_is_the_default);
    RUN(what_is_no_profile_is_refused_with_its_place_and_changes_nothing);
    RUN(files_that_are_not_there_or_cannot_be_written_say_so);
    return test_end();
}
