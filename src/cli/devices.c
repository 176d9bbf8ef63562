/* devices.c - the checks of `tessera doctor` about devices: which are there and what they are, and
 * for one that is not, why, in one line. A device is opened as a cache would open it. */
#include "cli/cli.h"
#include "device/device.h"

static void name_memory(const struct tsr_device_info *info, char *out, size_t bytes)
{
    char total[32], left[32];
    if (info->bytes_total == 0)
        snprintf(out, bytes, "memory not known");
    else
        snprintf(out, bytes, "%s, %s free", tsri_cli_size(info->bytes_total, total),
                 tsri_cli_size(info->bytes_free, left));
}

/* A device that is not there is no fault of the machine, unless it is wanted: most have none. */
void tsri_check_device(const char *name, const struct tsri_options *o, struct tsri_finding *f)
{
    bool wanted = strcmp(name, o->device) == 0;
    struct tsr_device_desc desc = {.size = sizeof desc,
                                   .ordinal = wanted ? o->device_number : 0,
                                   .flags = o->device_operators ? TSR_DEVICE_OPERATORS : 0};
    struct tsr_device_info info = {.size = sizeof info};
    struct tsri_device *d;
    char memory[96];
    int e = tsri_device_open(&d, name, &desc);
    if (e) {
        tsri_finding_say(f, wanted ? TSRI_DOCTOR_FAIL : TSRI_DOCTOR_OK, "not available: %s",
                         tsr_errmsg());
        if (wanted) tsri_finding_advise(f, "option device asks for it; see docs/backends.md");
        return;
    }
    e = tsri_device_info(d, &info);
    if (e) {
        tsri_finding_say(f, TSRI_DOCTOR_WARN, "opened, but not working: %s", tsr_errmsg());
        tsri_finding_advise(f, "the device is not used; check its driver");
    } else {
        name_memory(&info, memory, sizeof memory);
        tsri_finding_say(f, TSRI_DOCTOR_OK, "%s; %s%s%s", info.text, info.driver,
                         info.driver[0] ? "; " : "", memory);
    }
    tsri_device_close(d);
}
