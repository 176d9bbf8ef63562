/* yaml.c - the YAML we accept: one mapping of keys to scalars, where nested mappings join their
 * keys with '_' (host: {size: 1G} is host_size), lists of scalars become text with commas, and a
 * null is the option's default. What files of configuration do not need is refused with line and
 * column: anchors, aliases, tags, several documents, deep nesting, keys given twice, more than 1
 * MiB.
 *
 * libyaml's events are read one at a time; nothing is built in memory but the current key path and
 * the list of keys seen. */
#include "config/config.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define DEPTH_MAX 8
#define KEYS_MAX 1024
#define PATH_BYTES 256
#define LIST_BYTES 4096

struct seen {
    char *key;
    size_t line;
};

struct reader {
    yaml_parser_t parser;
    struct tsr_config *cfg;
    const char *text, *name; /* name stands for the file in messages */
    size_t bytes;
    unsigned depth;
    bool extra; /* all of it is below extra_config */
    /* Whose file it is: known from the start, else told by keys that only one side has. */
    bool theirs;
    size_t n_ours, n_theirs;
    char unknown[PATH_BYTES]; /* the first unknown key, an error if the file is ours; or "" */
    yaml_mark_t unknown_mark;
    size_t n_seen;
    struct seen seen[KEYS_MAX];
};

/* The keys around a value: as written, and as the option they make. */
struct path {
    char raw[PATH_BYTES];    /* "tessera.host." */
    char joined[PATH_BYTES]; /* "host" */
    bool extra;              /* below extra_config: others' names are theirs to invent */
};

/* Keys that only wrap ours, as other programs' files do it; they add nothing to the name. Those of an
 * engine are around our options as well, and do not tell whose file it is. */
enum whose { ANYBODYS, OURS, THEIRS };
static const struct {
    const char *key;
    enum whose whose;
} wrappers[] = {{"tessera", OURS},
                {"lmcache", THEIRS},
                {"ucm_connectors", THEIRS},
                {"ucm_connector_config", THEIRS},
                {"chunk_cache", THEIRS},
                {"kv_transfer", ANYBODYS},
                {"kv_transfer_config", ANYBODYS},
                {"kv_connector_extra_config", ANYBODYS}};

const char *tsri_yaml_wrapper(size_t i)
{
    return i < TSRI_COUNT(wrappers) ? wrappers[i].key : NULL;
}

/* LMCache's settings for backends and experiments, a mapping or the text of one. */
#define EXTRA "extra_config"
/* Texts in texts would be as deep as somebody likes. */
#define EXTRA_TWICE EXTRA " inside " EXTRA

/* Whose file it is that has such a key. */
static void count(struct reader *r, enum whose whose)
{
    r->n_ours += whose == OURS;
    r->n_theirs += whose == THEIRS;
}

static void count_known(struct reader *r, const char *key)
{
    const struct tsri_option *o = tsri_option_find(key);
    const struct tsri_compat *c = tsri_compat_find(key);
    if (o && !c) count(r, OURS);
    if (c && !o && c->owner != TSRI_OWNER_ENGINE) count(r, THEIRS);
}

static bool is_theirs(const struct reader *r)
{
    return r->theirs || (r->n_theirs && !r->n_ours);
}

static struct tsri_place place_of(const struct reader *r, yaml_mark_t mark)
{
    return (struct tsri_place){TSRI_FROM_FILE, r->name, mark.line + 1, mark.column + 1, NULL};
}

static int refuse_at(const struct reader *r, yaml_mark_t mark, const char *why)
{
    char where[TSRI_PLACE_BYTES];
    struct tsri_place place = place_of(r, mark);
    return tsri_fail(TSR_ECONFIG, "%s%s", tsri_place_text(&place, where, sizeof where), why);
}

