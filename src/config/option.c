/* option.c - the table as data, and one value: text to value, value to canonical text, range. Knows
 * nothing of where a setting came from. Numbers are read without the C locale's help, because the
 * library lives in processes that may have set one. */
#include "config/config.h"

#include <ctype.h>
#include <locale.h>
#include <stdlib.h>
#include <strings.h>

/* ---- the table ---- */

#define NAME(constant, text) text,
static const char *const names_hash[] = {TSRI_ENUM_hash(NAME) NULL};
static const char *const names_partial[] = {TSRI_ENUM_partial(NAME) NULL};
static const char *const names_policy[] = {TSRI_ENUM_policy(NAME) NULL};
static const char *const names_owner[] = {TSRI_ENUM_owner(NAME) NULL};
static const char *const names_log_level[] = {TSRI_ENUM_log_level(NAME) NULL};
static const char *const names_disk_admission[] = {TSRI_ENUM_disk_admission(NAME) NULL};
static const char *const names_disk_io[] = {TSRI_ENUM_disk_io(NAME) NULL};
static const char *const names_disk_write[] = {TSRI_ENUM_disk_write(NAME) NULL};
static const char *const names_s3_path_style[] = {TSRI_ENUM_s3_path_style(NAME) NULL};
#undef NAME
#define names_disk_policy names_policy
#define names_disk2_policy names_policy
#define names_disk2_write names_disk_write
#define names_disk2_admission names_disk_admission
#define names_redis_write names_disk_write
#define names_redis_admission names_disk_admission
#define names_s3_write names_disk_write
#define names_s3_admission names_disk_admission
#define names_attached_policy names_policy
#define names_attached_write names_disk_write
#define names_attached_admission names_disk_admission

#define NAMES_BOOL(name) NULL
#define NAMES_COUNT(name) NULL
#define NAMES_SIZE(name) NULL
#define NAMES_FLOAT(name) NULL
#define NAMES_ENUM(name) names_##name
#define NAMES_LIST(name) NULL
#define NAMES_STRING(name) NULL
#define NAMES_PATH(name) NULL
#define ROW(name, type, def, min, max, flags, help) \
    {#name, \
     def, \
     help, \
     NAMES_##type(name), \
     (double)(min), \
     (double)(max), \
     offsetof(struct tsri_options, name), \
     TSRI_OPTION_##type, \
     flags},
static const struct tsri_option table[] = {TSRI_OPTIONS(ROW)};
#undef ROW

