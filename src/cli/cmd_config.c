/* cmd_config.c - `tessera config show|check|doc`: the options as they are, as a file would set
 * them, and their manual. The table of options does the work; this prints. */
#include "cli/cli.h"

/* ---- show ---- */

static bool is_wanted(const struct tsri_cli *cli, const struct tsri_option *o)
{
    for (int i = 0; i < cli->n_args; i++)
        if (tsri_option_find(cli->args[i]) == o) return true;
    return cli->n_args == 0;
}

/* Secrets are not for screens and logs. */
static const char *shown_value(const struct tsri_cli *cli, const struct tsri_option *o)
{
    const char *value = tsri_config_value(cli->config, o);
    return o->flags & TSRI_OPT_SECRET && value[0] ? "(hidden)" : value;
}

static int show_json(const struct tsri_cli *cli)
{
    const char *comma = "{";
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        if (!is_wanted(cli, o)) continue;
        const char *members[][2] = {{"value", shown_value(cli, o)},
                                    {"origin", tsri_config_origin(cli->config, o)},
                                    {"type", tsri_option_type_text(o)},
                                    {"default", o->def},
                                    {"help", o->help}};
        printf("%s\n\"%s\":", comma, o->name);
        for (size_t k = 0; k < TSRI_COUNT(members); k++) {
            printf("%s\"%s\":", k ? "," : "{", members[k][0]);
            tsri_cli_json("", members[k][1]);
        }
        putchar('}');
        comma = ",";
    }
    puts("\n}");
    return 0;
}

int tsri_cmd_config_show(struct tsri_cli *cli)
{
    for (int i = 0; i < cli->n_args; i++) {
        if (tsri_option_find(cli->args[i])) continue;
        return tsri_cli_usage(cli, "config show: unknown option '%s'", cli->args[i]);
    }
    int status = tsri_cli_config(cli);
    if (status) return status;
    if (cli->json) return show_json(cli);
    struct tsri_table t;
    tsri_table_init(&t, "llll", "option|value|origin|meaning");
    for (size_t i = 0; i < tsri_option_count(); i++) {
        const struct tsri_option *o = tsri_option_at(i);
        if (!is_wanted(cli, o)) continue;
        const char *value = shown_value(cli, o);
        tsri_table_add(&t, "%s", o->name);
        tsri_table_add(&t, "%s", value[0] ? value : "-");
        tsri_table_add(&t, "%s", tsri_config_origin(cli->config, o));
        tsri_table_add(&t, "%s", o->help);
    }
    status = tsri_table_print(&t, cli);
    return status;
}

/* ---- check ---- */

/* What is accepted and does not do what it says. */
static void check_warnings(const struct tsr_config *cfg, bool json)
{
    char shown[1024];
    const char *comma = "";
    const struct tsri_note *note;
    for (size_t i = 0; (note = tsri_config_note_at(cfg, i)); i++) {
        if (note->level > TSR_LOG_WARN) continue;
        if (json)
            tsri_cli_json(comma, note->text);
        else
            printf("warning: %s\n", tsri_printable(note->text, shown, sizeof shown));
        comma = ",";
    }
}

int tsri_cmd_config_check(struct tsri_cli *cli)
{
    int status = tsri_cli_want_args(cli, 1, 1);
    if (status) return status;
    struct tsr_config *cfg;
    if (tsr_config_open(&cfg) < 0) return tsri_cli_failed();
    bool ok = tsr_config_load_file(cfg, cli->args[0]) >= 0 && tsri_config_check(cfg) >= 0;
    if (cli->json) {
        tsri_cli_json("{\"file\":", cli->args[0]);
        if (ok)
            fputs(",\"ok\":true,\"error\":null", stdout);
        else
            tsri_cli_json(",\"ok\":false,\"error\":", tsr_errmsg());
        fputs(",\"warnings\":[", stdout);
        if (ok) check_warnings(cfg, true);
        puts("]}");
    } else if (ok) {
        char shown[4096];
        check_warnings(cfg, false);
        printf("%s: ok\n", tsri_printable(cli->args[0], shown, sizeof shown));
    } else {
        tsri_cli_failed();
    }
    tsr_config_close(cfg);
    return ok ? 0 : CLI_FAILED;
}

/* ---- doc ---- */

int tsri_cmd_config_doc(struct tsri_cli *cli)
{
    int status = tsri_cli_want_args(cli, 0, 0);
    if (status) return status;
    if (tsri_cli_flag(cli, "man"))
        tsri_config_doc_man(stdout);
    else
        tsri_config_doc_markdown(stdout);
    return 0;
}
