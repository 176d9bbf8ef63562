"""Builds libtessera with the Makefile of the tree and puts it into the package.

`pip install ./python` builds in place, so the Makefile is one folder up. docs/dependencies.md lists
the build dependencies; tools/setup installs them. Set TESSERA_LIBRARY to bundle an existing library
instead.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
TREE = HERE.parent


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = Path(self.build_lib) / "tessera" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        for source in self.libraries():
            shutil.copy2(source, target / source.name)

    def libraries(self):
        named = os.environ.get("TESSERA_LIBRARY")
        if named:
            return [Path(named)]
        if not (TREE / "Makefile").exists():
            raise SystemExit("tessera: install from a source tree: pip install ./python")
        build = os.environ.get("B", "build")
        library = TREE / build / "lib" / "libtessera.so"
        subprocess.run(
            ["make", f"-j{os.cpu_count() or 1}", f"B={build}", "lib"], cwd=TREE, check=True
        )
        cuda = library.with_name("libtessera-cuda.so")  # where `make cuda` has been run
        return [library] + ([cuda] if cuda.exists() else [])


class WithBinary(Distribution):
    """A wheel of one platform, although no extension is compiled."""

    def has_ext_modules(self):
        return True


VERSION = (TREE / "VERSION").read_text().strip()
setup(version=VERSION, cmdclass={"build_py": BuildWithLibrary}, distclass=WithBinary)
