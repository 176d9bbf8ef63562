/* profile.c - what was measured of a model, as a YAML file. One mapping; every key is in one of the
 * tables below, anything else is refused with its line. Numbers are read and written the same
 * whatever the locale. A profile that fails to load leaves the caller's as it was. */
#include "blend/blend.h"
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define VERSION 1

void tsr_profile_init(struct tsr_profile *p)
{
    /* The ratio is that of the papers. Late layers chose better than all of them on every model
     * that was compared; early ones choose badly. */
    *p = (struct tsr_profile){
        .size = sizeof *p,
        .selector = TSR_SELECT_QUERY,
        .context = TSR_CONTEXT_SAME,
        .boundary = 2,
        .first_tokens = 1,
        .query_rows = 32,
        .bias_reused = 1,
        .ratio = 0.15,
        .query_layers = {0.667, 1},
        .n_checks = 1,
        .checks = {{.layer = 1}},
        .gate_limit = 0.95,
        .lead = {.draft_floor = NAN, .gate_limit = NAN, .draft_passes = NAN, .gate_accepts = NAN},
        .draft_passes = 1};
    snprintf(p->primer, sizeof p->primer, "%s", tsri_primer_text);
}

static const struct {
    const char *name;
    uint32_t id;
} contexts[] = {
    {"same", TSR_CONTEXT_SAME}, {"pure", TSR_CONTEXT_PURE}, {"primer", TSR_CONTEXT_PRIMER}};

const char *tsri_context_name(uint32_t context)
{
    for (size_t i = 0; i < TSRI_COUNT(contexts); i++)
        if (contexts[i].id == context) return contexts[i].name;
    return NULL;
}

int tsri_context_find(const char *name)
{
    for (size_t i = 0; i < TSRI_COUNT(contexts); i++)
        if (strcmp(contexts[i].name, name) == 0) return (int)contexts[i].id;
    return -1;
}

/* ---- reading ---- */

struct profile_reader {
    yaml_document_t doc;
    const char *name; /* stands for the file in messages */
    struct tsr_profile *to;
};

static int refuse(const struct profile_reader *r, const yaml_node_t *at, const char *why,
                  const char *what)
{
    char shown[64];
    return tsri_fail(TSR_ECONFIG, "%s:%zu:%zu: %s \"%s\"", r->name, at->start_mark.line + 1,
                     at->start_mark.column + 1, why, tsri_printable(what, shown, sizeof shown));
}

static const char *text_of(const yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : "";
}

static int read_number(const struct profile_reader *r, const yaml_node_t *n, double min, double max,
                       double *out)
{
    if (n->type != YAML_SCALAR_NODE || !tsri_parse_float(text_of(n), out) || !isfinite(*out) ||
        *out < min || *out > max)
        return refuse(r, n, "not a number in range:", text_of(n));
    return 0;
}

static int read_selector(const struct profile_reader *r, const yaml_node_t *n, uint32_t *out)
{
    int id = tsr_selector_find(text_of(n));
    if (id < 0) return refuse(r, n, "unknown selector", text_of(n));
    *out = (uint32_t)id;
    return 0;
}

static int read_context(const struct profile_reader *r, const yaml_node_t *n, uint32_t *out)
{
    int id = tsri_context_find(text_of(n));
    if (id < 0) return refuse(r, n, "none of same, pure, primer:", text_of(n));
    *out = (uint32_t)id;
    return 0;
}

static int read_text(const struct profile_reader *r, const yaml_node_t *n, char *out, size_t bytes)
{
    if (n->type != YAML_SCALAR_NODE || n->data.scalar.length >= bytes ||
        strlen(text_of(n)) != n->data.scalar.length)
        return refuse(r, n, "missing or too long:", text_of(n));
    memcpy(out, text_of(n), n->data.scalar.length + 1);
    return 0;
}

enum field_type { FIELD_COUNT, FIELD_NUMBER, FIELD_SELECTOR, FIELD_CONTEXT };
struct field {
    const char *name;
    enum field_type type;
    size_t offset; /* in the struct that the table is for */
    double min, max;
};

