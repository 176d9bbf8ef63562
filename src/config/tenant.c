/* tenant.c - whose entries those of a cache are, on servers that several caches share. A tenant is
 * a name: caches of one name share what they put there, and caches of different names never meet.
 * Where the option is not set it is the user of the process, uid-N. A name may have parts, joined
 * by dots: a server puts its clients below its own name (daemon/tenants.c). */
#include "config/config.h"

#include <stdio.h>
#include <unistd.h>

#define PART_MAX 32u

/* None of these means anything in a path, a pattern of Redis or a URL. */
static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

bool tsri_tenant_is_part(const char *text)
{
    size_t n = strspn(text, letters);
    return n > 0 && n <= PART_MAX && text[n] == '\0';
}

bool tsri_tenant_is_name(const char *text)
{
    if (strlen(text) > TSRI_TENANT_MAX) return false;
    for (;;) {
        size_t n = strspn(text, letters);
        if (n == 0 || n > PART_MAX) return false;
        text += n;
        if (*text == '\0') return true;
        if (*text++ != '.') return false;
    }
}

void tsri_tenant_of(char out[TSRI_TENANT_MAX + 1], const struct tsr_config *cfg)
{
    const char *set = cfg ? tsri_config_options(cfg)->tenant : "";
    if (set[0])
        snprintf(out, TSRI_TENANT_MAX + 1, "%s", set);
    else
        snprintf(out, TSRI_TENANT_MAX + 1, "uid-%u", (unsigned)geteuid());
}
