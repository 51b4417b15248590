# SPDX-License-Identifier: MIT
"""Builds a platform wheel with the library of the build folder that holds these sources, or else a pure-Python wheel,
which uses an installed library. `pip install ./python` does either."""
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

LIBRARY = sorted(Path(__file__).resolve().parent.parent.glob("libkvasir*.so.*"))


class Build(build_py):
    """Copies the library into the package."""

    def run(self):
        super().run()
        for path in LIBRARY:
            self.copy_file(str(path), str(Path(self.build_lib, "kvasir", path.name)))


class Wheel(bdist_wheel):
    """Tagged for any Python 3: the library is loaded through ctypes."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not LIBRARY

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel})
