"""A wheel with the CUDA device alone, which goes beside the library of the wheel tessera-kv.

`make package PACKAGES=cuda` builds the device with nvcc and calls this with TESSERA_CUDA_LIBRARY.
"""

import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

VERSION = (Path(__file__).resolve().parents[2] / "VERSION").read_text().strip()


class BuildWithDevice(build_py):
    def run(self):
        target = Path(self.build_lib) / "tessera" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(os.environ["TESSERA_CUDA_LIBRARY"], target / "libtessera-cuda.so")


class WithBinary(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    version=VERSION,
    install_requires=[f"tessera-kv=={VERSION}"],
    packages=[],
    py_modules=["tessera_cuda_none"],  # nothing of Python; build_py runs for it
    cmdclass={"build_py": BuildWithDevice, "bdist_wheel": AnyPython},
    distclass=WithBinary,
)
