# SPDX-License-Identifier: MIT
"""Builds a wheel with the library, the program, the built-in model and the data of the evaluations: `pip install .`
compiles Kvasir first unless this folder has a build. scripts/install_deps installs what a build needs."""
import fnmatch
import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from distutils.command.build_scripts import build_scripts  # isort: skip; setuptools provides it
from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
PROGRAM = "run"
DATA = ("*.json", "*.jsonl", "*.txt", "*.tsv", "*.md", "*.jinja", "*.model", "*.safetensors", "LICENSE")


def libraries():
    return sorted(ROOT.glob("libkvasir*.so.*"))


def compile_missing():
    """Builds the program and the library in this folder if they are missing."""
    if not (libraries() and (ROOT / PROGRAM).exists()):
        subprocess.run([str(ROOT / "scripts/build")], cwd=ROOT, check=True)
    if not libraries():
        raise SystemExit("setup.py: the build has no libkvasir.so: configure without --disable-shared and sanitizers")


class Build(build_py):
    """Copies the library into the package."""

    def run(self):
        super().run()
        for path in libraries():
            self.copy_file(str(path), str(Path(self.build_lib, "kvasir", path.name)))


class Scripts(build_scripts):
    """Copies the program under its installed name."""

    def run(self):
        os.makedirs(self.build_dir, exist_ok=True)
        shutil.copy(ROOT / PROGRAM, Path(self.build_dir, "kvasir"))


class Wheel(bdist_wheel):
    """Compiles first. Tagged for any Python 3: the library is loaded through ctypes."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])

    def run(self):
        compile_missing()
        super().run()


def data_of(source, target):
    """Returns the data files below a folder as setuptools' data_files; the program finds them below its prefix."""
    found = []
    for folder, _, names in os.walk(source):
        kept = sorted(n for n in names if any(fnmatch.fnmatch(n, pattern) for pattern in DATA))
        found.append((os.path.join(target, os.path.relpath(folder, source)), [os.path.join(folder, n) for n in kept]))
    return found


os.chdir(ROOT)
setup(cmdclass={"build_py": Build, "build_scripts": Scripts, "bdist_wheel": Wheel}, scripts=[PROGRAM],
      data_files=data_of("model/demo", "share/kvasir/demo") + data_of("eval", "share/kvasir/eval"))
