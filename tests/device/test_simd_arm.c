/* The vector loops for Arm, every set that this machine can run. */
#include "kernels.h"

TEST(this_machine_runs_a_set)
{
    SKIP(tsri_kernels_arm(0) ? "this processor lacks the instructions" : "not an Arm processor");
}

/* Bit for bit, whatever the bits are: rounding a NaN is left out where arithmetic has made it. */
static void check_turn_is_wide_turn(uint32_t kind, uint32_t pairing, uint64_t *seed)
{
    enum { PAIRS = 64 };
    uint16_t in[2 * PAIRS], out[2 * PAIRS], out_wide[2 * PAIRS];
    float wide[2 * PAIRS], table[2 * PAIRS];
    for (uint32_t i = 0; i < 2 * PAIRS; i++) {
        in[i] = (uint16_t)(kv_random(seed) >> 16);
        if (kv_random(seed) >> 40 & 1) in[i] &= 0x8000; /* 0 with a sign */
    }
    for (uint32_t i = 0; i < PAIRS; i++) {
        double angle = (double)(kv_random(seed) >> 40);
        table[i] = (float)cos(angle);
        table[PAIRS + i] = (float)sin(angle);
    }
    struct tsri_turn t = {table, table + PAIRS, PAIRS};
    kernels->widen[kind](wide, in, 2 * PAIRS);
    kernels->turn[kind][pairing](out, 0, in, 0, 1, &t);
    kernels->turn_wide[kind][pairing](out_wide, 0, wide, 0, 1, &t);
    CHECK(memcmp(out, out_wide, sizeof out) == 0);
}

TEST(turning_16_bits_is_widening_them_and_turning)
{
    uint64_t seed = 5;
    for (uint32_t i = 0; i < 3000; i++)
        check_turn_is_wide_turn(i % 2 ? TSRI_F16 : TSRI_BF16, i / 2 % TSRI_N_PAIRINGS, &seed);
}

static void run_set(const struct tsri_kernels *k)
{
    run_kernels(k);
    RUN(turning_16_bits_is_widening_them_and_turning);
}

int main(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; tsri_kernels_arm(i); i++)
        if (tsri_kernels_arm(i)->supported()) {
            run_set(tsri_kernels_arm(i));
            n++;
        }
    if (!n) RUN(this_machine_runs_a_set);
    return test_end();
}
