/* fuzz_yaml.c - any bytes as a YAML configuration. Whatever they are: a refused text changes
 * nothing and says why, and an accepted one leaves values that their own text sets again. */
#include "config/config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tsr_config *cfg, *again;
    if (tsr_config_open(&cfg) || tsr_config_open(&again)) return 0;
    int err = tsr_config_load_text(cfg, (const char *)data, size, "fuzz.yaml");
    require(err == 0 || err == TSR_ECONFIG);
    require(err == 0 || strncmp(tsr_errmsg(), "fuzz.yaml:", 10) == 0);
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        const char *value = tsri_config_value(cfg, o);
        require(err == 0 || strcmp(value, o->def) == 0);
        require(tsr_config_set(again, o->name, value) == 0);
        require(strcmp(tsri_config_value(again, o), value) == 0);
    }
    require(tsri_config_check(cfg) == tsri_config_check(again));
    tsr_config_close(again);
    tsr_config_close(cfg);
    return 0;
}