/* COUNT fields are 32 bits wide and limits are compared as doubles. */
#define FITS_BOOL(max) true
#define FITS_COUNT(max) ((max) <= UINT32_MAX)
#define FITS_SIZE(max) ((max) <= (uint64_t)1 << 53)
#define FITS_FLOAT(max) true
#define FITS_ENUM(max) true
#define FITS_LIST(max) true
#define FITS_STRING(max) ((max) <= 65535)
#define FITS_PATH(max) ((max) <= 65535)
#define FITS(name, type, def, min, max, flags, help) \
    _Static_assert(FITS_##type(max), #name ": limit beyond its field");
TSRI_OPTIONS(FITS)
#undef FITS
_Static_assert((int)TSRI_LOG_LEVEL_ERROR == (int)TSR_LOG_ERROR &&
                   (int)TSRI_LOG_LEVEL_DEBUG == (int)TSR_LOG_DEBUG,
               "log_level is enum tsr_log_level");

size_t tsri_option_count(void)
{
    return TSRI_COUNT(table);
}

const struct tsri_option *tsri_option_at(size_t i)
{
    TSR_ASSERT(i < TSRI_COUNT(table));
    return &table[i];
}

const struct tsri_option *tsri_option_find(const char *name)
{
    for (size_t i = 0; i < TSRI_COUNT(table); i++)
        if (tsri_same_name(table[i].name, name)) return &table[i];
    return NULL;
}

const char *tsri_option_type_text(const struct tsri_option *o)
{
    static const char *const names[] = {"bool", "count", "size",   "float",
                                        "enum", "list",  "string", "path"};
    return names[o->type];
}

/* ---- text to value ---- */

bool tsri_parse_bool(const char *text, bool *out)
{
    static const char *const words[][2] = {
        {"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < TSRI_COUNT(words); i++) {
        for (int v = 0; v < 2; v++) {
            if (strcasecmp(text, words[i][v]) != 0) continue;
            *out = v != 0;
            return true;
        }
    }
    return false;
}

/* Digits at *at, at most `digits_max` of them, leading zeros included. */
static bool parse_digits(const char **at, int digits_max, uint64_t *out, int *n_digits)
{
    const char *p = *at;
    uint64_t v = 0;
    int n = 0;
    for (; *p >= '0' && *p <= '9'; p++, n++) {
        if (n == digits_max) return false;
        v = v * 10 + (uint64_t)(*p - '0');
    }
    *at = p;
    *out = v;
    *n_digits = n;
    return n > 0;
}

bool tsri_parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    const char *p = text;
    uint64_t whole = 0, fraction = 0, scale = 1;
    int n;
    if (!parse_digits(&p, 18, &whole, &n)) return false;
    if (*p == '.') {
        p++;
        if (!parse_digits(&p, 6, &fraction, &n)) return false;
        for (; n > 0; n--)
            scale *= 10;
    }
    const char *unit = *p ? strchr(units, toupper((unsigned char)*p)) : NULL;
    unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
    if (unit) {
        p++;
        if (*p == 'i') p++;
        if (*p == 'B') p++;
    }
    if (*p || (!unit && scale > 1)) return false;
    if (whole > (UINT64_MAX >> shift) - 1) return false;
    /* fraction < 10^6 and shift <= 40: the product stays below 2^60. */
    *out = (whole << shift) + (fraction << shift) / scale;
    return true;
}

bool tsri_parse_float(const char *text, double *out)
{
    if (!*text || strlen(text) > 40 || text[strspn(text, "0123456789.eE+-")]) return false;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    char *end;
    double v = strtod_l(text, &end, plain);
    freelocale(plain);
    if (*end || v != v || v > 1e300 || v < -1e300) return false;
    *out = v;
    return true;
}

static bool parse_number(const struct tsri_option *o, const char *text, uint64_t *out, char *why,
                         size_t bytes)
{
    const char *p = text;
    int n;
    bool size = o->type == TSRI_OPTION_SIZE;
    bool good = size ? tsri_parse_size(text, out) : parse_digits(&p, 18, out, &n) && !*p;
    char shown[80];
    if (!good) {
        snprintf(why, bytes, "\"%s\" is not a %s", tsri_printable(text, shown, sizeof shown),
                 size ? "size (bytes, or a number with K, M, G or T)" : "whole number");
        return false;
    }
    bool zero = *out == 0 && (o->flags & TSRI_OPT_ZERO);
    if (!zero && ((double)*out < o->min || (double)*out > o->max)) {
        char range[160];
        tsri_option_range_text(o, range, sizeof range);
        snprintf(why, bytes, "%s is out of range (%s)", tsri_printable(text, shown, sizeof shown),
                 range);
        return false;
    }
    if ((o->flags & TSRI_OPT_POW2) && (*out & (*out - 1))) {
        snprintf(why, bytes, "%s is not a power of two", tsri_printable(text, shown, sizeof shown));
        return false;
    }
    return true;
}

static bool parse_enum(const struct tsri_option *o, const char *text, int *out, char *why,
                       size_t bytes)
{
    size_t best = SIZE_MAX;
    const char *nearest = "";
    for (int i = 0; o->names[i]; i++) {
        if (strcasecmp(o->names[i], text) == 0) {
            *out = i;
            return true;
        }
        size_t far = tsri_edit_distance(o->names[i], text);
        if (far >= best) continue;
        best = far;
        nearest = o->names[i];
    }
    char range[160], shown[80];
    tsri_option_range_text(o, range, sizeof range);
    bool near = best <= 2 || best <= strlen(text) / 2;
    snprintf(why, bytes, "\"%s\" is not one of %s%s%s%s", tsri_printable(text, shown, sizeof shown),
             range, near ? "; did you mean \"" : "", near ? nearest : "", near ? "\"?" : "");
    return false;
}

static bool parse_text(const struct tsri_option *o, const char *text, char *why, size_t bytes)
{
    size_t n = strlen(text);
    if ((double)n >= o->min && (double)n <= o->max) return true;
    char range[160];
    tsri_option_range_text(o, range, sizeof range);
    snprintf(why, bytes, "text of %zu bytes (%s)", n, range);
    return false;
}

/* One number of a list, blanks around it allowed. */
static bool parse_item(const struct tsri_option *o, const char *text, size_t n, double *out)
{
    char item[48];
    while (n && isspace((unsigned char)*text))
        text++, n--;
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    if (!n || n >= sizeof item) return false;
    memcpy(item, text, n);
    item[n] = 0;
    if (!tsri_parse_float(item, out) || *out < o->min || *out > o->max) return false;
    return !(o->flags & TSRI_OPT_WHOLE) || (double)(uint64_t)*out >= *out;
}

static bool parse_list(const struct tsri_option *o, const char *text, struct tsri_list *out,
                       char *why, size_t bytes)
{
    const uint32_t most = o->flags & TSRI_OPT_ONE ? 1 : TSRI_LIST_MAX;
    char shown[80], range[160];
    *out = (struct tsri_list){0};
    if (!text[strspn(text, " ")]) return true;
    for (const char *at = text, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        if (out->n < most && parse_item(o, at, (size_t)(end - at), &out->values[out->n])) {
            out->n++;
            continue;
        }
        tsri_option_range_text(o, range, sizeof range);
        snprintf(why, bytes, "\"%s\" is not %s", tsri_printable(text, shown, sizeof shown), range);
        return false;
    }
    return true;
}

bool tsri_option_parse(const struct tsri_option *o, const char *text, union tsri_value *out,
                       char *why, size_t why_bytes)
{
    char shown[80];
    switch (o->type) {
    case TSRI_OPTION_BOOL:
        if (tsri_parse_bool(text, &out->as_bool)) return true;
        snprintf(why, why_bytes, "\"%s\" is neither true nor false",
                 tsri_printable(text, shown, sizeof shown));
        return false;
    case TSRI_OPTION_COUNT:
    case TSRI_OPTION_SIZE:
        return parse_number(o, text, &out->as_number, why, why_bytes);
    case TSRI_OPTION_FLOAT:
        if (!tsri_parse_float(text, &out->as_float)) {
            snprintf(why, why_bytes, "\"%s\" is not a number",
                     tsri_printable(text, shown, sizeof shown));
            return false;
        }
        if (out->as_float >= o->min && out->as_float <= o->max) return true;
        snprintf(why, why_bytes, "%s is out of range (%g to %g)", text, o->min, o->max);
        return false;
    case TSRI_OPTION_ENUM:
        return parse_enum(o, text, &out->as_enum, why, why_bytes);
    case TSRI_OPTION_LIST:
        return parse_list(o, text, &out->as_list, why, why_bytes);
    case TSRI_OPTION_STRING:
    case TSRI_OPTION_PATH:
        return parse_text(o, text, why, why_bytes);
    }
    return false;
}

/* ---- value to text ---- */

static void format_size(uint64_t v, char *buf, size_t bytes)
{
    static const char units[] = " KMGT";
    unsigned unit = 0;
    while (v && v % 1024 == 0 && unit < 4) {
        v /= 1024;
        unit++;
    }
    if (unit)
        snprintf(buf, bytes, "%llu%c", (unsigned long long)v, units[unit]);
    else
        snprintf(buf, bytes, "%llu", (unsigned long long)v);
}

/* The shortest text that reads back as the same number. */
static void format_float(double v, char *buf, size_t bytes)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = plain ? uselocale(plain) : (locale_t)0;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, bytes, "%.*g", digits, v);
        double back = strtod(buf, NULL);
        if (back >= v && back <= v) break;
    }
    if (plain) {
        uselocale(before);
        freelocale(plain);
    }
}

