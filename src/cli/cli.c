/* cli.c - the command line of our programs: reads it, finds the command in the program's table, runs
 * it, and makes sure that what it printed arrived.
 *
 * Flags before the command are global; those after it are the command's own, then global ones, then
 * configuration options. A configuration option is checked when it is read, so that a mistake is a
 * usage error, and applied later, because files and environment come before flags. */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define LINE_WIDTH 95

/* ---- what commands use ---- */

/* The text has file names and messages of other programs: control characters must not reach a
 * terminal. */
static void print_error(const char *fmt, va_list ap)
{
    char text[8192];
    vsnprintf(text, sizeof text, fmt, ap);
    tsri_cli_progress_end();
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, tsri_plain(text));
}

void tsri_cli_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_error(fmt, ap);
    va_end(ap);
}

int tsri_cli_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_error(fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

int tsri_cli_failed(void)
{
    return tsri_cli_fail("%s", tsr_errmsg());
}

int tsri_cli_check(int e)
{
    return e < 0 ? tsri_cli_failed() : 0;
}

/* In lines that fit a terminal; what is in brackets stays together. */
static void print_usage(const struct tsri_program *p, const struct tsri_command *c, FILE *to)
{
    int margin = fprintf(to, "usage: %s %s", p->name, c->name), at = margin;
    for (const char *word = c->usage, *end; *word; word = end + strspn(end, " ")) {
        int depth = 0;
        for (end = word; *end && (*end != ' ' || depth > 0); end++)
            depth += (*end == '[') - (*end == ']');
        int n = (int)(end - word);
        if (at + 1 + n > LINE_WIDTH) at = fprintf(to, "\n%*s", margin, "") - 1;
        at += fprintf(to, " %.*s", n, word);
    }
    fputc('\n', to);
}

int tsri_cli_usage(const struct tsri_cli *cli, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_error(fmt, ap);
    va_end(ap);
    if (cli->command)
        print_usage(cli->program, cli->command, stderr);
    else
        fprintf(stderr, "try: %s help\n", cli->program->name);
    return CLI_USAGE;
}

int tsri_cli_want_args(const struct tsri_cli *cli, int min, int max)
{
    if (cli->n_args < min) return tsri_cli_usage(cli, "%s: missing argument", cli->command->name);
    if (cli->n_args > max)
        return tsri_cli_usage(cli, "%s: unexpected argument '%s'", cli->command->name,
                              cli->args[max]);
    return 0;
}

const char *tsri_cli_flag(const struct tsri_cli *cli, const char *name)
{
    for (int i = cli->n_flags - 1; i >= 0; i--)
        if (strcmp(cli->flags[i].name, name) == 0) return cli->flags[i].value;
    return NULL;
}

int tsri_cli_flag_number(const struct tsri_cli *cli, const char *name, double min, double max,
                         double *out)
{
    const char *text = tsri_cli_flag(cli, name);
    if (!text) return 0;
    char *end;
    double value = strtod(text, &end);
    if (*end == '%' && max <= 1) {
        value /= 100;
        end++;
    }
    if (end == text || *end || !(value >= min && value <= max))
        return tsri_cli_usage(cli, "--%s=%s: not a number from %.10g to %.10g", name, text, min,
                              max);
    *out = value;
    return 0;
}

int tsri_cli_flag_count(const struct tsri_cli *cli, const char *name, double min, double max,
                        double *out)
{
    int status = tsri_cli_flag_number(cli, name, min, max, out);
    const char *text = tsri_cli_flag(cli, name);
    if (!status && text && text[strspn(text, "0123456789")])
        return tsri_cli_usage(cli, "--%s=%s: not a whole number", name, text);
    return status;
}

double tsri_cli_now_s(void)
{
    return 1e-9 * (double)tsri_now_ns();
}

/* The configuration as files, environment and flags have it. Reading it has log lines, and the level
 * is in what is read: they wait. */
static void load_config(struct tsri_cli *cli)
{
    tsr_log_set(tsri_log_hold, &cli->held, TSR_LOG_DEBUG);
    /* One order for both ways to name a file: the environment's file comes before its variables. */
    int e = cli->config_file && setenv("TESSERA_CONFIG_FILE", cli->config_file, 1) != 0
                ? tsri_fail(TSR_ENOMEM, "no memory")
                : tsr_config_open(&cli->config);
    if (!e) e = tsr_config_load_env(cli->config);
    if (!e) e = tsr_config_load_args(cli->config, cli->n_options, cli->options);
    if (e < 0) {
        snprintf(cli->config_error, sizeof cli->config_error, "%s", tsr_errmsg());
        tsr_config_close(cli->config);
        cli->config = NULL;
    }
    cli->log_level = cli->config ? (int)tsri_config_options(cli->config)->log_level : TSR_LOG_WARN;
    tsr_log_set(tsr_log_stderr, NULL, cli->log_level);
}

int tsri_cli_config(struct tsri_cli *cli)
{
    tsri_log_tell(&cli->held, cli->log_level, tsr_log_stderr, NULL);
    if (!cli->config) return tsri_cli_fail("%s", cli->config_error);
    tsri_config_warn(cli->config);
    return 0;
}

/* ---- help ---- */

/* Whether the command's name is `words`, or starts with them as whole words. */
static bool name_starts(const struct tsri_command *c, const char *words)
{
    size_t n = strlen(words);
    return strncmp(c->name, words, n) == 0 && (c->name[n] == 0 || c->name[n] == ' ');
}

/* The commands whose names start with the words, "" for all; false: there are none. */
static bool print_overview(const struct tsri_program *p, const char *words, FILE *to)
{
    bool any = false;
    for (int i = 0; i < p->n_commands; i++) {
        if (words[0] && !name_starts(&p->commands[i], words)) continue;
        fprintf(to, "  %-14s %s\n", p->commands[i].name, p->commands[i].help);
        any = true;
    }
    return any;
}

static int print_help(const struct tsri_program *p)
{
    printf("usage: %s [FLAGS] COMMAND [FLAGS] [ARGUMENTS]\n\nCommands:\n", p->name);
    print_overview(p, "", stdout);
    printf("  help           print this text, or the help of a command: %s help COMMAND\n\n"
           "Flags:\n"
           "  --config=FILE  read options from this YAML file\n"
           "  --KEY=VALUE    set an option; tessera config show lists all options\n"
           "  --json         print JSON, if the command supports it\n"
           "  --log-level=LEVEL  log to standard error: error, warn (default), info or debug\n"
           "  --help         print help for the program or a command\n"
           "  --version      print the version number\n",
           p->name);
    return 0;
}

static int print_command_help(const struct tsri_program *p, const struct tsri_command *c)
{
    print_usage(p, c, stdout);
    printf("\n%c%s.\n\n%s", toupper(c->help[0]), c->help + 1, c->details);
    return 0;
}

/* The command that looks most like what was typed, or the first word of one; false when none is
 * near. */
static bool nearest(const struct tsri_program *p, const char *words, char out[64])
{
    /* A third of the letters wrong is a slip; more is another word. */
    size_t best = (strlen(words) + 2) / 3 + 1, before = best;
    for (int i = 0; i <= p->n_commands; i++) {
        const char *name = i < p->n_commands ? p->commands[i].name : "help";
        char first[64];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(name, " "), name);
        size_t whole = tsri_edit_distance(words, name), part = tsri_edit_distance(words, first);
        if (whole >= best && part >= best) continue;
        best = whole < part ? whole : part;
        snprintf(out, 64, "%s", whole < part ? name : first);
    }
    return best < before;
}