/* libyaml gives bytes that are no text by offset alone. */
static yaml_mark_t mark_at_offset(const struct reader *r, size_t offset)
{
    yaml_mark_t mark = {0};
    if (offset > r->bytes) offset = r->bytes;
    for (mark.index = 0; mark.index < offset; mark.index++) {
        unsigned char c = (unsigned char)r->text[mark.index];
        if (c == '\n') {
            mark.line++;
            mark.column = 0;
        } else if ((c & 0xC0) != 0x80) {
            mark.column++;
        }
    }
    return mark;
}

static int fail_parser(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    char why[160];
    switch (p->error) {
    case YAML_MEMORY_ERROR:
        return tsri_fail(TSR_ENOMEM, "%s: out of memory", r->name);
    case YAML_READER_ERROR:
        snprintf(why, sizeof why, "not UTF-8 text: %s", p->problem);
        return refuse_at(r, mark_at_offset(r, p->problem_offset), why);
    default:
        snprintf(why, sizeof why, "%s%s%s", p->context ? p->context : "", p->context ? ": " : "",
                 p->problem ? p->problem : "not YAML");
        return refuse_at(r, p->problem_mark, why);
    }
}

/* The next event, of which the caller owns the content; what no configuration needs is refused. */
static int next_event(struct reader *r, yaml_event_t *ev)
{
    if (!yaml_parser_parse(&r->parser, ev)) return fail_parser(r);
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (ev->type == YAML_SCALAR_EVENT) {
        anchor = ev->data.scalar.anchor;
        tag = ev->data.scalar.tag;
    } else if (ev->type == YAML_SEQUENCE_START_EVENT) {
        anchor = ev->data.sequence_start.anchor;
        tag = ev->data.sequence_start.tag;
    } else if (ev->type == YAML_MAPPING_START_EVENT) {
        anchor = ev->data.mapping_start.anchor;
        tag = ev->data.mapping_start.tag;
    }
    const char *why = NULL;
    if (ev->type == YAML_ALIAS_EVENT || anchor) why = "anchors and aliases are not supported";
    if (tag) why = "tags are not supported";
    if (ev->type == YAML_SCALAR_EVENT && memchr(ev->data.scalar.value, 0, ev->data.scalar.length))
        why = "text contains a zero byte";
    if (!why) return 0;
    int err = refuse_at(r, ev->start_mark, why);
    yaml_event_delete(ev);
    return err;
}

static int enter(struct reader *r, yaml_mark_t mark)
{
    if (r->depth == DEPTH_MAX) return refuse_at(r, mark, "nested more than 8 levels deep");
    r->depth++;
    return 0;
}

/* Notes a key; one given twice is refused. */
static int note_key(struct reader *r, const char *key, yaml_mark_t mark)
{
    char why[160], shown[80];
    for (size_t i = 0; i < r->n_seen; i++) {
        if (strcmp(r->seen[i].key, key) != 0) continue;
        tsri_printable(key, shown, sizeof shown);
        size_t n = strlen(shown);
        if (n && shown[n - 1] == '.') shown[n - 1] = 0; /* the key of a mapping */
        snprintf(why, sizeof why, "%s: duplicate key, first on line %zu", shown, r->seen[i].line);
        return refuse_at(r, mark, why);
    }
    if (r->n_seen == KEYS_MAX) return refuse_at(r, mark, "more than 1024 keys");
    char *copy = tsri_strdup(key);
    if (!copy) return TSR_ENOMEM;
    r->seen[r->n_seen++] = (struct seen){copy, mark.line + 1};
    return 0;
}

/* Reads on to the end of the collection that has just begun. */
static int skip(struct reader *r, yaml_mark_t mark)
{
    unsigned around = r->depth;
    int err = enter(r, mark);
    while (!err && r->depth > around) {
        yaml_event_t ev;
        err = next_event(r, &ev);
        if (err) break;
        if (ev.type == YAML_MAPPING_START_EVENT || ev.type == YAML_SEQUENCE_START_EVENT)
            err = enter(r, ev.start_mark);
        else if (ev.type == YAML_MAPPING_END_EVENT || ev.type == YAML_SEQUENCE_END_EVENT)
            r->depth--;
        yaml_event_delete(&ev);
    }
    return err;
}

