# SPDX-License-Identifier: MIT
# What a user runs, then its parts (lib), what checks the tree (dev), and what made the fixtures and the built-in model (fixtures).
EXTRA_DIST += %D%/bench_compare %D%/build %D%/check %D%/demo %D%/fetch_data %D%/gpu_check %D%/install_deps %D%/peers %D%/report %D%/reproduce %D%/score
EXTRA_DIST += %D%/lib %D%/dev
EXTRA_DIST += $(wildcard $(srcdir)/%D%/fixtures/*.py $(srcdir)/%D%/fixtures/reference/*.py) %D%/fixtures/reference/README.md