/* A command that another program has now is a usage error that names it; else 0. */
static int check_moved(const struct tsri_cli *cli, const char *word)
{
    const struct tsri_program *p = cli->program;
    for (int i = 0; p->moved && p->moved[i]; i++) {
        if (strcmp(word, p->moved[i]) != 0) continue;
        tsri_cli_note("'%s' is now in %s: try %s help %s", word, p->moved_to, p->moved_to, word);
        return CLI_USAGE;
    }
    return 0;
}

static int unknown_command(const struct tsri_cli *cli, const char *words)
{
    char shown[48], near[64];
    tsri_printable(words, shown, sizeof shown);
    if (nearest(cli->program, words, near))
        return tsri_cli_usage(cli, "unknown command '%s'; did you mean '%s'?", shown, near);
    return tsri_cli_usage(cli, "unknown command '%s'", shown);
}

/* Finds the command whose name the first arguments spell and takes them off. NULL: words[] has what
 * was tried. */
static const struct tsri_command *take_command(struct tsri_cli *cli, char *words, size_t bytes)
{
    const struct tsri_program *p = cli->program;
    words[0] = 0;
    for (int taken = 0; taken < cli->n_args; taken++) {
        size_t used = strlen(words);
        snprintf(words + used, bytes - used, "%s%s", taken ? " " : "", cli->args[taken]);
        bool is_start = false;
        for (int i = 0; i < p->n_commands; i++) {
            if (strcmp(p->commands[i].name, words) == 0) {
                cli->args += taken + 1;
                cli->n_args -= taken + 1;
                return &p->commands[i];
            }
            is_start |= name_starts(&p->commands[i], words);
        }
        if (!is_start) break;
    }
    return NULL;
}

