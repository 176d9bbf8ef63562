/* fuzz_questions.c - any bytes as a file of questions. Refused ones say where; accepted ones have all
 * that a measurement needs, and names that a table can hold. */
#include "lab/quality.h"

#include "as_file.h"
#include "support/said.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    said_init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsri_questions f;
    const char *path = as_file(data, size);
    if (tsri_questions_load(&f, path) != 0) {
        require(strstr(said(), path) != NULL);
        return 0;
    }
    for (size_t i = 0; i < f.n; i++) {
        const struct tsri_question *q = &f.items[i];
        require(q->question && q->n_documents > 0 && (q->system || !q->plain));
        require(!strpbrk(q->id, ",\"\n\r") && !strpbrk(q->set, ",\"\n\r"));
        for (size_t d = 0; d < q->n_documents; d++)
            require(q->documents[d] != NULL);
        for (size_t a = 0; a < q->n_answers; a++)
            require(q->answers[a] != NULL);
    }
    tsri_questions_fini(&f);
    return 0;
}
