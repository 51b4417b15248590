#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes ./configure. Needs autoconf, automake and pkg-config.
set -e
cd "$(dirname "$0")"
autoreconf --install --force --warnings=all
