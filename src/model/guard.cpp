/* guard.cpp - what libllama and ggml throw, and where they would abort, becomes an error that is
 * returned. A model file comes from anywhere; a vocabulary that libllama asserts about must not end
 * the program that opens it. libllama catches some of what it throws itself, not all, and ggml's
 * assertions call abort() unless a callback keeps them from it: ours throws, on a thread that is
 * inside a guard. Elsewhere assertions end the program as before. */
#include "model/model.h"

#include <exception>
#include <stdexcept>
#include <stdio.h>
#include <string.h>

static thread_local bool inside;
static ggml_abort_callback_t before;

/* The message begins with the path that ggml was built in, which tells nobody anything. */
static void refuse(const char *message)
{
    const char *end = strchr(message, ':');
    for (const char *at = message; end && at < end; at++)
        if (*at == '/') message = at + 1;
    if (inside) throw std::runtime_error(message);
    if (before)
        before(message);
    else
        fprintf(stderr, "%s\n", message);
}

void tsri_guard_init(void)
{
    before = ggml_set_abort_callback(refuse);
}

int tsri_guard(tsri_guarded_fn work, void *arg, tsri_fail_fn fail)
{
    bool outer = inside;
    int e;
    inside = true;
    try {
        e = work(arg);
    } catch (const std::exception &x) {
        e = tsri_model_fail(fail, TSR_ECORRUPT, "model: damaged: %.400s", x.what());
    } catch (...) {
        e = tsri_model_fail(fail, TSR_ECORRUPT, "model: damaged");
    }
    inside = outer;
    return e;
}
