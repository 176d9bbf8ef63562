"""doc_blocks.py - the commands of a Markdown page, for tests that run them.

    doc_blocks.py run LANGUAGE FILE      blocks "```LANGUAGE run", each after a line "#--- N"
    doc_blocks.py others FILE            fences that are not run and do not say why in a comment before them
    doc_blocks.py commands FILE          lines of indented blocks, without comments, continued lines joined"""

import re
import sys


def fences(lines):
    """(info string, line before the fence, lines) of each fenced block."""
    inside, before = None, ""
    for line in lines:
        if inside is None and line.startswith("```"):
            inside = (line[3:].strip(), before, [])
        elif inside is not None and line.startswith("```"):
            yield inside
            inside = None
        elif inside is not None:
            inside[2].append(line)
        if line.strip():
            before = line


def commands(lines):
    """Indented blocks follow an empty line; fenced ones are no commands here."""
    fenced, after_empty, inside, joined = False, True, False, ""
    for line in lines:
        if line.startswith("```"):
            fenced = not fenced
        indented = line.startswith("    ") and not fenced
        inside = indented and (inside or after_empty)
        if inside:
            joined += re.sub(r"(^|\s)#.*", "", line.strip()).strip()
            if joined.endswith("\\"):
                joined = joined[:-1]
            elif joined:
                yield joined
                joined = ""
        after_empty = not line.strip()


def main():
    kind, *rest = sys.argv[1:]
    with open(rest[-1]) as f:
        lines = f.read().split("\n")
    if kind == "run":
        wanted = [body for info, _, body in fences(lines) if info == f"{rest[0]} run"]
        for i, body in enumerate(wanted):
            print(f"#--- {i}", *body, sep="\n")
    elif kind == "others":
        for info, before, body in fences(lines):
            language = info.split(" ")[0]
            if language in ("sh", "python") and info != f"{language} run":
                if not re.match(r"<!-- not run by a test: .+ -->", before):
                    print(body[0])
    else:
        print(*commands(lines), sep="\n")


main()
