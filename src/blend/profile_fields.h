/* profile_fields.h - the scalars of a profile: their names in the file, where they are in the struct
 * and what they may be. One table of each mapping, for the reader and the writer. Constants, for any
 * thread. */
#ifndef TSRI_PROFILE_FIELDS_H
#define TSRI_PROFILE_FIELDS_H

#include "blend/blend.h"

#define TSRI_PROFILE_VERSION 1

enum tsri_profile_type {
    TSRI_PROFILE_COUNT,
    TSRI_PROFILE_NUMBER,
    TSRI_PROFILE_SELECTOR,
    TSRI_PROFILE_CONTEXT
};

struct tsri_profile_field {
    const char *name;
    enum tsri_profile_type type;
    size_t offset; /* in the struct that the table is for */
    double min, max;
};

struct tsri_profile_table {
    const struct tsri_profile_field *at;
    size_t n;
};

/* Of struct tsr_profile, tsr_lead_profile, tsr_check and tsr_frontier. */
extern const struct tsri_profile_table tsri_profile_fields, tsri_lead_fields, tsri_check_fields,
    tsri_frontier_fields;

#endif
