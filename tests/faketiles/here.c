/* here.c - in place of tiles_x86.c: fake tiles need AVX-512 alone. */
#include "model/model.h"

bool tsri_tiles_here(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}
