# SPDX-License-Identifier: MIT
exec sh "$SRCDIR/scripts/dev/check_circles"
