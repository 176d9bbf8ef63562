/* confdoc.c - docs/config.md and tessera.conf(5), printed from the tables, so that no option exists
 * without its words. What both documents say in prose is written here once per form. */
#include "config/config.h"

/* The day the prose below last changed; the tables need none. */
#define MAN_DATE "November 16, 2026"

/* ---- Markdown ---- */

static const char markdown_head[] =
    "# Configuration\n"
    "\n"
    "This page is generated from the tables `src/config/options.h` and\n"
    "`src/config/compat_keys.h` (`make doc`).\n"
    "\n"
    "Every option has one name. Each source spells it differently:\n"
    "\n"
    "| source | spelling | example |\n"
    "| --- | --- | --- |\n"
    "| C call | `name` | `tsr_config_set(cfg, \"host_size\", \"4G\")` |\n"
    "| YAML file | `name:`, or nested by its words | `host_size: 4G` or `host: {size: 4G}` |\n"
    "| environment | `TESSERA_` and the name in capitals | `TESSERA_HOST_SIZE=4G` |\n"
    "| flag | `--name`, with `-` or `_` | `--host-size=4G` or `--host-size 4G` |\n"
    "\n"
    "Programs load the file first, then the environment, then the flags. Later settings win.\n"
    "`TESSERA_CONFIG_FILE` names the file.\n"
    "\n"
    "An unknown name, a wrong type or a value out of range is an error and changes nothing. The\n"
    "message gives the place (`file:line:column`, variable or flag) and the closest known name.\n"
    "`tessera config show` prints every value and its source; `tessera config check` validates a\n"
    "configuration.\n"
    "\n"
    "Types:\n"
    "\n"
    "- *size*: bytes, or a number with K, M, G or T (binary; `1.5G` works)\n"
    "- *count*: a whole number\n"
    "- *bool*: true, yes, on, 1 or false, no, off, 0\n"
    "- *list*: numbers, separated by commas\n"
    "- *path*: `~/` at its start is the home folder, from every source\n"
    "\n"
    "## Options\n"
    "\n"
    "| name | type | default | values | meaning |\n"
    "| --- | --- | --- | --- | --- |\n";

static const char markdown_yaml[] =
    "\n"
    "Options marked *live* take effect while running. All others take effect when the cache is\n"
    "opened.\n"
    "\n"
    "## YAML\n"
    "\n"
    "The file is one mapping of names to single values. Nested mappings join their names with "
    "`_`.\n"
    "A list of single values becomes text separated by commas. A null means the default. Not\n"
    "accepted: anchors and aliases, tags, several documents, duplicate keys, more than 8 levels,\n"
    "more than 1 MiB, and text that is not UTF-8. These keys may wrap the options, also as a list "
    "of\n"
    "mappings, and add nothing to their names:";

static const char markdown_compat[] =
    "\n"
    "## Keys of other programs\n"
    "\n"
    "Tessera reads files and environments written for LMCache, UCM or the chunk cache of vLLM. "
    "Each\n"
    "of their keys sets an option, or is ignored with one log line that says why and what to "
    "write\n"
    "instead. The lines are written when the cache is opened, and by `tessera config check`.\n"
    "\n"
    "- In the environment, a key is `LMCACHE_` and the key in capitals; for the chunk cache also\n"
    "  `LMCACHE_CHUNK_` and the key. `TESSERA_*` wins over both.\n"
    "- In the extra configuration of an engine's connector, and in C, it may also be `lmcache.` "
    "and the\n"
    "  key. One that is unknown is ignored there with a log line.\n"
    "- `LMCACHE_CONFIG_FILE` names the file if `TESSERA_CONFIG_FILE` is not set.\n"
    "- Unknown keys of theirs are ignored with a log line: `LMCACHE_*` variables, and keys of a "
    "file of\n"
    "  theirs. That is a file that `LMCACHE_CONFIG_FILE` names, or one with a key that only they "
    "have\n"
    "  (the table, without keys of the engine; `lmcache`, `chunk_cache` and `ucm_*` around "
    "options) and\n"
    "  none that only Tessera has. In every other file an unknown key is an error.\n"
    "- On the command line, switches need no value: `--enable-chunk-cache "
    "--chunk-separator=\"##\"`.\n"
    "- A key that ends in `*` stands for all keys that begin like it.\n"
    "\n"
    "| key | of | sets | |\n"
    "| --- | --- | --- | --- |\n";

void tsri_config_doc_markdown(FILE *to)
{
    char range[160];
    fputs(markdown_head, to);
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        tsri_option_range_text(o, range, sizeof range);
        fprintf(to, "| `%s` | %s | %s%s%s | %s | %s%s |\n", o->name, tsri_option_type_text(o),
                *o->def ? "`" : "", *o->def ? o->def : "empty", *o->def ? "`" : "", range, o->help,
                o->flags & TSRI_OPT_RELOAD ? " (*live*)" : "");
    }
    fputs(markdown_yaml, to);
    for (size_t i = 0; tsri_yaml_wrapper(i); i++)
        fprintf(to, "%s`%s`", i ? ", " : "\n", tsri_yaml_wrapper(i));
    fputs(".\n", to);
    fputs(markdown_compat, to);
    for (size_t i = 0; i < tsri_compat_count(); i++) {
        const struct tsri_compat *c = tsri_compat_at(i);
        const char *tick = *c->option ? "`" : "";
        fprintf(to, "| `%s` | %s | %s%s%s | %s |\n", c->key, tsri_compat_owner_text(c), tick,
                tsri_compat_does_text(c), tick, c->note);
    }
}