#define PROFILE(field) offsetof(struct tsr_profile, field)
static const struct field profile_fields[] = {
    {"selector", FIELD_SELECTOR, PROFILE(selector), 0, 0},
    {"context", FIELD_CONTEXT, PROFILE(context), 0, 0},
    {"ratio", FIELD_NUMBER, PROFILE(ratio), 0, 1},
    {"boundary", FIELD_COUNT, PROFILE(boundary), 0, 1024},
    {"first_tokens", FIELD_COUNT, PROFILE(first_tokens), 0, 1024},
    {"query_rows", FIELD_COUNT, PROFILE(query_rows), 1, 1024},
    {"bias_reused", FIELD_COUNT, PROFILE(bias_reused), 0, 1},
    {"bias_answer", FIELD_COUNT, PROFILE(bias_answer), 0, 1},
    {"draft", FIELD_COUNT, PROFILE(draft), 0, TSR_PROFILE_DRAFT_MAX},
    {"draft_selects", FIELD_COUNT, PROFILE(draft_selects), 0, 1},
    {"draft_floor", FIELD_NUMBER, PROFILE(draft_floor), 0, 1},
    {"gate_limit", FIELD_NUMBER, PROFILE(gate_limit), 0, 1},
    {"draft_passes", FIELD_NUMBER, PROFILE(draft_passes), 0, 1},
    {"gate_accepts", FIELD_NUMBER, PROFILE(gate_accepts), 0, 1},
};
#define LEAD(field) offsetof(struct tsr_lead_profile, field)
static const struct field lead_fields[] = {
    {"draft_floor", FIELD_NUMBER, LEAD(draft_floor), 0, 1},
    {"gate_limit", FIELD_NUMBER, LEAD(gate_limit), 0, 1},
    {"draft_passes", FIELD_NUMBER, LEAD(draft_passes), 0, 1},
    {"gate_accepts", FIELD_NUMBER, LEAD(gate_accepts), 0, 1},
};
#define CHECK_AT(field) offsetof(struct tsr_check, field)
static const struct field check_fields[] = {
    {"layer", FIELD_COUNT, CHECK_AT(layer), 0, 1023},
    {"ratio", FIELD_NUMBER, CHECK_AT(ratio), 0, 1},
    {"threshold", FIELD_NUMBER, CHECK_AT(threshold), 0, 1e9},
};
#define FRONTIER(field) offsetof(struct tsr_frontier, field)
static const struct field frontier_fields[] = {
    {"selector", FIELD_SELECTOR, FRONTIER(selector), 0, 0},
    {"context", FIELD_CONTEXT, FRONTIER(context), 0, 0},
    {"prompts", FIELD_COUNT, FRONTIER(n_prompts), 0, 1e9},
    {"ratio", FIELD_NUMBER, FRONTIER(ratio), 0, 1},
    {"bias", FIELD_NUMBER, FRONTIER(bias), -100, 100},
    {"layers_from", FIELD_NUMBER, FRONTIER(layers_from), 0, 1},
    {"layers_to", FIELD_NUMBER, FRONTIER(layers_to), 0, 1},
    {"rounds", FIELD_COUNT, FRONTIER(n_rounds), 0, TSR_PROFILE_ROUNDS_MAX},
    {"kl", FIELD_NUMBER, FRONTIER(kl), 0, 1e6},
    {"agreement", FIELD_NUMBER, FRONTIER(agreement), 0, 1},
    {"speedup", FIELD_NUMBER, FRONTIER(speedup), 0, 1e9},
};

static int read_field(const struct profile_reader *r, const yaml_node_t *n, const struct field *f,
                      void *to)
{
    void *at = (uint8_t *)to + f->offset;
    double value = 0;
    int e = 0;
    switch (f->type) {
    case FIELD_SELECTOR:
        return read_selector(r, n, at);
    case FIELD_CONTEXT:
        return read_context(r, n, at);
    case FIELD_COUNT:
        e = read_number(r, n, f->min, f->max, &value);
        if (!e && value != floor(value)) e = refuse(r, n, "not a whole number:", text_of(n));
        if (!e) *(uint32_t *)at = (uint32_t)value;
        return e;
    default:
        e = read_number(r, n, f->min, f->max, &value);
        if (!e) *(double *)at = value;
        return e;
    }
}

/* 1: the key is one of the table and was read; 0: it is not. */
static int read_from(const struct profile_reader *r, const yaml_node_t *key,
                     const yaml_node_t *value, const struct field *fields, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text_of(key), fields[i].name) != 0) continue;
        int e = read_field(r, value, &fields[i], to);
        return e ? e : 1;
    }
    return 0;
}