static void format_list(const struct tsri_list *list, char *buf, size_t bytes)
{
    char item[32];
    size_t at = 0;
    buf[0] = 0;
    for (uint32_t i = 0; i < list->n && at < bytes; i++) {
        format_float(list->values[i], item, sizeof item);
        at += (size_t)snprintf(buf + at, bytes - at, "%s%s", i ? "," : "", item);
    }
}

void tsri_option_format(const struct tsri_option *o, union tsri_value v, char *buf, size_t bytes)
{
    TSR_ASSERT(o->type != TSRI_OPTION_STRING && o->type != TSRI_OPTION_PATH);
    switch (o->type) {
    case TSRI_OPTION_BOOL:
        snprintf(buf, bytes, "%s", v.as_bool ? "true" : "false");
        return;
    case TSRI_OPTION_COUNT:
        snprintf(buf, bytes, "%llu", (unsigned long long)v.as_number);
        return;
    case TSRI_OPTION_SIZE:
        format_size(v.as_number, buf, bytes);
        return;
    case TSRI_OPTION_FLOAT:
        format_float(v.as_float, buf, bytes);
        return;
    case TSRI_OPTION_ENUM:
        snprintf(buf, bytes, "%s", o->names[v.as_enum]);
        return;
    case TSRI_OPTION_LIST:
        format_list(&v.as_list, buf, bytes);
        return;
    case TSRI_OPTION_STRING:
    case TSRI_OPTION_PATH:
        break;
    }
}