static bool is_null(const yaml_event_t *ev)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    for (size_t i = 0; i < TSRI_COUNT(words); i++)
        if (strcmp((const char *)ev->data.scalar.value, words[i]) == 0) return true;
    return false;
}

/* A list of scalars as text with commas. */
static int read_list(struct reader *r, char *out, size_t bytes, yaml_mark_t mark)
{
    size_t at = 0;
    out[0] = 0;
    for (bool first = true;; first = false) {
        yaml_event_t ev;
        int err = next_event(r, &ev);
        if (err) return err;
        bool end = ev.type == YAML_SEQUENCE_END_EVENT;
        if (!end && ev.type != YAML_SCALAR_EVENT)
            err = refuse_at(r, ev.start_mark, "a list may only hold single values");
        size_t n = !end && !err ? ev.data.scalar.length : 0;
        if (!end && !err && at + n + 2 > bytes) err = refuse_at(r, mark, "list too long");
        if (!end && !err) {
            if (!first) out[at++] = ',';
            memcpy(out + at, ev.data.scalar.value, n + 1);
            at += n;
        }
        yaml_event_delete(&ev);
        if (err || end) return err;
    }
}

static bool is_known(const char *key)
{
    return tsri_option_find(key) || tsri_compat_find(key);
}

/* Ignores a key with a note. Whether that will do is known at the end of the file. */
static int ignore_unknown(struct reader *r, const struct path *path, yaml_mark_t mark)
{
    struct tsri_place place = place_of(r, mark);
    if (!path->extra && !*r->unknown) {
        snprintf(r->unknown, sizeof r->unknown, "%s", path->joined);
        r->unknown_mark = mark;
    }
    return tsri_config_ignore_unknown(r->cfg, path->raw, path->extra ? EXTRA ": " : "",
                                      path->joined, &place);
}

static int put(struct reader *r, const struct path *path, const char *value, yaml_mark_t key_mark,
               yaml_mark_t value_mark)
{
    const char *key = path->joined;
    char inside[sizeof EXTRA + PATH_BYTES];
    if (path->extra && !is_known(key)) {
        /* What means something only there has a row of its own, such as extra_config_password. */
        snprintf(inside, sizeof inside, EXTRA "_%s", key);
        if (is_known(inside)) key = inside;
    }
    if (path->extra && tsri_same_name(EXTRA, key)) return refuse_at(r, key_mark, EXTRA_TWICE);
    int err = note_key(r, path->extra ? path->raw : key, key_mark);
    if (err) return err;
    if (!is_known(key)) return ignore_unknown(r, path, key_mark);
    if (!path->extra) count_known(r, key);
    struct tsri_place place = place_of(r, value_mark);
    return tsri_config_put(r->cfg, key, value, &place);
}

/* Adds a key to the path. */
static int extend(struct reader *r, struct path *path, const yaml_event_t *key)
{
    const char *const written = (const char *)key->data.scalar.value, *text = written;
    size_t raw = strlen(path->raw), joined = strlen(path->joined), n = key->data.scalar.length;
    if (n == 0) return refuse_at(r, key->start_mark, "empty key");
    if (raw + n + 2 > PATH_BYTES || joined + n + 2 > PATH_BYTES)
        return refuse_at(r, key->start_mark, "key too long");
    snprintf(path->raw + raw, PATH_BYTES - raw, "%s.", text);
    if (joined == 0) text = tsri_config_bare_key(text);
    if (text != written) count(r, THEIRS);
    for (size_t i = 0; joined == 0 && i < TSRI_COUNT(wrappers); i++) {
        if (strcmp(text, wrappers[i].key) != 0) continue;
        count(r, wrappers[i].whose);
        return 0;
    }
    if (joined == 0 && strcmp(text, EXTRA) == 0) {
        if (path->extra) return refuse_at(r, key->start_mark, EXTRA_TWICE);
        path->extra = true;
        count(r, THEIRS);
        return 0;
    }
    snprintf(path->joined + joined, PATH_BYTES - joined, "%s%s", joined ? "_" : "", text);
    return 0;
}

