/* config.h - the configuration as other layers read it, and the tables behind it.
 *
 * Threads: a configuration is one thread's while it is changed; reading is safe from any.
 * Memory:  everything handed out is borrowed from the configuration until its next change.
 * Errors:  TSR_ECONFIG with the place (file:line:column, variable or flag), the key and the reason;
 *          a call that fails leaves every value as it was.
 */
#ifndef TSRI_CONFIG_H
#define TSRI_CONFIG_H

#include "base/base.h"
#include "config/options.h"

#include <stdio.h>

/* ---- for every layer ---- */

/* The values. Never NULL. */
const struct tsri_options *tsri_config_options(const struct tsr_config *cfg);
/* The rules between options, which single settings cannot know. Call before using the values. */
TSR_MUST int tsri_config_check(const struct tsr_config *cfg);
/* The share of device memory for the pool: the one that always holds, or the one with chunked. */
double tsri_options_pool_share(const struct tsri_options *o);
/* What should be said about the settings: keys that are ignored, and values that were replaced. One
 * note per key, the latest. They wait in the configuration until a log is on. */
struct tsri_note {
    char *key, *text;
    int level; /* enum tsr_log_level */
};
#define TSRI_NOTES_MAX 128u
/* The i-th, or NULL after the last. Valid until the next change. */
const struct tsri_note *tsri_config_note_at(const struct tsr_config *cfg, size_t i);
/* Logs those that were not logged yet. */
void tsri_config_warn(const struct tsr_config *cfg);

/* Things that have no text form ride along with a configuration: tables of tiers of the caller's
 * own. */
#define TSRI_ATTACHED_MAX 8u
struct tsri_attached {
    const void *ops;
    void *arg;
};
TSR_MUST int tsri_config_attach(struct tsr_config *cfg, const void *ops, void *arg);
/* In the order they were attached; returns how many. */
size_t tsri_config_attached(const struct tsr_config *cfg, const struct tsri_attached **out);

/* ---- tenant.c ---- */

#define TSRI_TENANT_MAX 96u
/* Letters, digits, _ and -, 1 to 32 of them: safe as a folder and in every name on a server. */
bool tsri_tenant_is_part(const char *text);
/* Such parts joined by dots, at most TSRI_TENANT_MAX bytes. */
bool tsri_tenant_is_name(const char *text);
/* The option tenant, or uid-N of this process. cfg may be NULL. */
void tsri_tenant_of(char out[TSRI_TENANT_MAX + 1], const struct tsr_config *cfg);

/* ---- the table, for `tessera config` and --help ---- */

enum tsri_option_type {
    TSRI_OPTION_BOOL,
    TSRI_OPTION_COUNT,
    TSRI_OPTION_SIZE,
    TSRI_OPTION_FLOAT,
    TSRI_OPTION_ENUM,
    TSRI_OPTION_LIST,
    TSRI_OPTION_STRING,
    TSRI_OPTION_PATH,
};

struct tsri_option {
    const char *name, *def, *help;
    const char *const *names; /* ENUM: its names, ended by NULL */
    double min, max;          /* every limit of the table is exact in a double */
    size_t offset;            /* of the field in struct tsri_options */
    enum tsri_option_type type;
    unsigned flags;
};

size_t tsri_option_count(void);
const struct tsri_option *tsri_option_at(size_t i);
/* By name, '-' counting as '_'. NULL when there is none; never an alias. */
const struct tsri_option *tsri_option_find(const char *name);
/* "size", "count", .. */
const char *tsri_option_type_text(const struct tsri_option *o);
/* "1M to 16T", "sha256, xxh3", "up to 255 bytes", .. as snprintf does. */
void tsri_option_range_text(const struct tsri_option *o, char *buf, size_t bytes);
/* The value as text and where it came from: "default", "FILE:LINE", "env NAME", "flag --NAME" or
 * "call". */
const char *tsri_config_value(const struct tsr_config *cfg, const struct tsri_option *o);
const char *tsri_config_origin(const struct tsr_config *cfg, const struct tsri_option *o);

/* ---- foreign keys (compat_keys.h) ---- */

enum tsri_compat_action {
    TSRI_COMPAT_KEEP,
    TSRI_COMPAT_GB,
    TSRI_COMPAT_DIR,
    TSRI_COMPAT_DIGEST,
    TSRI_COMPAT_EVICT,
    TSRI_COMPAT_CHUNKS,
    TSRI_COMPAT_BLEND,
    TSRI_COMPAT_RUNS,
    TSRI_COMPAT_ENGINE,
    TSRI_COMPAT_REMOTE,
    TSRI_COMPAT_EXTRA,
    TSRI_COMPAT_FILE,
    TSRI_COMPAT_LINES,
    TSRI_COMPAT_ALWAYS,
    TSRI_COMPAT_IGNORE,
};
enum tsri_compat_owner {
    TSRI_OWNER_LMCACHE,
    TSRI_OWNER_UCM,
    TSRI_OWNER_CHUNKCACHE,
    TSRI_OWNER_ENGINE,
};

struct tsri_compat {
    const char *key, *option, *note; /* option "" where none is set */
    enum tsri_compat_owner owner;
    enum tsri_compat_action action;
    enum tsr_log_level level;
};

