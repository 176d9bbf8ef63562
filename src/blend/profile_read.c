/* profile_read.c - a profile of a YAML file: one mapping; every key is in one of the tables of
 * profile_fields.h or read by its own function, anything else is refused with its line. Numbers are
 * read the same whatever the locale. A profile that fails to load leaves the caller's as it was. */
#include "blend/profile_fields.h"
#include "config/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)

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

static int read_field(const struct profile_reader *r, const yaml_node_t *n,
                      const struct tsri_profile_field *f, void *to)
{
    void *at = (uint8_t *)to + f->offset;
    double value = 0;
    int e = 0;
    switch (f->type) {
    case TSRI_PROFILE_SELECTOR:
        return read_selector(r, n, at);
    case TSRI_PROFILE_CONTEXT:
        return read_context(r, n, at);
    case TSRI_PROFILE_COUNT:
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
                     const yaml_node_t *value, const struct tsri_profile_table *fields, void *to)
{
    for (size_t i = 0; i < fields->n; i++) {
        if (strcmp(text_of(key), fields->at[i].name) != 0) continue;
        int e = read_field(r, value, &fields->at[i], to);
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
static int read_list(struct profile_reader *r, yaml_node_t *n,
                     const struct tsri_profile_table *fields, uint8_t *to, size_t stride,
                     uint32_t max)
{
    yaml_node_t *items[TSR_PROFILE_FRONTIER_MAX];
    int count = items_of(r, n, max, items);
    for (int i = 0; i < count; i++) {
        if (items[i]->type != YAML_MAPPING_NODE) return refuse(r, items[i], "not a mapping", "");
        memset(to + (size_t)i * stride, 0, stride);
        for (yaml_node_pair_t *p = items[i]->data.mapping.pairs.start;
             p < items[i]->data.mapping.pairs.top; p++) {
            yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
            int e = read_from(r, key, yaml_document_get_node(&r->doc, p->value), fields,
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
        e = read_from(r, key, value, &tsri_lead_fields, to);
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
        return version == TSRI_PROFILE_VERSION
                   ? 0
                   : refuse(r, value, "unknown version", text_of(value));
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
        n = read_list(r, value, &tsri_check_fields, (uint8_t *)p->checks, sizeof p->checks[0],
                      TSR_PROFILE_CHECKS_MAX);
        if (n >= 0) p->n_checks = (uint32_t)n;
        return n < 0 ? n : 0;
    }
    if (strcmp(name, "frontier") == 0) {
        n = read_list(r, value, &tsri_frontier_fields, (uint8_t *)p->frontier,
                      sizeof p->frontier[0], TSR_PROFILE_FRONTIER_MAX);
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
        e = read_from(r, key, value, &tsri_profile_fields, r->to);
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