static int read_mapping(struct reader *r, const struct path *path, yaml_mark_t mark);

/* Adds the value of a key as a line, or, if that is a mapping, its lines. */
static int add_line(struct reader *r, char *key, char *lines, yaml_mark_t key_mark);

/* A mapping as lines of KEY.KEY=VALUE, for values whose keys have a meaning of their own. */
static int read_lines(struct reader *r, char *key, char *lines, yaml_mark_t mark)
{
    size_t around = strlen(key);
    int err = enter(r, mark);
    while (!err) {
        yaml_event_t ev;
        err = next_event(r, &ev);
        if (err) return err;
        bool end = ev.type == YAML_MAPPING_END_EVENT, word = ev.type == YAML_SCALAR_EVENT;
        const char *text = word ? (const char *)ev.data.scalar.value : "";
        yaml_mark_t key_mark = ev.start_mark;
        if (!end && (!word || !*text || strpbrk(text, "=\n")))
            err = refuse_at(r, key_mark, "a key must be a single word");
        else if (!end && around + strlen(text) + 2 > PATH_BYTES)
            err = refuse_at(r, key_mark, "key too long");
        else if (!end)
            snprintf(key + around, PATH_BYTES - around, "%s%s", around ? "." : "", text);
        yaml_event_delete(&ev);
        if (end) {
            r->depth--;
            return 0;
        }
        if (!err) err = add_line(r, key, lines, key_mark);
        key[around] = 0;
    }
    return err;
}

static int add_line(struct reader *r, char *key, char *lines, yaml_mark_t key_mark)
{
    yaml_event_t ev;
    int err = next_event(r, &ev);
    if (err) return err;
    yaml_mark_t mark = ev.start_mark;
    bool nested = ev.type == YAML_MAPPING_START_EVENT, word = ev.type == YAML_SCALAR_EVENT;
    const char *value = word ? (const char *)ev.data.scalar.value : "";
    size_t at = strlen(lines);
    if ((!nested && !word) || strchr(value, '\n'))
        err = refuse_at(r, mark, "expected a single value");
    else if (word && at + strlen(key) + strlen(value) + 3 > LIST_BYTES)
        err = refuse_at(r, key_mark, "mapping too long");
    else if (word)
        snprintf(lines + at, LIST_BYTES - at, "%s=%s\n", key, value);
    yaml_event_delete(&ev);
    return !err && nested ? read_lines(r, key, lines, mark) : err;
}

static int read_nested(struct reader *r, const struct path *path, const yaml_event_t *value,
                       yaml_mark_t key_mark)
{
    const struct tsri_compat *c = *path->joined ? tsri_compat_find(path->joined) : NULL;
    if (c && c->action == TSRI_COMPAT_IGNORE) {
        int err = put(r, path, "a mapping", key_mark, key_mark);
        return err ? err : skip(r, value->start_mark);
    }
    if (c && c->action == TSRI_COMPAT_LINES) {
        char lines[LIST_BYTES] = "", key[PATH_BYTES] = "";
        int err = read_lines(r, key, lines, value->start_mark);
        return err ? err : put(r, path, lines, key_mark, key_mark);
    }
    int err = note_key(r, path->raw, key_mark);
    return err ? err : read_mapping(r, path, value->start_mark);
}

/* The value of a key that wraps options. */
static int read_wrapped_text(struct reader *r, const struct path *path, const yaml_event_t *ev,
                             yaml_mark_t key_mark)
{
    int err = note_key(r, path->raw, key_mark);
    if (err || is_null(ev)) return err;
    if (!path->extra) return refuse_at(r, ev->start_mark, "expected options below this key");
    struct tsri_place place = place_of(r, ev->start_mark);
    return tsri_yaml_put_extra(r->cfg, (const char *)ev->data.scalar.value, &place);
}