/* Nodes of a sequence, at most max; returns how many. */
static int items_of(struct profile_reader *r, yaml_node_t *n, uint32_t max, yaml_node_t **out)
{
    if (n->type != YAML_SEQUENCE_NODE) return refuse(r, n, "not a list:", text_of(n));
    uint32_t count = 0;
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
        if (count == max) return refuse(r, n, "list too long", "");
        out[count++] = yaml_document_get_node(&r->doc, *i);
    }
    return (int)count;
}

/* A list of mappings of one table. */
static int read_list(struct profile_reader *r, yaml_node_t *n, const struct field *fields,
                     size_t n_fields, uint8_t *to, size_t stride, uint32_t max)
{
    yaml_node_t *items[TSR_PROFILE_FRONTIER_MAX];
    int count = items_of(r, n, max, items);
    for (int i = 0; i < count; i++) {
        if (items[i]->type != YAML_MAPPING_NODE) return refuse(r, items[i], "not a mapping", "");
        memset(to + (size_t)i * stride, 0, stride);
        for (yaml_node_pair_t *p = items[i]->data.mapping.pairs.start;
             p < items[i]->data.mapping.pairs.top; p++) {
            yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
            int e = read_from(r, key, yaml_document_get_node(&r->doc, p->value), fields, n_fields,
                              to + (size_t)i * stride);
            if (e == 0) return refuse(r, key, "unknown key", text_of(key));
            if (e < 0) return e;
        }
    }
    return count;
}

static int read_numbers(struct profile_reader *r, yaml_node_t *n, double *out, uint32_t count)
{
    yaml_node_t *items[TSR_PROFILE_FRONTIER_MAX];
    int got = items_of(r, n, count, items);
    if (got < 0) return got;
    if ((uint32_t)got != count) return refuse(r, n, "list too short", "");
    for (uint32_t i = 0; i < count; i++) {
        int e = read_number(r, items[i], -1e9, 1e9, &out[i]);
        if (e) return e;
    }
    return 0;
}

static int read_curve(struct profile_reader *r, yaml_node_t *n, struct tsr_curve *out)
{
    yaml_node_t *items[TSR_PROFILE_POINTS_MAX];
    int count = items_of(r, n, TSR_PROFILE_POINTS_MAX, items);
    if (count < 0) return count;
    for (int i = 0; i < count; i++) {
        double point[2];
        int e = read_numbers(r, items[i], point, 2);
        if (e) return e;
        if (i && point[0] <= out->points[i - 1].at)
            return refuse(r, items[i], "points must ascend", "");
        out->points[i] = (struct tsr_curve_point){point[0], point[1]};
    }
    out->n = (uint32_t)count;
    return 0;
}

static int read_layers(struct profile_reader *r, yaml_node_t *n, double out[2])
{
    int e = read_numbers(r, n, out, 2);
    if (!e && !(out[0] >= 0 && out[0] < out[1] && out[1] <= 1))
        e = refuse(r, n, "not two shares of the depth, ascending", "");
    return e;
}

/* {moved: -0.4, entropy: -0.2}; others are 0. */
static int read_weights(struct profile_reader *r, yaml_node_t *n, double *out)
{
    if (n->type != YAML_MAPPING_NODE) return refuse(r, n, "not a mapping", text_of(n));
    bool seen[TSR_GATE_WEIGHTS_MAX] = {false};
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
        uint32_t i = 0;
        const char *name;
        while ((name = tsr_gate_weight_name(i)) && strcmp(name, text_of(key)) != 0)
            i++;
        if (!name) return refuse(r, key, "unknown weight", text_of(key));
        if (seen[i]) return refuse(r, key, "duplicate key:", text_of(key));
        seen[i] = true;
        int e = read_number(r, yaml_document_get_node(&r->doc, p->value), -1e9, 1e9, &out[i]);
        if (e) return e;
    }
    return 0;
}

static int read_rounds(struct profile_reader *r, yaml_node_t *n, double *rounds, uint32_t *n_rounds)
{
    yaml_node_t *items[TSR_PROFILE_ROUNDS_MAX];
    int count = items_of(r, n, TSR_PROFILE_ROUNDS_MAX, items);
    for (int i = 0; i < count; i++) {
        int e = read_number(r, items[i], 0, 1, &rounds[i]);
        if (e) return e;
        if (!(rounds[i] > (i ? rounds[i - 1] : 0) && rounds[i] < 1))
            return refuse(r, items[i], "rounds must ascend, between 0 and 1:", text_of(items[i]));
    }
    if (count >= 0) *n_rounds = (uint32_t)count;
    return count < 0 ? count : 0;
}

