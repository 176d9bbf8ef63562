/* config.c - a configuration: the value of every option, as a plain field, as canonical text, and
 * where it came from. All sources (calls, YAML, environment, flags) end in tsri_config_put, so
 * every rule holds for all of them. Each option's text and origin are heap strings owned here;
 * STRING and PATH fields point at their text. */
#include "config/config.h"

#include <ctype.h>
#include <stdlib.h>

#define N_OPTIONS (tsri_option_count())

struct slot {
    char *text, *origin;
};

/* Apart, because logging them changes them and not the configuration. */
struct notes {
    struct tsri_note rows[TSRI_NOTES_MAX];
    bool told[TSRI_NOTES_MAX];
    size_t n;
};

struct tsr_config {
    struct tsri_options values;
    struct slot *slots; /* one per row of the table */
    struct notes *notes;
    struct tsri_attached attached[TSRI_ATTACHED_MAX];
    size_t n_attached;
};

static void slots_free(struct slot *slots)
{
    if (!slots) return;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        tsri_free(slots[i].text);
        tsri_free(slots[i].origin);
    }
    tsri_free(slots);
}

static void notes_free(struct notes *notes)
{
    for (size_t i = 0; notes && i < notes->n; i++) {
        tsri_free(notes->rows[i].key);
        tsri_free(notes->rows[i].text);
    }
    tsri_free(notes);
}

static void field_write(struct tsr_config *cfg, const struct tsri_option *o, union tsri_value v,
                        const char *text)
{
    void *field = (char *)&cfg->values + o->offset;
    uint32_t count;
    switch (o->type) {
    case TSRI_OPTION_BOOL:
        memcpy(field, &v.as_bool, sizeof v.as_bool);
        break;
    case TSRI_OPTION_COUNT:
        count = (uint32_t)v.as_number;
        memcpy(field, &count, sizeof count);
        break;
    case TSRI_OPTION_SIZE:
        memcpy(field, &v.as_number, sizeof v.as_number);
        break;
    case TSRI_OPTION_FLOAT:
        memcpy(field, &v.as_float, sizeof v.as_float);
        break;
    case TSRI_OPTION_ENUM:
        memcpy(field, &v.as_enum, sizeof v.as_enum);
        break;
    case TSRI_OPTION_LIST:
        memcpy(field, &v.as_list, sizeof v.as_list);
        break;
    case TSRI_OPTION_STRING:
    case TSRI_OPTION_PATH:
        memcpy(field, &text, sizeof text);
        break;
    }
}

/* Origins as `tessera config show` prints them. */
static char *origin_text(const struct tsri_place *place)
{
    char text[TSRI_PLACE_BYTES + 64], name[256] = "";
    if (place->name) tsri_printable(place->name, name, sizeof name);
    int at = 0;
    switch (place->from) {
    case TSRI_FROM_CALL:
        at = snprintf(text, sizeof text, "call");
        break;
    case TSRI_FROM_FILE:
        at = snprintf(text, sizeof text, "%s:%zu", name, place->line);
        break;
    case TSRI_FROM_ENV:
        at = snprintf(text, sizeof text, "env %s", name);
        break;
    case TSRI_FROM_FLAG:
        at = snprintf(text, sizeof text, "flag %s", name);
        break;
    }
    if (place->alias) snprintf(text + at, sizeof text - (size_t)at, " (%s)", place->alias);
    return tsri_strdup(text);
}

/* Stores a checked value; place NULL means the default. */
static int slot_set(struct tsr_config *cfg, const struct tsri_option *o, union tsri_value v,
                    const char *text, const struct tsri_place *place)
{
    char canonical[TSRI_OPTION_TEXT_BYTES];
    if (o->type != TSRI_OPTION_STRING && o->type != TSRI_OPTION_PATH) {
        tsri_option_format(o, v, canonical, sizeof canonical);
        text = canonical;
    }
    struct slot new = {tsri_strdup(text), place ? origin_text(place) : tsri_strdup("default")};
    if (!new.text || !new.origin) {
        tsri_free(new.text);
        tsri_free(new.origin);
        return TSR_ENOMEM;
    }
    struct slot *slot = &cfg->slots[o - tsri_option_at(0)];
    tsri_free(slot->text);
    tsri_free(slot->origin);
    *slot = new;
    field_write(cfg, o, v, slot->text);
    return 0;
}

static int set_default(struct tsr_config *cfg, const struct tsri_option *o)
{
    char why[256];
    union tsri_value v = {0};
    bool good = tsri_option_parse(o, o->def, &v, why, sizeof why);
    TSR_ASSERT(good); /* the table's own defaults */
    return slot_set(cfg, o, v, o->def, NULL);
}

