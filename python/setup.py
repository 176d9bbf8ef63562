"""Builds libtessera and the programs with the Makefile and puts them into the package.

`pip install ./python` builds in place, so the Makefile is one folder up; in an sdist it is in
source/. docs/dependencies.md lists the build dependencies; tools/setup installs them.

TESSERA_LIBRARY   bundle this library instead of building one; without programs
TESSERA_STAGE     bundle this folder (lib, bin, share) as it is: packaging/wheel/build.sh
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1 can say the version, and no more
    bdist_wheel = object

HERE = Path(__file__).resolve().parent
TREE = HERE / "source" if (HERE / "source").is_dir() else HERE.parent
# What the Makefile needs of the tree to build the library and the programs.
SOURCES = ["Makefile", "VERSION", "LICENSE", "tessera.pc.in", "include", "src", "profiles", "man"]
SOURCES += ["tools/setup", "tools/setup-model", "docs/watching"]
LIBRARIES = ["libtessera.so", "libtessera-ascend.so"]
PROGRAMS = ["tessera", "tesserad"]


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = Path(self.build_lib) / "tessera"
        for source, place in self.bundled():
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / place)

    def bundled(self):
        """Files, and where they go in the package."""
        named = os.environ.get("TESSERA_LIBRARY")
        if named:
            return [(Path(named), "lib/libtessera.so")]
        stage = os.environ.get("TESSERA_STAGE")
        if stage:
            files = (path for path in Path(stage).rglob("*") if path.is_file())
            return [(path, str(path.relative_to(stage))) for path in files]
        return self.built()

    def built(self):
        if not (TREE / "Makefile").exists():
            raise SystemExit("tessera: install from a source tree: pip install ./python")
        folder = os.environ.get("B", "build")
        programs = [f"{folder}/bin/{name}" for name in PROGRAMS]
        jobs = f"-j{os.cpu_count() or 1}"
        ascend = f"{folder}/lib/libtessera-ascend.so"  # opens AscendCL when it is asked for
        targets = ["lib", ascend, *programs]
        subprocess.run(["make", jobs, f"B={folder}", *targets], cwd=TREE, check=True)
        build = TREE / folder
        cuda = build / "lib" / "libtessera-cuda.so"  # where `make cuda` has been run
        return (
            [(build / "lib" / name, f"lib/{name}") for name in LIBRARIES]
            + ([(cuda, "lib/libtessera-cuda.so")] if cuda.exists() else [])
            + [(build / "bin" / name, f"bin/{name}") for name in PROGRAMS]
            + [(p, f"share/tessera/profiles/{p.name}") for p in (TREE / "profiles").glob("*.yaml")]
        )


class WithBinary(Distribution):
    """A wheel of one platform, although no extension is compiled."""

    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    """The library is called by ctypes: one wheel for every Python 3."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithSources(sdist):
    """The C sources are outside of this folder: they go along as source/. The licence goes to the
    top, where setuptools finds it for the wheel that is built of them."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if not (Path(base_dir) / "LICENSE").exists():
            shutil.copy2(TREE / "LICENSE", base_dir)
        for name in SOURCES:
            target = Path(base_dir) / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (TREE / name).is_dir() else shutil.copy2
            copy(TREE / name, target)


COMMANDS = {"build_py": BuildWithLibrary, "sdist": WithSources}
if bdist_wheel is not object:
    COMMANDS["bdist_wheel"] = AnyPython
VERSION = (TREE / "VERSION").read_text().strip()
setup(version=VERSION, cmdclass=COMMANDS, distclass=WithBinary)
