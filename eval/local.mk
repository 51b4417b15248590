# SPDX-License-Identifier: MIT
nobase_dist_pkgdata_DATA = $(eval_data)
