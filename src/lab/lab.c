/* lab.c - main() of `tessera-lab`: what measures models, devices and traffic, apart from the program
 * that users need every day. */
#include "lab/lab.h"

static const struct tsri_command commands[] = {TSRI_LAB_COMMANDS(TSRI_COMMAND_ROW)};

int main(int argc, char **argv)
{
    static const struct tsri_program lab = {
        .name = "tessera-lab", .commands = commands, .n_commands = (int)TSRI_COUNT(commands)};
    return tsri_cli_main(&lab, argc, argv);
}
