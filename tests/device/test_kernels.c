/* The portable inner loops. */
#include "kernels.h"

int main(void)
{
    run_kernels(&tsri_kernels_plain);
    return test_end();
}