/* A list below a key that wraps options: each item is a mapping of them. */
static int read_items(struct reader *r, const struct path *path, yaml_mark_t key_mark,
                      yaml_mark_t mark)
{
    int err = note_key(r, path->raw, key_mark);
    if (!err) err = enter(r, mark);
    while (!err) {
        yaml_event_t ev;
        err = next_event(r, &ev);
        if (err) return err;
        bool end = ev.type == YAML_SEQUENCE_END_EVENT, item = ev.type == YAML_MAPPING_START_EVENT;
        yaml_mark_t item_mark = ev.start_mark;
        yaml_event_delete(&ev);
        if (end) {
            r->depth--;
            return 0;
        }
        err = item ? read_mapping(r, path, item_mark)
                   : refuse_at(r, item_mark, "expected options below this key");
    }
    return err;
}

static int read_sequence(struct reader *r, const struct path *path, yaml_mark_t key_mark,
                         yaml_mark_t mark)
{
    char list[LIST_BYTES];
    if (!*path->joined) return read_items(r, path, key_mark, mark);
    const struct tsri_compat *c = tsri_compat_find(path->joined);
    if (!is_known(path->joined) || (c && c->action == TSRI_COMPAT_IGNORE)) {
        int err = put(r, path, "a list", key_mark, key_mark);
        return err ? err : skip(r, mark);
    }
    int err = read_list(r, list, sizeof list, mark);
    return err ? err : put(r, path, list, key_mark, mark);
}

/* The value of the key that ends the path. */
static int read_value(struct reader *r, const struct path *path, yaml_mark_t key_mark)
{
    yaml_event_t ev;
    int err = next_event(r, &ev);
    if (err) return err;
    switch (ev.type) {
    case YAML_SCALAR_EVENT:
        if (*path->joined)
            err = put(r, path, is_null(&ev) ? NULL : (const char *)ev.data.scalar.value, key_mark,
                      ev.start_mark);
        else
            err = read_wrapped_text(r, path, &ev, key_mark);
        break;
    case YAML_SEQUENCE_START_EVENT:
        err = read_sequence(r, path, key_mark, ev.start_mark);
        break;
    case YAML_MAPPING_START_EVENT:
        err = read_nested(r, path, &ev, key_mark);
        break;
    default:
        err = refuse_at(r, ev.start_mark, "expected a value");
    }
    yaml_event_delete(&ev);
    return err;
}

static int read_mapping(struct reader *r, const struct path *path, yaml_mark_t mark)
{
    int err = enter(r, mark);
    if (err) return err;
    for (;;) {
        yaml_event_t key;
        err = next_event(r, &key);
        if (err) return err;
        if (key.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&key);
            r->depth--;
            return 0;
        }
        struct path below = *path;
        yaml_mark_t key_mark = key.start_mark;
        if (key.type == YAML_SCALAR_EVENT)
            err = extend(r, &below, &key);
        else
            err = refuse_at(r, key_mark, "a key must be a single word");
        yaml_event_delete(&key);
        if (!err) err = read_value(r, &below, key_mark);
        if (err) return err;
    }
}

/* Stream, at most one document, its mapping. */
static int read_stream(struct reader *r)
{
    struct path top = {.extra = r->extra};
    unsigned n_documents = 0;
    for (;;) {
        yaml_event_t ev;
        int err = next_event(r, &ev);
        if (err) return err;
        bool end = ev.type == YAML_STREAM_END_EVENT;
        if (ev.type == YAML_DOCUMENT_START_EVENT && ++n_documents > 1)
            err = refuse_at(r, ev.start_mark, "more than one document");
        else if (ev.type == YAML_MAPPING_START_EVENT)
            err = read_mapping(r, &top, ev.start_mark);
        else if (ev.type == YAML_SEQUENCE_START_EVENT ||
                 (ev.type == YAML_SCALAR_EVENT && !is_null(&ev)))
            err = refuse_at(r, ev.start_mark, "expected key: value");
        yaml_event_delete(&ev);
        if (err || end) return err;
    }
}