size_t tsri_compat_count(void);
const struct tsri_compat *tsri_compat_at(size_t i);
/* A row whose key ends in * stands for all keys that begin like it and have no row of their own. */
const struct tsri_compat *tsri_compat_find(const char *key);
/* What a row does, for documents: an option, "ignored", .. */
const char *tsri_compat_does_text(const struct tsri_compat *c);
const char *tsri_compat_owner_text(const struct tsri_compat *c);

/* ---- documents made from the tables; they print what is the same in every build ---- */

void tsri_config_doc_markdown(FILE *to); /* docs/config.md */
void tsri_config_doc_man(FILE *to);      /* tessera.conf(5), in mdoc */

/* ---- inside config ---- */

#define TSRI_OPTION_TEXT_BYTES 256 /* canonical text of any value that is not STRING or PATH */
#define TSRI_PLACE_BYTES 320

/* Where a setting stands, for messages and origins. */
struct tsri_place {
    enum { TSRI_FROM_CALL, TSRI_FROM_FILE, TSRI_FROM_ENV, TSRI_FROM_FLAG } from;
    const char *name; /* of the file, variable or flag */
    size_t line, column;
    const char *alias; /* the foreign key that stood there, or NULL */
};

union tsri_value {
    bool as_bool;
    uint64_t as_number; /* COUNT and SIZE */
    double as_float;
    int as_enum;
    struct tsri_list as_list;
};

/* Text to value, checked against type and range; STRING and PATH are checked only. On failure
 * returns false and says why. */
TSR_MUST bool tsri_option_parse(const struct tsri_option *o, const char *text,
                                union tsri_value *out, char *why, size_t why_bytes);
/* The canonical text of a value that is not STRING or PATH. */
void tsri_option_format(const struct tsri_option *o, union tsri_value v, char *buf, size_t bytes);
/* true, yes, on, 1 and their opposites in any case. */
bool tsri_parse_bool(const char *text, bool *out);
/* Bytes: digits, at most six decimals, K M G T or nothing, then iB or nothing. */
bool tsri_parse_size(const char *text, uint64_t *out);
/* A decimal number whatever the locale says. */
bool tsri_parse_float(const char *text, double *out);

/* Steps between two names: insert, drop, change a letter or swap two. Names longer than 63 bytes
 * count as far from everything. */
size_t tsri_edit_distance(const char *a, const char *b);
/* A copy fit for a message: bounded, control characters replaced. */
const char *tsri_printable(const char *text, char *buf, size_t bytes);
/* "FILE:LINE:COLUMN: ", "environment variable NAME: ", "flag --NAME: " or "". */
const char *tsri_place_text(const struct tsri_place *place, char *buf, size_t bytes);

bool tsri_same_name(const char *ours, const char *given); /* '-' in given counts as '_' */
/* Refuses a key with its place and the nearest known one, in the spelling of the place. */
int tsri_config_fail_unknown(const char *key, const struct tsri_place *place);

/* The same for a place of another program's, as a note: their names are theirs to invent, and a new
 * version of theirs must not keep us from starting. One note for each id; `before` precedes the key. */
TSR_MUST int tsri_config_ignore_unknown(struct tsr_config *cfg, const char *id, const char *before,
                                        const char *key, const struct tsri_place *place);

/* Without LMCache's prefix of keys, "lmcache.". */
const char *tsri_config_bare_key(const char *key);
/* Sets one option by name or alias; value NULL means its default. */
TSR_MUST int tsri_config_put(struct tsr_config *cfg, const char *written, const char *value,
                             const struct tsri_place *place);
/* One foreign setting: converted and passed on, or ignored with a note. `key` as it was written. */
TSR_MUST int tsri_compat_put(struct tsr_config *cfg, const struct tsri_compat *c, const char *key,
                             const char *value, const struct tsri_place *place);
/* A setting on the command line that may be there without a value: "true". */
bool tsri_compat_is_switch(const struct tsri_compat *c);
/* Adds a note about `key`; one that is there already is replaced. */
TSR_MUST int tsri_config_note(struct tsr_config *cfg, const char *key, int level, const char *text);
/* Settings inside a text of YAML or JSON, the value of a setting itself. Keys that are not known are
 * ignored with a note. */
TSR_MUST int tsri_yaml_put_extra(struct tsr_config *cfg, const char *text,
                                 const struct tsri_place *place);
/* LMCache's remote_url (remote_url.c); place with that key as alias. */
TSR_MUST int tsri_remote_url_put(struct tsr_config *cfg, const char *value,
                                 const struct tsri_place *place);
/* UCM's blending (ucm.c): text found anywhere, in prompts and in what was computed for them. */
TSR_MUST int tsri_ucm_blend_anywhere(struct tsr_config *cfg, const struct tsri_place *place);
/* The same, with UCM's own settings, as lines of KEY.KEY=VALUE. */
TSR_MUST int tsri_ucm_put_blend(struct tsr_config *cfg, const char *lines,
                                const struct tsri_place *place);
/* tsr_config_load_file() for a file that is known to be another program's. */
TSR_MUST int tsri_yaml_load_theirs(struct tsr_config *cfg, const char *path);
/* The i-th key that may wrap a YAML file's options, or NULL behind the last. */
const char *tsri_yaml_wrapper(size_t i);
/* Runs fill on a copy and keeps the copy only when fill succeeds; returns fill's result. */
TSR_MUST int tsri_config_try(struct tsr_config *cfg, int (*fill)(struct tsr_config *, void *),
                             void *arg);

#endif
