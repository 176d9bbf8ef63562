/* The vector loops for x86-64, every set that this machine can run. */
#include "kernels.h"

TEST(this_machine_runs_a_set)
{
    SKIP(tsri_kernels_x86(0) ? "this processor lacks the instructions" : "not an x86-64 processor");
}

int main(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; tsri_kernels_x86(i); i++)
        if (tsri_kernels_x86(i)->supported()) {
            run_kernels(tsri_kernels_x86(i));
            n++;
        }
    if (!n) RUN(this_machine_runs_a_set);
    return test_end();
}
