/* faults.c - calls of the fake GPU that fail on demand: the n-th, some at random, or all of them
 * once the device is lost. */
#include "fakegpu/parts.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const names[FAKE_N_OPS] = {
    "open",       "alloc",        "host_alloc", "host_register", "stream_open", "stream_sync",
    "event_open", "event_record", "event_wait", "event_sync",    "copy",        "batch_open",
    "batch_set",  "gather",       "scatter",    "top_k"};

static struct fault {
    uint64_t n_calls, fails_at; /* 0: never */
    int err;
    uint32_t per_1000;
} faults[FAKE_N_OPS];
static uint64_t dice = 1;

static uint32_t roll(void)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(dice >> 33) % 1000;
}

static struct fault *by_name(const char *op)
{
    for (uint32_t i = 0; i < FAKE_N_OPS; i++)
        if (strcmp(names[i], op) == 0) return &faults[i];
    fake_die("there is no operation \"%s\"", op);
}

int fake_fault(struct tsr_device *d, enum fake_op_name op)
{
    char text[96];
    pthread_mutex_lock(&fake.lock);
    struct fault *f = &faults[op];
    bool planned = ++f->n_calls == f->fails_at, lost = fake.lost;
    int err = planned ? f->err : f->per_1000 && roll() < f->per_1000 ? TSR_EDEVICE : 0;
    if (lost) err = TSR_EDEVICE;
    pthread_mutex_unlock(&fake.lock);
    if (!err) return 0;
    snprintf(text, sizeof text, "fakegpu: %s: %s", names[op],
             lost ? "the device is lost" : "failed as it was told to");
    return d->fail(err, text);
}

void fake_control_fail(const char *op, uint64_t n, int err)
{
    pthread_mutex_lock(&fake.lock);
    struct fault *f = by_name(op);
    f->fails_at = n ? f->n_calls + n : 0;
    f->err = err;
    pthread_mutex_unlock(&fake.lock);
}

void fake_control_fail_often(const char *op, uint32_t per_1000)
{
    pthread_mutex_lock(&fake.lock);
    by_name(op)->per_1000 = per_1000;
    dice = fake.seed * 2 + 1;
    pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_control_calls(const char *op)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t n = by_name(op)->n_calls;
    pthread_mutex_unlock(&fake.lock);
    return n;
}

void fake_faults_reset(void)
{
    memset(faults, 0, sizeof faults);
}

/* "scatter:3,event_sync:1" */
void fake_faults_from_env(void)
{
    const char *env = getenv("FAKEGPU_FAIL");
    char text[512], *rest = text, *part;
    snprintf(text, sizeof text, "%s", env ? env : "");
    while ((part = strsep(&rest, ",")) != NULL) {
        char *number = strchr(part, ':');
        if (!*part) continue;
        if (!number) fake_die("FAKEGPU_FAIL: \"%s\" has no number", part);
        *number++ = '\0';
        fake_control_fail(part, strtoull(number, NULL, 10), TSR_EDEVICE);
    }
}
