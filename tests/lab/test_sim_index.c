/* test_sim_index.c - what an entry costs is measured, and is about what the structures say. */
#include "lab/simulate.h"

#include "support/test.h"

TEST(an_entry_costs_at_least_its_tokens_and_less_where_only_a_server_has_it)
{
    struct tsri_sim_index index;
    CHECK(tsri_sim_index_measure(&index, 256) == 0);
    printf("    %.0f bytes in host memory, %.0f elsewhere\n", index.host_bytes, index.cold_bytes);
    /* 64 bytes of entry and 4 a token; windows, shingles, index and policy. Sanitizers need more. */
    CHECK(index.host_bytes > 64 + 4 * 256 && index.host_bytes < 16384);
    CHECK(index.cold_bytes > 64 && index.cold_bytes < index.host_bytes);
}

int main(void)
{
    RUN(an_entry_costs_at_least_its_tokens_and_less_where_only_a_server_has_it);
    return test_end();
}
