/* What is saved is loaded again. */
#include "blend/blend.h"
#include "support/test.h"
#include "support/tmpdir.h"

#include <math.h>

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

TEST(a_primer_is_loaded_as_it_was_saved)
{
    struct tsr_profile p, q;
    struct tmpdir dir;
    char path[300];
    tmpdir_init(&dir);
    snprintf(path, sizeof path, "%s/profile.yaml", dir.path);
    tsr_profile_init(&p);
    p.context = TSR_CONTEXT_PRIMER;
    CHECK_INT(tsr_profile_save(&p, path), 0);
    CHECK_INT(tsr_profile_load(&q, path), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
    memset(p.primer, 0, sizeof p.primer);
    strcpy(p.primer, " \"Z\xc3\xbcrich\": it's 5 %\\\n\tC:\\new # no\r\x01\x7f\n\n");
    CHECK_INT(tsr_profile_save(&p, path), 0);
    CHECK_INT(tsr_profile_load(&q, path), 0);
    CHECK(memcmp(&p, &q, sizeof p) == 0);
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
        CHECK_INT(tsr_profile_parse(&p, texts[i], strlen(texts[i]), "p.yaml"), 0);
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

TEST(a_file_that_cannot_be_written_is_named)
{
    struct tsr_profile p;
    tsr_profile_init(&p);
    CHECK_INT(tsr_profile_save(&p, "/nowhere/profile.yaml"), TSR_EIO);
    CHECK_HAS(tsr_errmsg(), "/nowhere");
}

int main(void)
{
    RUN(what_is_saved_is_loaded_again);
    RUN(a_primer_is_loaded_as_it_was_saved);
    RUN(of_a_leading_document_only_what_is_given_is_loaded_and_saved);
    RUN(a_file_that_cannot_be_written_is_named);
    return test_end();
}
