/* features.c - which processor features the code can use here, by the names the system gives them.
 * Only those that change a path of ours or of the libraries that hash for us. */
#include "cli/cli.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static void add(char *buf, size_t bytes, bool has, const char *name)
{
    size_t used = strlen(buf);
    if (has) snprintf(buf + used, bytes - used, "%s%s", used ? " " : "", name);
}

const char *tsri_cli_cpu_features(char *buf, size_t bytes)
{
    buf[0] = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    add(buf, bytes, __builtin_cpu_supports("sse4.2"), "sse4.2");
    add(buf, bytes, __builtin_cpu_supports("avx2"), "avx2");
    add(buf, bytes, __builtin_cpu_supports("fma"), "fma");
    add(buf, bytes, __builtin_cpu_supports("avx512f"), "avx512f");
    add(buf, bytes, __builtin_cpu_supports("avx512bw"), "avx512bw");
    /* Not known to __builtin_cpu_supports of gcc 12; leaf 7, EBX bit 29. */
    unsigned a, b, c, d;
    add(buf, bytes, __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1), "sha");
#elif defined(__aarch64__)
    unsigned long caps = getauxval(AT_HWCAP);
    add(buf, bytes, caps & HWCAP_ASIMD, "asimd");
    add(buf, bytes, caps & HWCAP_ASIMDHP, "asimdhp");
    add(buf, bytes, caps & HWCAP_SHA2, "sha2");
    add(buf, bytes, caps & HWCAP_CRC32, "crc32");
    add(buf, bytes, caps & HWCAP_SVE, "sve");
#endif
    if (!buf[0]) add(buf, bytes, true, "none");
    return buf;
}
