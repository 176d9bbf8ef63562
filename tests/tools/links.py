"""links.py FILE...: every link of these Markdown files to a file of the tree, or to a title in one,
leads there. Prints those that do not, a line each; exit status 1 if there are any.

Titles are named as GitHub names them: lower case, letters, digits, hyphens and underscores are
kept, a space becomes a hyphen, and a title that comes again gets a number."""

import os.path
import re
import sys
from pathlib import Path


def unfenced(path):
    return re.sub(r"```.*?```", "", Path(path).read_text(), flags=re.DOTALL)


def names_of_titles(path):
    seen, names = {}, set()
    for title in re.findall(r"^#+ (.*)$", unfenced(path), flags=re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        n = seen.get(name, 0)
        seen[name] = n + 1
        names.add(f"{name}-{n}" if n else name)
    return names


def main():
    dead = []
    for source in sys.argv[1:]:
        for link in re.findall(r"\]\(([^)\s]+)\)", unfenced(source)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, title = link.partition("#")
            folder = os.path.dirname(source)
            target = os.path.normpath(os.path.join(folder, path)) if path else source
            if not os.path.exists(target):
                dead.append(f"{source}: {link}: no such file")
            elif title and target.endswith(".md") and title not in names_of_titles(target):
                dead.append(f"{source}: {link}: no such title")
    print("\n".join(dead))
    sys.exit(1 if dead else 0)


main()
