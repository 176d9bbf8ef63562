/* profile_write.c - a profile as a YAML file, with the same numbers whatever the locale. It takes the
 * place of one that is there when all of it is written. */
#include "blend/profile_fields.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Nine digits, with a point in every locale. */
static const char *number(double value, char buf[32])
{
    snprintf(buf, 32, "%.9g", value);
    for (char *c = buf; *c; c++)
        if (*c == ',') *c = '.';
    return buf;
}

static void put_number(FILE *to, const char *before, double value, const char *after)
{
    char buf[32];
    fprintf(to, "%s%s%s", before, number(value, buf), after);
}

static void put_fields(FILE *to, const struct tsri_profile_table *fields, const void *from,
                       const char *between)
{
    for (size_t i = 0; i < fields->n; i++) {
        const struct tsri_profile_field *f = &fields->at[i];
        const void *at = (const uint8_t *)from + f->offset;
        if (i) fputs(between, to);
        fprintf(to, "%s: ", f->name);
        uint32_t count;
        double value;
        memcpy(&count, at, sizeof count);
        if (f->type == TSRI_PROFILE_NUMBER) {
            memcpy(&value, at, sizeof value);
            put_number(to, "", value, "");
        } else if (f->type == TSRI_PROFILE_SELECTOR) {
            const char *name = tsr_selector_name(count);
            fputs(name ? name : "none", to);
        } else if (f->type == TSRI_PROFILE_CONTEXT) {
            const char *name = tsri_context_name(count);
            fputs(name ? name : "same", to);
        } else {
            fprintf(to, "%u", count);
        }
    }
}

static void put_curve(FILE *to, const char *name, const struct tsr_curve *c)
{
    fprintf(to, "%s: [", name);
    for (uint32_t i = 0; i < c->n; i++) {
        put_number(to, i ? ", [" : "[", c->points[i].at, ", ");
        put_number(to, "", c->points[i].value, "]");
    }
    fputs("]\n", to);
}

static void put_numbers(FILE *to, const char *name, const double *v, uint32_t n)
{
    fprintf(to, "%s: [", name);
    for (uint32_t i = 0; i < n; i++)
        put_number(to, i ? ", " : "", v[i], "");
    fputs("]\n", to);
}

static void put_weights(FILE *to, const char *key, const double *weights)
{
    const char *name, *between = "";
    fprintf(to, "%s: {", key);
    for (uint32_t i = 0; (name = tsr_gate_weight_name(i)); i++) {
        if (weights[i] == 0) continue;
        fprintf(to, "%s%s: ", between, name);
        put_number(to, "", weights[i], "");
        between = ", ";
    }
    fputs("}\n", to);
}

static double lead_number(const struct tsr_lead_profile *l, size_t field)
{
    double value;
    memcpy(&value, (const char *)l + tsri_lead_fields.at[field].offset, sizeof value);
    return value;
}

/* What is given, if anything is. */
static void put_lead(FILE *to, const struct tsr_lead_profile *l)
{
    bool gated = tsri_gate_is_fitted(l->gate);
    bool given = l->n_rounds || gated;
    for (size_t i = 0; i < tsri_lead_fields.n; i++)
        given |= !isnan(lead_number(l, i));
    if (!given) return;
    fputs("lead:\n", to);
    if (l->n_rounds) put_numbers(to, "  rounds", l->rounds, l->n_rounds);
    for (size_t i = 0; i < tsri_lead_fields.n; i++) {
        if (isnan(lead_number(l, i))) continue;
        fprintf(to, "  %s: ", tsri_lead_fields.at[i].name);
        put_number(to, "", lead_number(l, i), "\n");
    }
    if (gated) put_weights(to, "  gate", l->gate);
}

/* In single quotes, where YAML knows one escape. */
static void put_text(FILE *to, const char *name, const char *text)
{
    fprintf(to, "%s: '", name);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', to);
        fputc((unsigned char)*text < ' ' || *text == 127 ? ' ' : *text, to);
    }
    fputs("'\n", to);
}

/* In double quotes, so that lines and spaces stay as they are. */
static void put_escaped(FILE *to, const char *name, const char *text)
{
    fprintf(to, "%s: \"", name);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n')
            fputs("\\n", to);
        else if (c < ' ' || c == 127)
            fprintf(to, "\\x%02x", c);
        else
            fprintf(to, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    fputs("\"\n", to);
}

static void put_profile(FILE *to, const struct tsr_profile *p)
{
    fprintf(to,
            "# What was measured of this model; tessera-lab calibrate writes it.\nversion: %d\n",
            TSRI_PROFILE_VERSION);
    put_text(to, "space", p->space);
    put_text(to, "model", p->model);
    put_fields(to, &tsri_profile_fields, p, "\n");
    fputs("\n", to);
    put_numbers(to, "query_layers", p->query_layers, 2);
    put_numbers(to, "rounds", p->rounds, p->n_rounds);
    /* The default text may change with the program; what was measured was this one. */
    if (p->context == TSR_CONTEXT_PRIMER) put_escaped(to, "primer", p->primer);
    put_curve(to, "bias", &p->bias);
    put_curve(to, "bias_chunks", &p->bias_chunks);
    put_weights(to, "gate", p->gate);
    put_lead(to, &p->lead);
    fputs(p->n_checks ? "checks:\n" : "checks: []\n", to);
    for (uint32_t i = 0; i < p->n_checks; i++) {
        fputs("  - {", to);
        put_fields(to, &tsri_check_fields, &p->checks[i], ", ");
        fputs("}\n", to);
    }
    fputs(p->n_frontier ? "frontier:\n" : "frontier: []\n", to);
    for (uint32_t i = 0; i < p->n_frontier; i++) {
        fputs("  - {", to);
        put_fields(to, &tsri_frontier_fields, &p->frontier[i], ", ");
        fputs("}\n", to);
    }
}

int tsr_profile_save(const struct tsr_profile *p, const char *path)
{
    char beside[4096];
    if (!p || !path || p->n_checks > TSR_PROFILE_CHECKS_MAX ||
        p->n_rounds > TSR_PROFILE_ROUNDS_MAX || p->lead.n_rounds > TSR_PROFILE_ROUNDS_MAX ||
        p->n_frontier > TSR_PROFILE_FRONTIER_MAX)
        return tsri_fail(TSR_EINVAL, "profile: path is missing, or a list is too long");
    if ((size_t)snprintf(beside, sizeof beside, "%s.%ld.new", path, (long)getpid()) >=
        sizeof beside)
        return tsri_fail(TSR_ERANGE, "profile: path too long (%zu bytes)", strlen(path));
    (void)unlink(beside); /* of an earlier process with our number, or somebody's link */
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        int why = errno;
        if (fd >= 0) close(fd);
        return tsri_fail(TSR_EIO, "profile: %s: %s", beside, strerror(why));
    }
    put_profile(file, p);
    bool bad = ferror(file) || fflush(file) != 0 || fsync(fd) != 0;
    if (fclose(file) != 0 || bad || rename(beside, path) != 0) {
        int e = tsri_fail(TSR_EIO, "profile: %s: %s", path, strerror(errno));
        (void)unlink(beside);
        return e;
    }
    return 0;
}
