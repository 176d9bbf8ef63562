/* cli.h - what the commands of `tessera` and `tessera-lab` share: the command line as it was
 * understood, error lines, and tables. Results go to stdout, errors to stderr as `PROGRAM: ...`.
 *
 * Threads: a command runs on the main thread; `serve` and heir.c have more.
 * Memory:  struct tsri_cli lives as long as main(); strings in it are argv's.
 * Errors:  a command returns the exit status: 0, CLI_FAILED, or CLI_USAGE.
 */
#ifndef TSRI_CLI_H
#define TSRI_CLI_H

#include "base/base.h"
#include "cli/commands.h"
#include "config/config.h"

#include <stdio.h>

#define CLI_FAILED 1 /* the operation failed */
#define CLI_USAGE 2  /* the command line was wrong */

struct tsri_cli;

/* A command. The usage is what follows the name on the command line, and it is the declaration of
 * the command's own flags as well: --flag takes no value, --flag=WHAT takes one, --flag[=WHAT] may
 * have one, anything else that starts with two dashes is a configuration option. */
struct tsri_command {
    const char *name, *usage, *help, *details; /* help: one line; details: whole lines */
    int (*run)(struct tsri_cli *cli);
};

struct tsri_program {
    const char *name;
    const struct tsri_command *commands;
    int n_commands;
    /* (optional) Commands, by their first word, that another program has now; NULL ends them. */
    const char *const *moved;
    const char *moved_to;
};

/* All of main(): finds the command, runs it, makes sure that what it printed arrived. */
int tsri_cli_main(const struct tsri_program *program, int argc, char **argv);

struct tsri_cli_flag {
    const char *name, *value; /* value "" for a flag without one */
};

struct tsri_cli {
    const struct tsri_program *program;
    const struct tsri_command *command;
    char **args; /* what is neither name nor flag */
    int n_args;
    struct tsri_cli_flag *flags; /* the command's own */
    int n_flags;
    char **options; /* configuration flags, one argument each */
    int n_options;
    const char *config_file; /* of --config, or NULL */
    bool json;
    bool color; /* stdout is a terminal that wants it */
    /* Read before the command runs; NULL if something is wrong with it, which tsri_cli_config tells
     * the commands that need one. */
    struct tsr_config *config;
    char config_error[1024];
    struct tsri_log_held held; /* log lines of that */
    int log_level;
};

