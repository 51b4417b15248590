# SPDX-License-Identifier: MIT
EXTRA_DIST += %D%/train_demo.py %D%/make_golden.py %D%/make_rope_table.py