/* ---- mdoc ---- */

static const char man_head[] =
    ".Dd " MAN_DATE "\n"
    ".Dt TESSERA.CONF 5\n"
    ".Os\n"
    ".Sh NAME\n"
    ".Nm tessera.conf\n"
    ".Nd options of the Tessera KV cache\n"
    ".Sh DESCRIPTION\n"
    "Every option has one name.\n"
    "It is a key of the configuration file, an environment variable (in capitals, with the prefix\n"
    ".Ev TESSERA_ Ns ),\n"
    "and a flag of the programs (with two dashes).\n"
    "Programs read the file first, then the environment, then the flags.\n"
    "Later settings win.\n"
    ".Pp\n"
    "The file is YAML: one mapping of names to single values.\n"
    "Nested mappings join their names with an underscore, so\n"
    ".Ql host: {size: 4G}\n"
    "sets\n"
    ".Cm host_size .\n"
    "A list of single values becomes text separated by commas.\n"
    "A null means the default.\n"
    "Anchors, aliases, tags, several documents, duplicate keys, more than 8 levels, more than\n"
    "1 MiB and text that is not UTF-8 are errors.\n"
    ".Pp\n"
    "An unknown name, a wrong type or a value out of range is an error and changes nothing.\n"
    "The message gives the place and the closest known name.\n"
    ".Pp\n"
    "A size is a number of bytes, or a number with K, M, G or T (binary).\n"
    "A bool is true, yes, on, 1 or false, no, off, 0.\n"
    "A list is numbers, separated by commas.\n"
    "A path may begin with ~/, the home folder.\n"
    ".Sh OPTIONS\n"
    ".Bl -tag -width Ds\n";

static const char man_env[] =
    ".El\n"
    ".Sh ENVIRONMENT\n"
    ".Bl -tag -width Ds\n"
    ".It Ev TESSERA_CONFIG_FILE\n"
    "The configuration file, read before the other variables.\n"
    ".It Ev LMCACHE_CONFIG_FILE\n"
    "The configuration file if\n"
    ".Ev TESSERA_CONFIG_FILE\n"
    "is not set.\n"
    ".It Ev TESSERA_ Ns Ar NAME\n"
    "An option.\n"
    "Unknown names are errors.\n"
    ".It Ev LMCACHE_ Ns Ar KEY\n"
    "A key of another program, see below.\n"
    "Unknown keys are ignored with a log line.\n"
    ".El\n"
    ".Sh EXAMPLES\n"
    ".Bd -literal -offset indent\n"
    "host_size: 16G\n"
    "disk:\n"
    "  path: /var/lib/tessera\n"
    "  size: 200G\n"
    ".Ed\n"
    ".Sh COMPATIBILITY\n"
    "Tessera reads files and environments written for LMCache, UCM or the chunk cache of vLLM.\n"
    "Each of these keys sets an option, or is ignored with one log line.\n"
    "So are unknown keys in a file of theirs: one that\n"
    ".Ev LMCACHE_CONFIG_FILE\n"
    "names, or that has a key that only they have and none that only Tessera has.\n"
    ".Bl -tag -width Ds\n";

static const char man_tail[] = ".El\n"
                               ".Sh SEE ALSO\n"
                               ".Xr tessera 1 ,\n"
                               ".Xr tessera 3\n";

/* A line of running text: nothing in it may look like a request or an escape. */
static void man_line(FILE *to, const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", to);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", to);
        else
            fputc(*text, to);
    }
    fputc('\n', to);
}

static void man_option(FILE *to, const struct tsri_option *o)
{
    char range[160], text[512];
    fprintf(to, ".It Cm %s\n", o->name);
    tsri_option_range_text(o, range, sizeof range);
    man_line(to, o->help);
    snprintf(text, sizeof text, "(%s: %s; default %s%s)", tsri_option_type_text(o), range,
             *o->def ? o->def : "empty",
             o->flags & TSRI_OPT_RELOAD ? "; takes effect while running" : "");
    man_line(to, text);
}

void tsri_config_doc_man(FILE *to)
{
    fputs(man_head, to);
    for (size_t i = 0; i < tsri_option_count(); i++)
        man_option(to, tsri_option_at(i));
    fputs(man_env, to);
    for (size_t i = 0; i < tsri_compat_count(); i++) {
        const struct tsri_compat *c = tsri_compat_at(i);
        fprintf(to, ".It Cm %s Pq %s\n", c->key, tsri_compat_owner_text(c));
        if (*c->option)
            fprintf(to, "Sets\n.Cm %s :\n", c->option);
        else if (c->action == TSRI_COMPAT_IGNORE)
            fputs("Ignored:\n", to);
        else
            fprintf(to, "%s:\n", c->action == TSRI_COMPAT_ALWAYS ? "Always on" : "Its keys count");
        man_line(to, c->note);
    }
    fputs(man_tail, to);
}
