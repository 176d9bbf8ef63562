"""documented.py HELP-FOLDER MAN-PAGE: compares what a program's help says about its flags with its
manual page, both ways. The folder has one file of help for each command ("kv store"), and one named
"program" for the program. Prints what is only on one side, a line each; exit status 1 if there is
anything.

Keys of the configuration (--host_size) are no flags: config doc makes their page."""

import re
import sys
from pathlib import Path

IN_HELP = re.compile(r"(?<![\w-])--([a-z0-9][a-z0-9_-]*)")
IN_PAGE = re.compile(r"Fl -([a-z0-9][a-z0-9_-]*)")


def flags(text):
    """Those of the usage and of the list below; prose may speak of others."""
    usage, _, rest = text.partition("\n\n")
    listed = [line for line in rest.splitlines() if line.startswith("  --")]
    found = IN_HELP.findall("\n".join([usage, *listed]))
    return {flag for flag in found if "_" not in flag}


def page_lines(path):
    """Lines without comments, those that end with a backslash joined to the next."""
    joined = Path(path).read_text().replace("\\\n", " ")
    return [line for line in joined.splitlines() if not line.startswith('.\\"')]


def read_page(path, commands):
    """Flags that each command names, and those that it describes; "program" is before all."""
    named = {name: set() for name in [*commands, "program"]}
    described = {name: set() for name in named}
    now, was_head = ["program"], False
    for line in page_lines(path):
        head = re.match(r"\.It Cm (\S+)(?: ([a-z-]+))?", line)
        name = None
        if head:
            two = f"{head[1]} {head[2]}"
            name = two if two in commands else head[1] if head[1] in commands else None
        if name:
            now = [*now, name] if was_head else [name]
        elif line.startswith((".Sh", ".Ss")):
            now = ["program"]
        was_head = bool(name)
        found = IN_PAGE.findall(line) + re.findall(r"\| -([a-z-]+)", line)
        for command in now if not name else [name]:
            named[command].update(found)
            if line.startswith((".It", ".Op", ".Fl -help")):
                described[command].update(found)
    return named, described


def main():
    folder, page = Path(sys.argv[1]), sys.argv[2]
    texts = {path.name: path.read_text() for path in sorted(folder.iterdir())}
    helps = {name: flags(text) for name, text in texts.items()}
    commands = [name for name in helps if name != "program"]
    named, described = read_page(page, commands)
    general, wrong = helps["program"], []
    for name, in_help in helps.items():
        in_page = named[name] | (named["program"] if name != "program" else set())
        wrong += [f"{name}: --{f} is not in {page}" for f in sorted(in_help - in_page)]
        only = described[name] - set(IN_HELP.findall(texts[name])) - general
        wrong += [f"{name}: --{f} is in {page} only" for f in sorted(only)]
    if sum(map(len, helps.values())) < 3:
        wrong.append("hardly any flag was found")
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


main()