/* What a row of commands.h, or of the lab's table, declares and puts into its program. */
#define TSRI_COMMAND_RUN(id, name, usage, help, details) int tsri_cmd_##id(struct tsri_cli *cli);
#define TSRI_COMMAND_ROW(id, name, usage, help, details) \
    {name, usage, help, details, tsri_cmd_##id},
TSRI_COMMANDS(TSRI_COMMAND_RUN)

/* Prints `PROGRAM: ...` on stderr, as one line without control characters. */
void tsri_cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same; returns CLI_FAILED. */
int tsri_cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same with a pointer to the command's help; returns CLI_USAGE. */
int tsri_cli_usage(const struct tsri_cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same as tsri_cli_fail with the message of the library. */
int tsri_cli_failed(void);
/* 0, or that if a call has returned one of enum tsr_err. */
int tsri_cli_check(int e);
/* Refuses other numbers of arguments than min..max; 0 when it is right, else CLI_USAGE. */
int tsri_cli_want_args(const struct tsri_cli *cli, int min, int max);
/* The value of one of the command's own flags, or NULL when it was not given. */
const char *tsri_cli_flag(const struct tsri_cli *cli, const char *name);
/* A number among the command's flags, a ratio also as 5%; a count is whole. *out is left alone if the
 * flag was not given. 0, or CLI_USAGE. */
int tsri_cli_flag_number(const struct tsri_cli *cli, const char *name, double min, double max,
                         double *out);
int tsri_cli_flag_count(const struct tsri_cli *cli, const char *name, double min, double max,
                        double *out);
double tsri_cli_now_s(void);
/* For commands that need cli->config: 0, or the exit status after having said why. Others do not fail
 * for a bad configuration, and its log lines are not theirs. */
int tsri_cli_config(struct tsri_cli *cli);

/* ---- printing ---- */

enum tsri_color {
    TSRI_COLOR_BOLD,
    TSRI_COLOR_DIM,
    TSRI_COLOR_GREEN,
    TSRI_COLOR_YELLOW,
    TSRI_COLOR_RED
};
/* The escape that starts a colour, and the one that ends all; "" where there are no colours. */
const char *tsri_cli_color(const struct tsri_cli *cli, enum tsri_color color);
const char *tsri_cli_plain(const struct tsri_cli *cli);
/* Prints what is before as it is, then the text as a JSON string. */
void tsri_cli_json(const char *before, const char *text);
/* Text of a file or a model, which may hold anything, with its lines and tabs and without what a
 * terminal would obey. */
void tsri_cli_put_text(const char *bytes, size_t n);
/* "12.3 MiB", "1 KiB", "17 B" into buf, which is returned. */
const char *tsri_cli_size(uint64_t bytes, char buf[static 32]);

/* A bar on stderr, where that is a terminal. It goes away when all n are done, before an error line,
 * and when it is told to. */
void tsri_cli_progress(const char *what, uint64_t n_done, uint64_t n);
void tsri_cli_progress_end(void);

/* Cells of text in rows of n_columns, printed with columns as wide as they must be. `align` has one
 * letter a column, l or r; `heads` are separated by |. */
struct tsri_table {
    const char *align;
    char **cells;
    size_t n_cells, n_room;
};
void tsri_table_init(struct tsri_table *t, const char *align, const char *heads);
void tsri_table_fini(struct tsri_table *t);
void tsri_table_add(struct tsri_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* All cells of a row at once, separated by |; the last one may hold more of those. */
void tsri_table_row(struct tsri_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints it and ends it: 0, or CLI_FAILED when memory ran out while rows were added. */
int tsri_table_print(struct tsri_table *t, const struct tsri_cli *cli);

/* ---- doctor: a finding of one check; those of memory and disk are in checks.c ---- */

enum tsri_doctor_status { TSRI_DOCTOR_OK, TSRI_DOCTOR_WARN, TSRI_DOCTOR_FAIL };

struct tsri_finding {
    enum tsri_doctor_status status;
    char found[512];
    char advice[512]; /* "" where nothing needs doing */
};
void tsri_finding_say(struct tsri_finding *f, enum tsri_doctor_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void tsri_finding_advise(struct tsri_finding *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The first line of a file, without its end; false when it cannot be read. */
bool tsri_read_line(const char *path, char *buf, size_t bytes);

/* Huge pages of shared memory, which a server's pool is made of. text: the line of the kernel's file,
 * NULL if it cannot be read. */
void tsri_check_shared_pages(const char *path, const char *text, struct tsri_finding *f);
void tsri_check_host_memory(const struct tsri_options *o, struct tsri_finding *f);
void tsri_check_overcommit(const struct tsri_options *o, struct tsri_finding *f);
void tsri_check_memlock(const struct tsri_options *o, struct tsri_finding *f);
/* A disk tier as it is configured; path NULL: it is not. */
struct tsri_checked_disk {
    const char *name, *path;
    uint64_t bytes;
    bool direct;
};
struct tsri_checked_disk tsri_checked_disk(const struct tsri_options *o, bool second);
void tsri_check_disk_path(const struct tsri_checked_disk *d, struct tsri_finding *f);
void tsri_check_disk_space(const struct tsri_checked_disk *d, struct tsri_finding *f);
void tsri_check_direct(const struct tsri_checked_disk *d, struct tsri_finding *f);
void tsri_check_io_uring(const struct tsri_options *o, struct tsri_finding *f);
/* One known device, by its place in the list of tsri_device_known(). */
void tsri_check_device(const char *name, const struct tsri_options *o, struct tsri_finding *f);

/* ---- libraries.c: what a build or a machine may lack; a version or a path, or false and why ---- */

/* NULL after the last one. */
const char *tsri_library_name(uint32_t i);
bool tsri_library_find(uint32_t i, char *text, size_t bytes);
/* The model and the store of `tessera ask`; config NULL: the configuration is wrong. */
bool tsri_model_find(char *text, size_t bytes);
bool tsri_store_find(const struct tsr_config *config, char *text, size_t bytes);
void tsri_check_library(uint32_t i, const struct tsri_options *o, struct tsri_finding *f);
void tsri_check_model(struct tsri_finding *f);
void tsri_check_store(const struct tsr_config *config, struct tsri_finding *f);

/* ---- features of this processor, separated by spaces: "sse4.2 avx2 sha" ---- */

const char *tsri_cli_cpu_features(char *buf, size_t bytes);

#endif
