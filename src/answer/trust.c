/* trust.c - how far an answer can be trusted: exactly that of a full read, or how likely the same. */
#include "answer/answer.h"

#include <math.h>

/* A prediction is never exact, whatever it is rounded to. */
#define SURE_MAX 0.9999

double tsri_trust_sure(const struct tsr_blend_report *r)
{
    bool exact = r->n_reused == 0 && r->bias == 0;
    if (exact || isnan(r->sure)) return exact ? 1 : NAN;
    return fmin(r->sure, SURE_MAX);
}

const char *tsri_trust_words(double sure)
{
    if (isnan(sure)) return "same answer as a full read: not calibrated for this model";
    if (sure >= 1) return "exactly the answer of a full read";
    if (sure >= 0.95) return "same answer as a full read: very likely";
    if (sure >= 0.8) return "same answer as a full read: likely";
    if (sure >= 0.5) return "same answer as a full read: uncertain";
    return "same answer as a full read: unlikely";
}