int tsr_config_open(struct tsr_config **out)
{
    if (!out) return tsri_fail(TSR_EINVAL, "config: out is NULL");
    *out = NULL;
    struct tsr_config *cfg = tsri_alloc(1, sizeof *cfg);
    if (!cfg) return TSR_ENOMEM;
    cfg->slots = tsri_alloc(N_OPTIONS, sizeof *cfg->slots);
    cfg->notes = tsri_alloc(1, sizeof *cfg->notes);
    int err = cfg->slots && cfg->notes ? 0 : TSR_ENOMEM;
    for (size_t i = 0; !err && i < N_OPTIONS; i++)
        err = set_default(cfg, tsri_option_at(i));
    if (err) {
        tsr_config_close(cfg);
        return err;
    }
    *out = cfg;
    return 0;
}

void tsr_config_close(struct tsr_config *cfg)
{
    if (!cfg) return;
    slots_free(cfg->slots);
    notes_free(cfg->notes);
    tsri_free(cfg);
}

const struct tsri_options *tsri_config_options(const struct tsr_config *cfg)
{
    return &cfg->values;
}

const char *tsri_config_value(const struct tsr_config *cfg, const struct tsri_option *o)
{
    return cfg->slots[o - tsri_option_at(0)].text;
}

const char *tsri_config_origin(const struct tsr_config *cfg, const struct tsri_option *o)
{
    return cfg->slots[o - tsri_option_at(0)].origin;
}

struct nearest {
    const char *name;
    size_t distance;
};

static void consider(struct nearest *best, const char *name, const char *key)
{
    size_t far = tsri_edit_distance(name, key);
    if (far >= best->distance) return;
    best->name = name;
    best->distance = far;
}

/* A known key as it is spelled at that kind of place. */
static void spell(const char *name, const struct tsri_place *place, char *buf, size_t bytes)
{
    bool env = place->from == TSRI_FROM_ENV, flag = place->from == TSRI_FROM_FLAG;
    snprintf(buf, bytes, "%s%s", env ? "TESSERA_" : flag ? "--" : "", name);
    for (char *c = buf; *c; c++) {
        if (env) *c = (char)toupper((unsigned char)*c);
        if (flag && *c == '_') *c = '-';
    }
}

static struct nearest nearest_known(const char *key, const struct tsri_place *place)
{
    struct nearest best = {NULL, SIZE_MAX};
    for (size_t i = 0; i < N_OPTIONS; i++)
        consider(&best, tsri_option_at(i)->name, key);
    /* Foreign keys go by their own names in the environment. */
    for (size_t i = 0; place->from != TSRI_FROM_ENV && i < tsri_compat_count(); i++)
        consider(&best, tsri_compat_at(i)->key, key);
    return best;
}

int tsri_config_fail_unknown(const char *key, const struct tsri_place *place)
{
    char where[TSRI_PLACE_BYTES], shown[80], known[80];
    struct nearest best = nearest_known(key, place);
    tsri_place_text(place, where, sizeof where);
    tsri_printable(key, shown, sizeof shown);
    if (!best.name || (best.distance > 2 && best.distance > strlen(key) / 2))
        return tsri_fail(TSR_ECONFIG, "%sunknown key \"%s\"", where, shown);
    spell(best.name, place, known, sizeof known);
    return tsri_fail(TSR_ECONFIG, "%sunknown key \"%s\"; did you mean \"%s\"?", where, shown,
                     known);
}

/* A path below the home folder as shells write it, ~/DIR; other values stay. NULL: there is no home. */
static const char *below_home(const struct tsri_option *o, const char *value, char *buf,
                              size_t bytes)
{
    if (o->type != TSRI_OPTION_PATH || strncmp(value, "~/", 2) != 0) return value;
    const char *home = getenv("HOME");
    if (!home || home[0] != '/') return NULL;
    snprintf(buf, bytes, "%s%s", home, value + 1); /* one that is cut is too long for any option */
    return buf;
}

/* LMCache's users write its keys as lmcache.KEY in an engine's configuration. */
const char *tsri_config_bare_key(const char *key)
{
    static const char theirs[] = "lmcache.";
    return strncmp(key, theirs, sizeof theirs - 1) == 0 ? key + sizeof theirs - 1 : key;
}