struct source {
    const char *text, *name;
    size_t bytes;
    bool extra, theirs;
};

static int fill_from_text(struct tsr_config *draft, void *arg)
{
    const struct source *s = arg;
    struct reader *r = tsri_alloc(1, sizeof *r);
    if (!r) return TSR_ENOMEM;
    r->cfg = draft;
    r->text = s->text;
    r->bytes = s->bytes;
    r->name = s->name;
    r->extra = s->extra;
    r->theirs = s->theirs;
    int err = TSR_ENOMEM;
    if (yaml_parser_initialize(&r->parser)) {
        yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r->parser, (const unsigned char *)s->text, s->bytes);
        err = read_stream(r);
        if (!err && *r->unknown && !is_theirs(r)) {
            struct tsri_place place = place_of(r, r->unknown_mark);
            err = tsri_config_fail_unknown(r->unknown, &place);
        }
        yaml_parser_delete(&r->parser);
    } else {
        tsri_fail(TSR_ENOMEM, "%s: out of memory", s->name);
    }
    for (size_t i = 0; i < r->n_seen; i++)
        tsri_free(r->seen[i].key);
    tsri_free(r);
    return err;
}

static int load_text(struct tsr_config *cfg, struct source *s)
{
    if (s->bytes > FILE_BYTES_MAX)
        return tsri_fail(TSR_ECONFIG, "%s: %zu bytes, more than 1 MiB", s->name, s->bytes);
    return tsri_config_try(cfg, fill_from_text, s);
}

int tsr_config_load_text(struct tsr_config *cfg, const char *text, size_t bytes, const char *name)
{
    if (!cfg || !text) return tsri_fail(TSR_EINVAL, "config: %s is NULL", !cfg ? "cfg" : "text");
    struct source s = {.text = text, .name = name ? name : "text", .bytes = bytes};
    return load_text(cfg, &s);
}

int tsri_yaml_put_extra(struct tsr_config *cfg, const char *text, const struct tsri_place *place)
{
    struct source s = {text, place->name ? place->name : EXTRA, strlen(text), true, false};
    return tsri_config_try(cfg, fill_from_text, &s);
}

/* Reads at most `max` bytes; returns how many. */
static int read_up_to(const char *path, char *buf, size_t max, size_t *got)
{
    struct stat st;
    int fd = tsri_file_open(path, &st);
    if (fd < 0)
        return tsri_fail(errno == ENOENT ? TSR_ENOENT : TSR_EIO, "%s: %s", path,
                         errno == EINVAL ? "not a regular file" : strerror(errno));
    int err = 0;
    *got = 0;
    while (*got < max) {
        ssize_t n = read(fd, buf + *got, max - *got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) err = tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
        if (n <= 0) break;
        *got += (size_t)n;
    }
    close(fd);
    return err;
}

static int load_file(struct tsr_config *cfg, const char *path, bool theirs)
{
    char *text = tsri_alloc(FILE_BYTES_MAX + 1, 1);
    if (!text) return TSR_ENOMEM;
    size_t bytes = 0;
    int err = read_up_to(path, text, FILE_BYTES_MAX + 1, &bytes);
    if (!err && bytes > FILE_BYTES_MAX) err = tsri_fail(TSR_ECONFIG, "%s: more than 1 MiB", path);
    struct source s = {text, path, bytes, false, theirs};
    if (!err) err = load_text(cfg, &s);
    tsri_free(text);
    return err;
}

int tsr_config_load_file(struct tsr_config *cfg, const char *path)
{
    if (!cfg || !path) return tsri_fail(TSR_EINVAL, "config: %s is NULL", !cfg ? "cfg" : "path");
    return load_file(cfg, path, false);
}

int tsri_yaml_load_theirs(struct tsr_config *cfg, const char *path)
{
    return load_file(cfg, path, true);
}
