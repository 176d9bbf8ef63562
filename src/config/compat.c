/* compat.c - settings written for LMCache, UCM and the chunk cache of vLLM: looked up in
 * compat_keys.h, converted, and passed on as one of our options, or ignored with a note, which
 * becomes one log line. Its level depends on whether somebody may miss what is ignored. */
#include "config/config.h"
#include "config/compat_keys.h"

#include <strings.h>

#define ROW(key, owner, action, option, level, note) \
    {#key, option, note, TSRI_OWNER_##owner, TSRI_COMPAT_##action, TSR_LOG_##level},
static const struct tsri_compat table[] = {TSRI_COMPAT(ROW)};
#undef ROW

size_t tsri_compat_count(void)
{
    return TSRI_COUNT(table);
}

const struct tsri_compat *tsri_compat_at(size_t i)
{
    TSR_ASSERT(i < TSRI_COUNT(table));
    return &table[i];
}

static bool is_pattern(const struct tsri_compat *c)
{
    return c->key[strlen(c->key) - 1] == '*';
}

static bool begins_like(const char *pattern, const char *key)
{
    for (; *pattern != '*'; pattern++, key++)
        if (*key != *pattern && !(*pattern == '_' && *key == '-')) return false;
    return true;
}

const struct tsri_compat *tsri_compat_find(const char *key)
{
    for (size_t i = 0; i < TSRI_COUNT(table); i++)
        if (tsri_same_name(table[i].key, key)) return &table[i];
    for (size_t i = 0; i < TSRI_COUNT(table); i++)
        if (is_pattern(&table[i]) && begins_like(table[i].key, key)) return &table[i];
    return NULL;
}

const char *tsri_compat_owner_text(const struct tsri_compat *c)
{
    static const char *const names[] = {"LMCache", "UCM", "chunk cache", "engine"};
    return names[c->owner];
}

const char *tsri_compat_does_text(const struct tsri_compat *c)
{
    if (*c->option) return c->option;
    if (c->action == TSRI_COMPAT_EXTRA) return "the keys in it";
    if (c->action == TSRI_COMPAT_FILE) return "the keys in that file";
    if (c->action == TSRI_COMPAT_ALWAYS) return "always on";
    return c->owner == TSRI_OWNER_ENGINE ? "not ours" : "ignored";
}

bool tsri_compat_is_switch(const struct tsri_compat *c)
{
    const struct tsri_option *o = *c->option ? tsri_option_find(c->option) : NULL;
    bool named = strncmp(c->key, "enable_", 7) == 0 || strncmp(c->key, "use_", 4) == 0;
    return o ? o->type == TSRI_OPTION_BOOL && c->action != TSRI_COMPAT_ENGINE
             : c->action == TSRI_COMPAT_ALWAYS || named;
}

/* None is Python's null. */
static bool is_none(const char *value)
{
    return !value || strcasecmp(value, "none") == 0 || strcasecmp(value, "null") == 0;
}

/* What every conversion needs. */
struct setting {
    struct tsr_config *cfg;
    const struct tsri_compat *row;
    const char *key; /* as the row has it; of a pattern, as it was written */
    const char *value;
    const struct tsri_place *place; /* with the row's key as alias */
};

static int pass_on(const struct setting *s, const char *value)
{
    return tsri_config_put(s->cfg, s->row->option, value, s->place);
}

/* Adds a note about the setting; `what` says what becomes of it. */
static int note(const struct setting *s, int level, const char *what)
{
    char where[TSRI_PLACE_BYTES], text[TSRI_PLACE_BYTES + 384], shown[80];
    snprintf(text, sizeof text, "%s%s: %s: %s", tsri_place_text(s->place, where, sizeof where),
             s->key, tsri_printable(s->value, shown, sizeof shown), what);
    return tsri_config_note(s->cfg, s->key, level, text);
}

/* Nothing is set. Whether somebody may miss it depends on the value too. */
static int ignore(const struct setting *s)
{
    char where[TSRI_PLACE_BYTES], text[TSRI_PLACE_BYTES + 384];
    bool on = true;
    bool asks = !is_none(s->value) && (!tsri_parse_bool(s->value, &on) || on);
    snprintf(text, sizeof text, "%s%s (%s): ignored: %s",
             tsri_place_text(s->place, where, sizeof where), s->key, tsri_compat_owner_text(s->row),
             s->row->note);
    return tsri_config_note(s->cfg, s->key, asks ? (int)s->row->level : TSR_LOG_INFO, text);
}

static int refuse(const struct setting *s, const char *why)
{
    char where[TSRI_PLACE_BYTES], shown[80];
    return tsri_fail(TSR_ECONFIG, "%s%s (%s here): \"%s\" %s",
                     tsri_place_text(s->place, where, sizeof where), s->row->key, s->row->option,
                     tsri_printable(s->value, shown, sizeof shown), why);
}

/* No host memory is not possible: all KV passes through it. 256M hold eight blocks of 256 tokens of
 * an 8B model (128 KiB a token), enough to fill some while others go to a lower tier. */
#define HOST_LEAST "256M"

static int put_gb(const struct setting *s)
{
    double gb;
    if (!tsri_parse_float(s->value, &gb) || gb < 0 || gb > (double)(1 << 20))
        return refuse(s, "is not a number of GB");
    if (gb <= 0 && strcmp(s->row->option, "disk_size") == 0)
        return note(s, TSR_LOG_INFO,
                    "ignored: disk_size is unchanged; without disk_path there is no disk tier");
    if (gb <= 0) {
        int err =
            note(s, TSR_LOG_WARN,
                 "host memory is always the first tier: using " HOST_LEAST "; write host_size");
        return err ? err : pass_on(s, HOST_LEAST);
    }
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)(gb * (double)TSRI_GIB));
    return pass_on(s, bytes);
}

