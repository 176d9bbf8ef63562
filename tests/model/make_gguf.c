/* make_gguf - writes a small model with random weights, for tests that drive programs:
 *
 *   make_gguf OUT [ARCHITECTURE [CONTEXT [HEAD_DIM]]]
 */
#ifdef TSRI_HAVE_LLAMA
#include "model/gguf_kit.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct kit_model m = {.arch = argc > 2 ? argv[2] : NULL, .tied = true};
    if (argc > 3) m.context = (uint32_t)strtoul(argv[3], NULL, 10);
    if (argc > 4) m.head_dim = (uint32_t)strtoul(argv[4], NULL, 10);
    if (argc < 2 || !kit_write(argv[1], &m)) {
        fprintf(stderr, "usage: make_gguf OUT [ARCHITECTURE [CONTEXT [HEAD_DIM]]]\n");
        return 2;
    }
    return 0;
}
#else
typedef int make_needs_llama;
#endif