static int run_help(struct tsri_cli *cli)
{
    char words[64];
    if (cli->n_args == 0 || (cli->n_args == 1 && strcmp(cli->args[0], "help") == 0))
        return print_help(cli->program);
    int moved = check_moved(cli, cli->args[0]);
    if (moved) return moved;
    const struct tsri_command *c = take_command(cli, words, sizeof words);
    if (c) return print_command_help(cli->program, c);
    return print_overview(cli->program, words, stdout) ? 0 : unknown_command(cli, words);
}

/* ---- the command line ---- */

/* As options are: - and _ are the same. */
static bool same_name(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(a[i] == '-' && b[i] == '_')) return false;
    return true;
}

enum flag_value { VALUE_NONE, VALUE_MUST, VALUE_MAY };

/* Where the usage names --flag, or NULL; *value tells whether as --flag=WHAT or --flag[=WHAT]. */
static const char *usage_has(const struct tsri_command *c, const char *flag, size_t n,
                             enum flag_value *value)
{
    for (const char *at = c->usage; (at = strstr(at, "--")) != NULL;) {
        at += 2;
        size_t length = strcspn(at, "[=] |");
        if (length != n || !same_name(at, flag, n)) continue;
        *value = at[length] == '=' ? VALUE_MUST : at[length] == '[' ? VALUE_MAY : VALUE_NONE;
        return at;
    }
    return NULL;
}

/* What the walk over argv knows; n counts arguments that the current flag used. */
struct walk {
    struct tsri_cli *cli;
    struct tsr_config *scratch; /* options are tried here */
    int argc, i;
    char **argv;
    bool help;
};

/* The value of a flag that needs one, from behind = or from the next argument; NULL: there is none.
 * What looks like a flag is one: as a value it must be behind =. */
static const char *take_value(struct walk *w, const char *equals)
{
    if (equals) return equals + 1;
    if (w->i + 1 == w->argc || strncmp(w->argv[w->i + 1], "--", 2) == 0) return NULL;
    return w->argv[++w->i];
}

/* The arguments spell no command: the first word of several, or nothing that we know. */
static int no_command(struct tsri_cli *cli)
{
    char words[64];
    take_command(cli, words, sizeof words);
    for (int i = 0; i < cli->program->n_commands; i++) {
        if (!name_starts(&cli->program->commands[i], words)) continue;
        tsri_cli_note("'%s' needs a subcommand:", words);
        print_overview(cli->program, words, stderr);
        return CLI_USAGE;
    }
    return unknown_command(cli, words);
}

/* The flag of a command that looks most like this name of n bytes; false: none is near. */
static bool nearest_flag(const struct tsri_command *c, const char *flag, size_t n, char out[64])
{
    char typed[64], name[64];
    snprintf(typed, sizeof typed, "%.*s", (int)n, flag);
    size_t best = (strlen(typed) + 2) / 3 + 1, before = best;
    for (const char *at = c->usage; (at = strstr(at, "--")) != NULL;) {
        at += 2;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "[=] |"), at);
        size_t far = tsri_edit_distance(typed, name);
        if (far >= best) continue;
        best = far;
        snprintf(out, 64, "%s", name);
    }
    return best < before;
}

/* Whether the arguments so far are a command, or how one begins. */
static bool may_be_command(struct tsri_cli *cli)
{
    char words[64];
    if (cli->command || cli->n_args == 0 || take_command(cli, words, sizeof words)) return true;
    for (int i = 0; i < cli->program->n_commands; i++)
        if (name_starts(&cli->program->commands[i], words)) return true;
    return strcmp(cli->args[0], "help") == 0;
}

/* What is neither a flag nor an option, after tsr_config_load_args() has said so. */
static int unknown_flag(struct walk *w)
{
    struct tsri_cli *cli = w->cli;
    char why[1024], near[64], shown[64];
    const char *flag = w->argv[w->i] + 2;
    size_t n = strcspn(flag, "=");
    snprintf(why, sizeof why, "%s", tsr_errmsg());
    bool unknown = strstr(why, "unknown key") != NULL;
    /* "tessera serv --docs=DIR": the flag is right, the command is not. */
    if (unknown && !may_be_command(cli)) return no_command(cli);
    if (!unknown || !cli->command || !nearest_flag(cli->command, flag, n, near))
        return tsri_cli_usage(cli, "%s", why);
    snprintf(shown, sizeof shown, "%.*s", (int)n, flag);
    tsri_plain(shown);
    return tsri_cli_usage(cli, "unknown flag '--%s'; did you mean '--%s'?", shown, near);
}

static int take_option(struct walk *w)
{
    struct tsri_cli *cli = w->cli;
    if (!w->scratch && tsr_config_open(&w->scratch) < 0) return tsri_cli_fail("%s", tsr_errmsg());
    /* One at a time: what follows may be a flag of the command. */
    bool alone = strchr(w->argv[w->i], '=') || w->i + 1 == w->argc ||
                 strncmp(w->argv[w->i + 1], "--", 2) == 0;
    int n = alone ? 1 : 2;
    n = tsr_config_load_args(w->scratch, n, w->argv + w->i);
    if (n < 0) return unknown_flag(w);
    for (int k = 0; k < (n ? n : 1); k++)
        cli->options[cli->n_options++] = w->argv[w->i + k];
    w->i += n > 1 ? n - 1 : 0;
    return 0;
}

