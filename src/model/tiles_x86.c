/* tiles_x86.c - may this process use AMX? The kernel keeps its registers for those who ask only. */
#include "model/tiles_x86.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ASK_FOR_STATE 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define STATE_OF_TILES 18

static bool here;

static bool processor_can(void)
{
    uint32_t a, b, c, d;
    /* gcc 12 and clang 14 know no names for it. */
    bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    return tiles && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}

static void ask(void)
{
    here = processor_can() && syscall(SYS_arch_prctl, ASK_FOR_STATE, STATE_OF_TILES) == 0;
}

bool tsri_tiles_here(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return here;
}

#else

bool tsri_tiles_here(void)
{
    return false;
}

#endif
