/* test_status.c - what a server says about itself is what happened: numbers of every tenant, tiers,
 * spaces and slow calls, in both formats, and never past the end of a buffer. */
#include "daemon/daemon.h"

#include "support/test.h"
#include "support/wire_client.h"

#define TEXT_BYTES ((size_t)256 << 10)

static char text[TEXT_BYTES];

static bool has(const char *part)
{
    if (strstr(text, part)) return true;
    printf("    no %s in %.2000s\n", part, text);
    return false;
}

TEST(what_clients_did_is_reported)
{
    struct server_kit s;
    struct wire_client c;
    struct tsri_wire_match match;
    struct tsr_space_desc desc = kit_desc();
    server_open(&s, (const char *const[]){"prefill_rate", "1234", NULL});
    CHECK(wc_open(&c, s.path, 1 << 20));
    int space = wc_space(&c, &desc);
    CHECK(space >= 0);
    uint32_t *tokens = kit_tokens(7, 100);
    CHECK_INT(wc_store_segment(&c, s.k.space, (uint32_t)space, tokens, 100), 100);
    CHECK_INT(wc_find_segment(&c, (uint32_t)space, tokens, 100, 0, &match), 100);

    size_t n = tsri_status_json(s.server, NULL, text, sizeof text);
    CHECK(n > 0 && n < sizeof text && strlen(text) == n);
    CHECK(has("\"prefill_rate\":1234") && has("\"lookup_tokens_reused\":100"));
    CHECK(has("\"tiers\":[{\"name\":\"host\",\"entries\":1,\"tokens\":100,\"used\":"));
    CHECK(has("\"open\":2,\"entries\":1,") && has("\"slow\":["));
    char model[128];
    snprintf(model, sizeof model, "\"model\":\"%s\"", desc.model);
    CHECK(has(model));

    n = tsri_status_prometheus(s.server, text, sizeof text);
    CHECK(n < sizeof text && strlen(text) == n);
    CHECK(has("tessera_lookup_tokens_reused_total{tenant=\"its owner\"} 100\n"));
    CHECK(has("tessera_lookup_seconds_bucket{tenant=\"its owner\",le=\"+Inf\"} 1\n"));
    CHECK(has("tessera_lookup_seconds_count{tenant=\"its owner\"} 1\n"));
    free(tokens);
    wc_close(&c);
    CHECK(server_end(&s));
}

TEST(slow_calls_are_named)
{
    struct server_kit s;
    server_open(&s, NULL);
    struct tsri_slow_call call = {
        .ns = 2500000000u, .end_ns = tsri_now_ns(), .tenant = "a \"b\"", .call = "store"};
    tsri_slow_note(&s.server->slow, &call);
    CHECK(tsri_status_json(s.server, NULL, text, sizeof text) < sizeof text);
    CHECK(has("{\"call\":\"store\",\"tenant\":\"a \\\"b\\\"\",\"seconds\":2.500000,\"ago\":"));
    CHECK(server_end(&s));
}

TEST(a_buffer_that_is_too_small_is_filled_and_not_left)
{
    struct server_kit s;
    server_open(&s, NULL);
    size_t n = tsri_status_json(s.server, NULL, NULL, 0);
    char *small = malloc(n / 2);
    CHECK(small && n > 1000);
    CHECK(tsri_status_json(s.server, NULL, small, n / 2) > n / 2);
    CHECK_INT(strlen(small), n / 2 - 1);
    CHECK(tsri_status_prometheus(s.server, small, n / 2) > n / 2);
    CHECK_INT(strlen(small), n / 2 - 1);
    free(small);
    CHECK(server_end(&s));
}

int main(void)
{
    RUN(what_clients_did_is_reported);
    RUN(slow_calls_are_named);
    RUN(a_buffer_that_is_too_small_is_filled_and_not_left);
    return test_end();
}
