"""_c.py is what tools/gen-python writes, and its structs have the sizes and offsets of C."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from ctypes import sizeof
from pathlib import Path

import tessera
from tessera import _c as c
from tessera._checked import Struct

TREE = Path(__file__).resolve().parents[2]
STRUCTS = [
    kind for kind in vars(c).values() if isinstance(kind, type) and issubclass(kind, Struct)
][1:]  # without Struct itself


def tag_of(struct):
    """tsr_space_desc for SpaceDesc."""
    return "tsr_" + re.sub(r"(?<!^)([A-Z])", r"_\1", struct.__name__).lower()


def measured():
    """What the compiler says: one line of numbers for each struct."""
    lines = [f"#include <tessera/{path.name}>" for path in (TREE / "include/tessera").glob("*.h")]
    lines += ["#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for struct in STRUCTS:
        tag = tag_of(struct)
        lines.append(f'printf("{struct.__name__} %zu", sizeof(struct {tag}));')
        for field in struct._fields_:
            lines.append(f'printf(" %zu", offsetof(struct {tag}, {field[0].rstrip("_")}));')
        lines.append('puts("");')
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "sizes.c"), os.path.join(folder, "sizes")
        Path(source).write_text("\n".join(lines))
        subprocess.run(["cc", f"-I{TREE}/include", source, "-o", program], check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: [int(n) for n in line.split()[1:]] for line in output.splitlines()}


class TestStructs(unittest.TestCase):
    @unittest.skipUnless(shutil.which("cc"), "no compiler here")
    def test_sizes_and_offsets_are_those_of_the_headers(self):
        numbers = measured()
        self.assertGreater(len(STRUCTS), 40)
        for struct in STRUCTS:
            here = [sizeof(struct)] + [
                getattr(struct, field[0]).offset for field in struct._fields_
            ]
            self.assertEqual(here, numbers[struct.__name__], struct.__name__)

    @unittest.skipUnless(shutil.which("clang"), "no clang here")
    def test_the_generated_file_is_current(self):
        done = subprocess.run(
            [TREE / "tools/gen-python", "--check"], capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_library_says_which_one_it_is(self):
        self.assertEqual(tessera.__version__.encode(), tessera.library().tsr_version())
        self.assertIn("tessera", tessera.library_path())


if __name__ == "__main__":
    unittest.main()