static void range_names(const struct tsri_option *o, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; o->names[i] && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%s", i ? ", " : "", o->names[i]);
}

void tsri_option_range_text(const struct tsri_option *o, char *buf, size_t bytes)
{
    char low[TSRI_OPTION_TEXT_BYTES], high[TSRI_OPTION_TEXT_BYTES];
    union tsri_value min = {.as_float = o->min}, max = {.as_float = o->max};
    switch (o->type) {
    case TSRI_OPTION_BOOL:
        snprintf(buf, bytes, "true, false");
        return;
    case TSRI_OPTION_COUNT:
    case TSRI_OPTION_SIZE:
        min.as_number = (uint64_t)o->min;
        max.as_number = (uint64_t)o->max;
        break;
    case TSRI_OPTION_FLOAT:
        break;
    case TSRI_OPTION_ENUM:
        range_names(o, buf, bytes);
        return;
    case TSRI_OPTION_LIST:
        snprintf(buf, bytes, "%s%s%s from %g to %g", o->flags & TSRI_OPT_ONE ? "one" : "up to 8",
                 o->flags & TSRI_OPT_WHOLE ? " whole" : "",
                 o->flags & TSRI_OPT_ONE ? " number" : " numbers", o->min, o->max);
        return;
    case TSRI_OPTION_STRING:
    case TSRI_OPTION_PATH:
        if (o->min > 0)
            snprintf(buf, bytes, "%g to %g bytes", o->min, o->max);
        else
            snprintf(buf, bytes, "up to %g bytes", o->max);
        return;
    }
    tsri_option_format(o, min, low, sizeof low);
    tsri_option_format(o, max, high, sizeof high);
    snprintf(buf, bytes, "%s%s to %s%s", o->flags & TSRI_OPT_ZERO ? "0, or " : "", low, high,
             o->flags & TSRI_OPT_POW2 ? ", a power of two" : "");
}