static int take_flag(struct walk *w)
{
    struct tsri_cli *cli = w->cli;
    const char *flag = w->argv[w->i] + 2, *equals = strchr(flag, '=');
    size_t n = equals ? (size_t)(equals - flag) : strlen(flag);
    enum flag_value wants = VALUE_NONE;
    const char *own = cli->command ? usage_has(cli->command, flag, n, &wants) : NULL;
    if (strcmp(flag, "help") == 0) {
        w->help = true;
    } else if (strcmp(flag, "json") == 0) {
        cli->json = true;
    } else if (n == 6 && strncmp(flag, "config", n) == 0) {
        cli->config_file = take_value(w, equals);
        if (!cli->config_file) return tsri_cli_usage(cli, "--config needs a file");
    } else if (own) {
        if (wants == VALUE_NONE && equals)
            return tsri_cli_usage(cli, "--%.*s takes no value", (int)n, flag);
        const char *value = equals ? equals + 1 : "";
        if (wants == VALUE_MUST) value = take_value(w, equals);
        if (!value) return tsri_cli_usage(cli, "--%s needs a value", flag);
        char *name = strndup(own, n);
        if (!name) return tsri_cli_fail("no memory");
        cli->flags[cli->n_flags++] = (struct tsri_cli_flag){name, value};
    } else {
        return take_option(w);
    }
    return 0;
}

/* Splits argv into flags, options and arguments, and the command off the arguments. */
static int read_line(struct walk *w)
{
    struct tsri_cli *cli = w->cli;
    char words[64] = "";
    for (bool flags = true; w->i < w->argc; w->i++) {
        char *arg = w->argv[w->i];
        int status = 0;
        if (flags && strcmp(arg, "--") == 0) {
            flags = false;
        } else if (flags && strncmp(arg, "--", 2) == 0) {
            status = take_flag(w);
        } else if (flags && arg[0] == '-' && arg[1]) {
            if (strcmp(arg, "-h") != 0) return tsri_cli_usage(cli, "unknown flag '%s'", arg);
            w->help = true;
        } else {
            cli->args[cli->n_args++] = arg;
            if (!cli->command) cli->command = take_command(cli, words, sizeof words);
            /* Before its flags are looked at, which are the other program's. */
            if (!cli->command && cli->n_args == 1) status = check_moved(cli, arg);
        }
        if (status) return status;
    }
    return 0;
}

static int run(struct walk *w)
{
    struct tsri_cli *cli = w->cli;
    enum flag_value value;
    if (w->argc == 2 && strcmp(w->argv[1], "--version") == 0) {
        puts(tsr_version());
        return 0;
    }
    int status = read_line(w);
    if (status) return status;
    bool help = cli->n_args > 0 && !cli->command && strcmp(cli->args[0], "help") == 0;
    if (help) {
        cli->args++;
        cli->n_args--;
    }
    if (help || (w->help && !cli->command)) return run_help(cli);
    if (w->help) return print_command_help(cli->program, cli->command);
    if (!cli->command && cli->n_args == 0) {
        print_help(cli->program);
        return CLI_USAGE;
    }
    if (!cli->command) return no_command(cli);
    if (cli->json && !usage_has(cli->command, "json", 4, &value))
        return tsri_cli_usage(cli, "%s: no JSON output", cli->command->name);
    load_config(cli);
    return cli->command->run(cli);
}

int tsri_cli_main(const struct tsri_program *program, int argc, char **argv)
{
    const char *term = getenv("TERM");
    struct tsri_cli cli = {.program = program,
                           .color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR") && term &&
                                    strcmp(term, "dumb") != 0};
    size_t n = (size_t)argc + 1;
    char **args = tsri_alloc(n, sizeof *args);
    cli.args = args; /* take_command() moves it on */
    cli.flags = tsri_alloc(n, sizeof *cli.flags);
    cli.options = tsri_alloc(n, sizeof *cli.options);
    struct walk w = {.cli = &cli, .argc = argc, .argv = argv, .i = 1};
    int status = args && cli.flags && cli.options ? run(&w) : tsri_cli_fail("no memory");
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0)
        status = tsri_cli_fail("cannot write the output");
    tsr_config_close(w.scratch);
    tsr_config_close(cli.config);
    for (int i = 0; i < cli.n_flags; i++)
        free((char *)(uintptr_t)cli.flags[i].name);
    tsri_free(args);
    tsri_free(cli.flags);
    tsri_free(cli.options);
    return status;
}
