# SPDX-License-Identifier: MIT
exec sh "$SRCDIR/scripts/check_layers.sh"
