/* fuzz_api.c - the body of a request from anybody who may connect: understood or refused in words,
 * never more. The first byte chooses the API, and whether texts are cut at separators. */
#include "serve/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct tsri_api_request q;
    struct tsri_refusal no = {0};
    if (bytes == 0) return 0;
    enum tsri_api api = data[0] & 1 ? TSRI_API_COMPLETIONS : TSRI_API_CHAT;
    const char *separator = data[0] & 2 ? "##" : "";
    bool fine = tsri_api_parse(&q, api, (const char *)data + 1, bytes - 1, separator, &no);
    if (!fine) TSR_ASSERT(no.status >= 400 && no.message[0]);
    for (uint32_t i = 0; fine && i < q.n_messages; i++)
        TSR_ASSERT(q.messages[i].role && strlen(q.messages[i].text) == q.messages[i].bytes);
    for (size_t i = 0; fine && i < q.n_documents; i++)
        TSR_ASSERT(q.documents[i].name && strlen(q.documents[i].text) == q.documents[i].bytes);
    json_decref(fine ? NULL : tsri_refusal_json(&no));
    tsri_api_fini(&q);
    return 0;
}
