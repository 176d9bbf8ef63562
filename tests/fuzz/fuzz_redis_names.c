/* Text that comes from a configuration or a server: addresses, redirections, names of keys. */
#include "redis/redis.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1), address[TSRI_REDIS_ADDRESS_BYTES];
    if (!text) return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    uint32_t slot;
    int err;
    for (uint32_t i = 0; i < 16 && tsri_redis_address(text, i, address, &err); i++)
        TSR_ASSERT(err || strlen(address) < sizeof address);
    if (tsri_redis_redirect(text, "host:1", &slot, address))
        TSR_ASSERT(slot < TSRI_REDIS_SLOTS && strlen(address) < sizeof address);
    TSR_ASSERT(tsri_redis_slot(text, bytes) < TSRI_REDIS_SLOTS);
    uint8_t space[16];
    struct tsr_key key;
    char name[TSRI_REDIS_NAME_BYTES];
    if (tsri_redis_is_record(text, bytes, "tessera", space, &key)) {
        tsri_redis_name(name, "tessera", space, &key, 0, TSRI_REDIS_RECORD);
        TSR_ASSERT(strlen(name) == bytes && memcmp(name, text, bytes) == 0);
    }
    free(text);
    return 0;
}
