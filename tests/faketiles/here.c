/* here.c - in place of tiles_x86.c: fake tiles need AVX-512 alone. And the tiles of each thread. */
#include "faketiles/tiles.h"
#include "model/model.h"

#if defined(__x86_64__)
_Thread_local struct fake_tiles fake_tiles;
#endif

bool tsri_tiles_here(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}
