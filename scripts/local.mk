# SPDX-License-Identifier: MIT
# Programs for users, their parts (lib), checks of the tree (dev), and generators of fixtures and the built-in model
# (fixtures).
EXTRA_DIST += %D%/bench_compare %D%/build %D%/check %D%/demo %D%/fetch_data %D%/get_model %D%/gpu_check %D%/install_deps %D%/parity %D%/peers %D%/record %D%/report %D%/reproduce %D%/score
EXTRA_DIST += %D%/lib %D%/dev
EXTRA_DIST += $(wildcard $(srcdir)/%D%/fixtures/*.py $(srcdir)/%D%/fixtures/reference/*.py) %D%/fixtures/reference/README.md
