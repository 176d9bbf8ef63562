/* test_tiles_x86.c - tiles are used where the processor has them, and only there. */
#ifdef TSRI_HAVE_LLAMA
#include "model/model.h"
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The kernel's own list, which leaves out what it does not keep the registers of. */
static bool listed(const char *flag)
{
    char line[8192], *at;
    bool found = false;
    FILE *in = fopen("/proc/cpuinfo", "r");
    while (in && !found && fgets(line, sizeof line, in))
        found = strncmp(line, "flags", 5) == 0 && (at = strstr(line, flag)) &&
                strchr(" \n", at[strlen(flag)]);
    if (in) fclose(in);
    return found;
}

TEST(tiles_are_here_where_the_processor_has_them)
{
    if (!listed(" amx_bf16") || !listed(" avx512_bf16")) CHECK(!tsri_tiles_here());
    if (!tsri_tiles_here()) SKIP("this processor has no AMX, or the kernel does not let us use it");
    CHECK(listed(" amx_tile") && listed(" amx_bf16") && listed(" avx512_bf16"));
}

static void *ask(void *arg)
{
    *(bool *)arg = tsri_tiles_here();
    return NULL;
}

TEST(all_threads_get_the_same_answer)
{
    enum { N = 8 };
    pthread_t threads[N];
    bool here[N];
    for (int i = 0; i < N; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, ask, &here[i]), 0);
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        CHECK(here[i] == tsri_tiles_here());
    }
}

int main(void)
{
    RUN(all_threads_get_the_same_answer); /* first, so that they ask */
    RUN(tiles_are_here_where_the_processor_has_them);
    return test_end();
}
#else
#include "model/absent.h"
#endif
