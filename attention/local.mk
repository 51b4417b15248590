# SPDX-License-Identifier: MIT
EXTRA_DIST += %D%/README.md