/* A mapping without a key that is there twice. */
static int check_mapping(struct profile_reader *r, yaml_node_t *n)
{
    if (n->type != YAML_MAPPING_NODE) return refuse(r, n, "not a mapping", text_of(n));
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
        for (yaml_node_pair_t *q = n->data.mapping.pairs.start; q < p; q++)
            if (strcmp(text_of(yaml_document_get_node(&r->doc, q->key)), text_of(key)) == 0)
                return refuse(r, key, "duplicate key:", text_of(key));
    }
    return 0;
}

static int read_lead(struct profile_reader *r, yaml_node_t *n, struct tsr_lead_profile *to)
{
    int e = check_mapping(r, n);
    if (e) return e;
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
        yaml_node_t *value = yaml_document_get_node(&r->doc, p->value);
        e = read_from(r, key, value, lead_fields, TSRI_COUNT(lead_fields), to);
        if (e == 0 && strcmp(text_of(key), "rounds") == 0)
            e = read_rounds(r, value, to->rounds, &to->n_rounds);
        else if (e == 0 && strcmp(text_of(key), "gate") == 0)
            e = read_weights(r, value, to->gate);
        else if (e == 0)
            e = refuse(r, key, "unknown key", text_of(key));
        if (e < 0) return e;
    }
    return 0;
}

static int read_special(struct profile_reader *r, const yaml_node_t *key, yaml_node_t *value)
{
    struct tsr_profile *p = r->to;
    const char *name = text_of(key);
    int n;
    if (strcmp(name, "version") == 0) {
        double version = 0;
        int e = read_number(r, value, 0, 1e9, &version);
        if (e) return e;
        return version == VERSION ? 0 : refuse(r, value, "unknown version", text_of(value));
    }
    if (strcmp(name, "space") == 0) {
        int e = read_text(r, value, p->space, sizeof p->space);
        if (e) return e;
        if (p->space[0] && strspn(p->space, "0123456789abcdef") != 32)
            return refuse(r, value, "not a fingerprint:", text_of(value));
        return 0;
    }
    if (strcmp(name, "model") == 0) return read_text(r, value, p->model, sizeof p->model);
    if (strcmp(name, "primer") == 0) {
        memset(p->primer, 0, sizeof p->primer); /* the default text is longer than some */
        return read_text(r, value, p->primer, sizeof p->primer);
    }
    if (strcmp(name, "query_layers") == 0) return read_layers(r, value, p->query_layers);
    if (strcmp(name, "rounds") == 0) return read_rounds(r, value, p->rounds, &p->n_rounds);
    if (strcmp(name, "bias") == 0) return read_curve(r, value, &p->bias);
    if (strcmp(name, "bias_chunks") == 0) return read_curve(r, value, &p->bias_chunks);
    if (strcmp(name, "gate") == 0) return read_weights(r, value, p->gate);
    if (strcmp(name, "lead") == 0) return read_lead(r, value, &p->lead);
    if (strcmp(name, "checks") == 0) {
        n = read_list(r, value, check_fields, TSRI_COUNT(check_fields), (uint8_t *)p->checks,
                      sizeof p->checks[0], TSR_PROFILE_CHECKS_MAX);
        if (n >= 0) p->n_checks = (uint32_t)n;
        return n < 0 ? n : 0;
    }
    if (strcmp(name, "frontier") == 0) {
        n = read_list(r, value, frontier_fields, TSRI_COUNT(frontier_fields),
                      (uint8_t *)p->frontier, sizeof p->frontier[0], TSR_PROFILE_FRONTIER_MAX);
        if (n >= 0) p->n_frontier = (uint32_t)n;
        return n < 0 ? n : 0;
    }
    return refuse(r, key, "unknown key", name);
}

static int read_document(struct profile_reader *r)
{
    yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    if (!root) return 0; /* an empty file: the defaults */
    int e = check_mapping(r, root);
    if (e) return e;
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++) {
        yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
        yaml_node_t *value = yaml_document_get_node(&r->doc, p->value);
        e = read_from(r, key, value, profile_fields, TSRI_COUNT(profile_fields), r->to);
        if (e == 0) e = read_special(r, key, value);
        if (e < 0) return e;
    }
    return 0;
}