int tsri_config_ignore_unknown(struct tsr_config *cfg, const char *id, const char *before,
                               const char *key, const struct tsri_place *place)
{
    char where[TSRI_PLACE_BYTES], shown[80], text[TSRI_PLACE_BYTES + 256];
    struct nearest best = nearest_known(key, place);
    bool misspelt = best.name && best.distance <= 2; /* more is a name of theirs */
    snprintf(text, sizeof text, "%s%s%s: ignored: unknown%s%s%s",
             tsri_place_text(place, where, sizeof where), before,
             tsri_printable(key, shown, sizeof shown), misspelt ? "; did you mean \"" : "",
             misspelt ? best.name : "", misspelt ? "\"?" : "");
    return tsri_config_note(cfg, id, TSR_LOG_WARN, text);
}

int tsri_config_put(struct tsr_config *cfg, const char *written, const char *value,
                    const struct tsri_place *place)
{
    const char *key = tsri_config_bare_key(written);
    const struct tsri_option *o = tsri_option_find(key);
    const struct tsri_compat *foreign = o ? NULL : tsri_compat_find(key);
    if (foreign) return tsri_compat_put(cfg, foreign, key, value, place);
    if (!o && key != written) return tsri_config_ignore_unknown(cfg, written, "", written, place);
    if (!o) return tsri_config_fail_unknown(key, place);
    if (!value) return set_default(cfg, o);
    char why[256] = "~ is the folder HOME, which is not set", path[8192];
    union tsri_value v = {0};
    value = below_home(o, value, path, sizeof path);
    if (value && tsri_option_parse(o, value, &v, why, sizeof why))
        return slot_set(cfg, o, v, value, place);
    char where[TSRI_PLACE_BYTES];
    tsri_place_text(place, where, sizeof where);
    if (place->alias)
        return tsri_fail(TSR_ECONFIG, "%s%s (%s here): %s", where, place->alias, o->name, why);
    return tsri_fail(TSR_ECONFIG, "%s%s: %s", where, o->name, why);
}

int tsr_config_set(struct tsr_config *cfg, const char *key, const char *value)
{
    if (!cfg || !key || !value)
        return tsri_fail(TSR_EINVAL, "config: %s is NULL", !cfg ? "cfg" : !key ? "key" : "value");
    struct tsri_place place = {.from = TSRI_FROM_CALL};
    return tsri_config_put(cfg, key, value, &place);
}

const char *tsr_config_get(const struct tsr_config *cfg, const char *key)
{
    const struct tsri_option *o = cfg && key ? tsri_option_find(key) : NULL;
    return o ? tsri_config_value(cfg, o) : NULL;
}

/* A configuration with the same values and origins, or NULL with a message set. */
static struct tsr_config *clone(const struct tsr_config *from)
{
    struct tsr_config *cfg = NULL;
    if (tsr_config_open(&cfg)) return NULL;
    for (size_t i = 0; i < from->notes->n; i++) {
        const struct tsri_note *note = &from->notes->rows[i];
        if (tsri_config_note(cfg, note->key, note->level, note->text)) {
            tsr_config_close(cfg);
            return NULL;
        }
        cfg->notes->told[i] = from->notes->told[i];
    }
    cfg->values = from->values;
    memcpy(cfg->attached, from->attached, sizeof cfg->attached);
    cfg->n_attached = from->n_attached;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        struct slot copy = {tsri_strdup(from->slots[i].text), tsri_strdup(from->slots[i].origin)};
        tsri_free(cfg->slots[i].text);
        tsri_free(cfg->slots[i].origin);
        cfg->slots[i] = copy;
        if (!copy.text || !copy.origin) {
            tsr_config_close(cfg);
            return NULL;
        }
        const struct tsri_option *o = tsri_option_at(i);
        union tsri_value none = {0};
        if (o->type == TSRI_OPTION_STRING || o->type == TSRI_OPTION_PATH)
            field_write(cfg, o, none, copy.text);
    }
    return cfg;
}

int tsri_config_try(struct tsr_config *cfg, int (*fill)(struct tsr_config *, void *), void *arg)
{
    struct tsr_config *draft = clone(cfg);
    if (!draft) return TSR_ENOMEM;
    int result = fill(draft, arg);
    if (result >= 0) {
        struct tsr_config old = *cfg;
        *cfg = *draft;
        *draft = old;
    }
    tsr_config_close(draft);
    return result;
}

