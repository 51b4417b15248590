# SPDX-License-Identifier: MIT
"""Builds a platform wheel with the library and the program of the build folder that holds these sources, or else a
pure-Python wheel, which uses an installed library. `pip install ./python` does either."""
import fnmatch
import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from distutils.command.build_scripts import build_scripts  # isort: skip; setuptools provides it
from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted(ROOT.glob("libkvasir*.so.*"))
PROGRAM = ROOT / "run"
DATA = ("*.json", "*.jsonl", "*.txt", "*.tsv", "*.md", "*.jinja", "*.model", "*.safetensors", "LICENSE")


class Build(build_py):
    """Copies the library into the package."""

    def run(self):
        super().run()
        for path in LIBRARY:
            self.copy_file(str(path), str(Path(self.build_lib, "kvasir", path.name)))


class Scripts(build_scripts):
    """Copies the program under its installed name."""

    def run(self):
        os.makedirs(self.build_dir, exist_ok=True)
        shutil.copy(PROGRAM, Path(self.build_dir, "kvasir"))


class Wheel(bdist_wheel):
    """Tagged for any Python 3: the library is loaded through ctypes."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not LIBRARY

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


def data_of(source, target):
    """Returns the data files below a folder as setuptools' data_files; the program finds them below its prefix."""
    return [(str(Path(target, Path(folder).relative_to(source))),
             [os.path.relpath(Path(folder, name), Path(__file__).resolve().parent) for name in sorted(names)
              if any(fnmatch.fnmatch(name, pattern) for pattern in DATA)])
            for folder, _, names in os.walk(source)]


has_program = LIBRARY and PROGRAM.exists()
setup(cmdclass={"build_py": Build, "build_scripts": Scripts, "bdist_wheel": Wheel},
      scripts=[os.path.relpath(PROGRAM, Path(__file__).resolve().parent)] if has_program else [],
      data_files=data_of(ROOT / "model/demo", "share/kvasir/demo") + data_of(ROOT / "eval", "share/kvasir/eval")
      if has_program else [])
