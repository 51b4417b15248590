# SPDX-License-Identifier: MIT
"""A wheel of Python alone, or of this platform where the library was copied into the package:

    cp libkvasir.so.0.1.0 python/kvasir/libkvasir.so.0 && cp libkvasir-wait.so.0 python/kvasir/ && pip wheel ./python
"""
from pathlib import Path

from setuptools import setup
from wheel.bdist_wheel import bdist_wheel

LIBRARY = sorted(Path(__file__).parent.glob("kvasir/libkvasir*.so*"))


class Wheel(bdist_wheel):
    """Of any Python 3: the library is reached through ctypes."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not LIBRARY

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(package_data={"kvasir": [p.name for p in LIBRARY]}, cmdclass={"bdist_wheel": Wheel})