/* Lists with a number per check layer. */
static int check_blend(const struct tsri_options *v)
{
    const struct {
        const char *name;
        const struct tsri_list *list;
    } lists[] = {{"blend_recompute_ratios", &v->blend_recompute_ratios},
                 {"blend_thresholds", &v->blend_thresholds}};
    uint32_t n_layers = v->blend_check_layers.n;
    for (size_t i = 0; i < TSRI_COUNT(lists); i++) {
        uint32_t n = lists[i].list->n;
        if (n > 1 && n != n_layers)
            return tsri_fail(TSR_ECONFIG, "%s: %u numbers for %u blend_check_layers", lists[i].name,
                             n, n_layers);
    }
    const double *layers = v->blend_check_layers.values;
    for (uint32_t i = 1; i < n_layers; i++)
        if (layers[i] <= layers[i - 1])
            return tsri_fail(TSR_ECONFIG, "blend_check_layers: %g after %g: must ascend", layers[i],
                             layers[i - 1]);
    return 0;
}

int tsri_config_check(const struct tsr_config *cfg)
{
    const struct tsri_options *v = &cfg->values;
    if (v->host_page_size > v->host_size)
        return tsri_fail(TSR_ECONFIG, "host_page_size: %s is larger than host_size, %s",
                         tsr_config_get(cfg, "host_page_size"), tsr_config_get(cfg, "host_size"));
    if (v->chunked && !*v->separator) return tsri_fail(TSR_ECONFIG, "chunked: separator is empty");
    int err = check_blend(v);
    if (err) return err;
    bool disk = *v->disk_path && v->disk_enabled;
    if (disk && v->disk_segment_size > v->disk_size / 2)
        return tsri_fail(TSR_ECONFIG, "disk_segment_size: %s is more than half of disk_size, %s",
                         tsr_config_get(cfg, "disk_segment_size"),
                         tsr_config_get(cfg, "disk_size"));
    bool disk2 = *v->disk2_path && v->disk_enabled;
    if (disk2 && v->disk_segment_size > v->disk2_size / 2)
        return tsri_fail(TSR_ECONFIG, "disk_segment_size: %s is more than half of disk2_size, %s",
                         tsr_config_get(cfg, "disk_segment_size"),
                         tsr_config_get(cfg, "disk2_size"));
    if (disk && disk2 && strcmp(v->disk_path, v->disk2_path) == 0)
        return tsri_fail(TSR_ECONFIG, "disk2_path: %s is the same as disk_path", v->disk2_path);
    if (*v->tenant && !tsri_tenant_is_name(v->tenant))
        return tsri_fail(TSR_ECONFIG,
                         "tenant: %s: letters, digits, _ and -, in parts of at most 32"
                         " joined by dots",
                         v->tenant);
    return 0;
}

/* Decided when it is used: files and environments name the share before or after chunked itself. */
double tsri_options_pool_share(const struct tsri_options *o)
{
    return o->device_pool_share > 0 || !o->chunked ? o->device_pool_share
                                                   : o->device_pool_chunked_share;
}

int tsri_config_note(struct tsr_config *cfg, const char *key, int level, const char *text)
{
    struct notes *notes = cfg->notes;
    size_t i = 0;
    while (i < notes->n && strcmp(notes->rows[i].key, key) != 0)
        i++;
    if (i == TSRI_NOTES_MAX) return 0;
    struct tsri_note new = {tsri_strdup(key), tsri_strdup(text), level};
    if (!new.key || !new.text) {
        tsri_free(new.key);
        tsri_free(new.text);
        return TSR_ENOMEM;
    }
    tsri_free(notes->rows[i].key);
    tsri_free(notes->rows[i].text);
    notes->rows[i] = new;
    notes->told[i] = false;
    if (i == notes->n) notes->n++;
    return 0;
}

const struct tsri_note *tsri_config_note_at(const struct tsr_config *cfg, size_t i)
{
    return i < cfg->notes->n ? &cfg->notes->rows[i] : NULL;
}

void tsri_config_warn(const struct tsr_config *cfg)
{
    struct notes *notes = cfg->notes;
    for (size_t i = 0; i < notes->n; i++) {
        if (!notes->told[i]) tsri_log(notes->rows[i].level, "%s", notes->rows[i].text);
        notes->told[i] = true;
    }
}

int tsri_config_attach(struct tsr_config *cfg, const void *ops, void *arg)
{
    if (cfg->n_attached == TSRI_ATTACHED_MAX)
        return tsri_fail(TSR_ERANGE, "too many attached tiers (%u)", TSRI_ATTACHED_MAX);
    cfg->attached[cfg->n_attached++] = (struct tsri_attached){ops, arg};
    return 0;
}

size_t tsri_config_attached(const struct tsr_config *cfg, const struct tsri_attached **out)
{
    *out = cfg->attached;
    return cfg->n_attached;
}