static int put_dir(const struct setting *s)
{
    const char *path = s->value;
    bool on;
    if (tsri_parse_bool(path, &on)) {
        if (on) return refuse(s, "is not a path");
        path = "";
    }
    if (strncmp(path, "file://", 7) == 0) path += 7;
    const char *end = strpbrk(path, s->row->owner == TSRI_OWNER_UCM ? ":," : ",");
    if (!end) return pass_on(s, path);
    char first[4096];
    size_t n = (size_t)(end - path);
    if (n >= sizeof first) return refuse(s, "is too long for a path");
    memcpy(first, path, n);
    first[n] = 0;
    int err = note(s, TSR_LOG_WARN,
                   "only the first of several paths is used; a second disk tier "
                   "is disk2_path");
    return err ? err : pass_on(s, first);
}

static int put_digest(const struct setting *s)
{
    if (strncasecmp(s->value, "xxh", 3) == 0) return pass_on(s, "xxh3");
    if (strncasecmp(s->value, "sha256", 6) == 0) return pass_on(s, "sha256");
    if (strcasecmp(s->value, "builtin") == 0 || strcasecmp(s->value, "blake3") == 0) {
        int err = note(s, TSR_LOG_WARN, "using sha256 instead; write hash: sha256 or xxh3");
        return err ? err : pass_on(s, "sha256");
    }
    return pass_on(s, s->value);
}

static int put_evict(const struct setting *s)
{
    static const char *const foreign[] = {"lfu", "fifo", "mru", "arc", "isolatedlru", "noop"};
    const struct tsri_option *o = tsri_option_find(s->row->option);
    for (int i = 0; o->names[i]; i++)
        if (strcasecmp(s->value, o->names[i]) == 0) return pass_on(s, s->value);
    for (size_t i = 0; i < TSRI_COUNT(foreign); i++) {
        if (strcasecmp(s->value, foreign[i]) != 0) continue;
        int err = note(s, TSR_LOG_WARN,
                       "is not a policy here: using adaptive instead; write policy: lru, s3fifo or "
                       "adaptive");
        return err ? err : pass_on(s, "adaptive");
    }
    return pass_on(s, s->value);
}

/* ---- documents at any place ---- */

