/* commands.c - main() of `tessera`. */
#include "cli/cli.h"

static const struct tsri_command commands[] = {TSRI_COMMANDS(TSRI_COMMAND_ROW)};
static const char *const moved[] = {"bench", "calibrate", "replay", NULL};

int main(int argc, char **argv)
{
    static const struct tsri_program tessera = {.name = "tessera",
                                                .commands = commands,
                                                .n_commands = (int)TSRI_COUNT(commands),
                                                .moved = moved,
                                                .moved_to = "tessera-lab"};
    return tsri_cli_main(&tessera, argc, argv);
}
