/* fuzz_profile.c - any bytes as a profile. Whatever they are: a refused text changes nothing and
 * says why, and an accepted one holds only what its tables can hold. */
#include "blend/blend.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsr_profile before, p;
    tsr_profile_init(&before);
    p = before;
    int err = tsr_profile_parse(&p, (const char *)data, size, "fuzz.yaml");
    require(err == 0 || err == TSR_ECONFIG);
    require(err == 0 || strncmp(tsr_errmsg(), "fuzz.yaml", 9) == 0);
    require(err == 0 || memcmp(&p, &before, sizeof p) == 0);
    require(p.n_checks <= TSR_PROFILE_CHECKS_MAX && p.n_frontier <= TSR_PROFILE_FRONTIER_MAX);
    require(p.bias.n <= TSR_PROFILE_POINTS_MAX && p.bias_chunks.n <= TSR_PROFILE_POINTS_MAX);
    require(p.ratio >= 0 && p.ratio <= 1 && tsr_selector_name(p.selector));
    require(p.n_rounds <= TSR_PROFILE_ROUNDS_MAX);
    require(p.query_layers[0] < p.query_layers[1] && p.query_layers[1] <= 1);
    require(tsr_profile_bias(&p, 0.1, 4) == tsr_profile_bias(&p, 0.1, 4));
    return 0;
}
