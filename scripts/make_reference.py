#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the NumPy references in scripts/reference and writes what they compute into tests/data/reference.

    scripts/make_reference.py [name ...]     # default: all

Needs NumPy alone. The same bytes come out each time.
"""
import importlib
import pathlib
import sys

import numpy as np

from reference.common import save

NAMES = ("attention", "gqa", "quest", "fier", "paris", "actqkv", "h2o", "snapkv", "tova", "kivi", "logquant")


def main(names):
    np.seterr(all="raise", under="ignore")
    out = pathlib.Path(__file__).resolve().parent.parent / "tests/data/reference"
    out.mkdir(exist_ok=True)
    for name in names or NAMES:
        if name not in NAMES:
            sys.exit(f"make_reference.py: no reference '{name}'; there are {' '.join(NAMES)}")
        module = importlib.import_module(f"reference.{name}")
        module.check()
        save(out / f"{name}.safetensors", module.fixture())
        print(f"{name}: {(out / f'{name}.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