int tsr_profile_parse(struct tsr_profile *p, const char *text, size_t bytes, const char *name)
{
    if (!p || (!text && bytes)) return tsri_fail(TSR_EINVAL, "profile: profile or text is NULL");
    if (bytes > FILE_BYTES_MAX)
        return tsri_fail(TSR_ECONFIG, "%s: %zu bytes, too large for a profile", name, bytes);
    struct tsr_profile fresh;
    tsr_profile_init(&fresh);
    struct profile_reader r = {.name = name ? name : "profile", .to = &fresh};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return tsri_fail(TSR_ENOMEM, "profile: out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)(text ? text : ""), bytes);
    int e = 0;
    if (yaml_parser_load(&parser, &r.doc)) {
        e = read_document(&r);
        yaml_document_delete(&r.doc);
    } else {
        e = tsri_fail(TSR_ECONFIG, "%s:%zu:%zu: %s", r.name, parser.problem_mark.line + 1,
                      parser.problem_mark.column + 1, parser.problem ? parser.problem : "no YAML");
    }
    yaml_parser_delete(&parser);
    if (!e) *p = fresh;
    return e;
}

int tsr_profile_load(struct tsr_profile *p, const char *path)
{
    if (!p || !path) return tsri_fail(TSR_EINVAL, "profile: path is missing");
    struct stat st;
    int fd = tsri_file_open(path, &st);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file) {
        int why = errno;
        if (fd >= 0) close(fd);
        return tsri_fail(why == ENOENT ? TSR_ENOENT : TSR_EIO, "profile: %s: %s", path,
                         why == EINVAL ? "not a regular file" : strerror(why));
    }
    char *text = tsri_alloc(1, FILE_BYTES_MAX + 1);
    size_t bytes = text ? fread(text, 1, FILE_BYTES_MAX + 1, file) : 0;
    int e = text ? 0 : TSR_ENOMEM;
    if (!e && ferror(file)) e = tsri_fail(TSR_EIO, "profile: cannot read %s", path);
    fclose(file);
    if (!e) e = tsr_profile_parse(p, text, bytes, path);
    tsri_free(text);
    return e;
}

/* ---- writing ---- */

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

static void put_fields(FILE *to, const struct field *fields, size_t n, const void *from,
                       const char *between)
{
    for (size_t i = 0; i < n; i++) {
        const void *at = (const uint8_t *)from + fields[i].offset;
        if (i) fputs(between, to);
        fprintf(to, "%s: ", fields[i].name);
        uint32_t count;
        double value;
        memcpy(&count, at, sizeof count);
        if (fields[i].type == FIELD_NUMBER) {
            memcpy(&value, at, sizeof value);
            put_number(to, "", value, "");
        } else if (fields[i].type == FIELD_SELECTOR) {
            const char *name = tsr_selector_name(count);
            fputs(name ? name : "none", to);
        } else if (fields[i].type == FIELD_CONTEXT) {
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
    memcpy(&value, (const char *)l + lead_fields[field].offset, sizeof value);
    return value;
}

/* What is given, if anything is. */
static void put_lead(FILE *to, const struct tsr_lead_profile *l)
{
    bool gated = tsri_gate_is_fitted(l->gate);
    bool given = l->n_rounds || gated;
    for (size_t i = 0; i < TSRI_COUNT(lead_fields); i++)
        given |= !isnan(lead_number(l, i));
    if (!given) return;
    fputs("lead:\n", to);
    if (l->n_rounds) put_numbers(to, "  rounds", l->rounds, l->n_rounds);
    for (size_t i = 0; i < TSRI_COUNT(lead_fields); i++) {
        if (isnan(lead_number(l, i))) continue;
        fprintf(to, "  %s: ", lead_fields[i].name);
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
            VERSION);
    put_text(to, "space", p->space);
    put_text(to, "model", p->model);
    put_fields(to, profile_fields, TSRI_COUNT(profile_fields), p, "\n");
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
        put_fields(to, check_fields, TSRI_COUNT(check_fields), &p->checks[i], ", ");
        fputs("}\n", to);
    }
    fputs(p->n_frontier ? "frontier:\n" : "frontier: []\n", to);
    for (uint32_t i = 0; i < p->n_frontier; i++) {
        fputs("  - {", to);
        put_fields(to, frontier_fields, TSRI_COUNT(frontier_fields), &p->frontier[i], ", ");
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