/* Turns a mode on, with the separator that its users expect where none is set. */
static int put_mode(const struct setting *s, const char *separator)
{
    bool on = false;
    int err = pass_on(s, s->value);
    if (err || !tsri_parse_bool(s->value, &on) || !on || *tsri_config_options(s->cfg)->separator)
        return err;
    return tsri_config_put(s->cfg, "separator", separator, s->place);
}

/* UCM cuts a prompt into chunks of so many tokens and looks for each of them anywhere in stored
 * text. Here the runs that are found have their own length: shorter ones than a chunk are left. */
static int put_runs(const struct setting *s)
{
    int err = pass_on(s, s->value);
    return err ? err : tsri_ucm_blend_anywhere(s->cfg, s->place);
}

/* Files that name files could go round in circles. */
static int put_file(const struct setting *s)
{
    if (s->place->from == TSRI_FROM_FILE)
        return note(s, TSR_LOG_WARN,
                    "ignored: a file cannot name another; TESSERA_CONFIG_FILE names it");
    return is_none(s->value) ? 0 : tsri_yaml_load_theirs(s->cfg, s->value);
}

/* The kind of LMCache's server. */
static int put_engine(const struct setting *s)
{
    if (strcasecmp(s->value, "default") == 0) return 0;
    if (strncasecmp(s->value, "blend", 5) != 0)
        return refuse(s, "is not an engine here: default or blend");
    struct setting on = *s;
    on.value = "true";
    return put_mode(&on, TSRI_LMCACHE_SEPARATOR);
}

/* What is always so cannot be turned off. */
static int put_always(const struct setting *s)
{
    bool on = true;
    char where[TSRI_PLACE_BYTES];
    if (is_none(s->value) || !tsri_parse_bool(s->value, &on) || on) return 0;
    if (s->row->level != TSR_LOG_ERROR) {
        char what[320];
        snprintf(what, sizeof what, "has no effect: %s", s->row->note);
        return note(s, (int)s->row->level, what);
    }
    return tsri_fail(TSR_ECONFIG, "%s%s: false is not possible: %s",
                     tsri_place_text(s->place, where, sizeof where), s->key, s->row->note);
}

int tsri_compat_put(struct tsr_config *cfg, const struct tsri_compat *c, const char *key,
                    const char *value, const struct tsri_place *place)
{
    struct tsri_place here = *place;
    here.alias = strcmp(c->key, c->option) != 0 ? c->key : NULL;
    struct setting s = {cfg, c, is_pattern(c) ? key : c->key, value, &here};
    /* In a text, None is a word like any other. */
    const struct tsri_option *o = *c->option ? tsri_option_find(c->option) : NULL;
    bool none = o && o->type == TSRI_OPTION_STRING ? !value : is_none(value);
    if (o && none) return pass_on(&s, NULL);
    switch (c->action) {
    case TSRI_COMPAT_KEEP:
        return pass_on(&s, value);
    case TSRI_COMPAT_GB:
        return put_gb(&s);
    case TSRI_COMPAT_DIR:
        return put_dir(&s);
    case TSRI_COMPAT_DIGEST:
        return put_digest(&s);
    case TSRI_COMPAT_EVICT:
        return put_evict(&s);
    case TSRI_COMPAT_CHUNKS:
        return put_mode(&s, TSRI_CHUNK_SEPARATOR);
    case TSRI_COMPAT_BLEND:
        return put_mode(&s, TSRI_LMCACHE_SEPARATOR);
    case TSRI_COMPAT_RUNS:
        return put_runs(&s);
    case TSRI_COMPAT_ENGINE:
        return put_engine(&s);
    case TSRI_COMPAT_REMOTE:
        return is_none(value) ? 0 : tsri_remote_url_put(cfg, value, &here);
    case TSRI_COMPAT_EXTRA:
        return none ? 0 : tsri_yaml_put_extra(cfg, value, place);
    case TSRI_COMPAT_FILE:
        return put_file(&s);
    case TSRI_COMPAT_LINES:
        return tsri_ucm_put_blend(cfg, value, &here);
    case TSRI_COMPAT_ALWAYS:
        return put_always(&s);
    case TSRI_COMPAT_IGNORE:
        return ignore(&s);
    }
    return 0;
}
