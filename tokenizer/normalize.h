/* SPDX-License-Identifier: MIT */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include <stddef.h>

#include "kernels/base/err.h"

/* Unicode NFC of valid UTF-8. *out stays NULL where text already is NFC (always so for ASCII and
 * Latin-1), else it is the new text, freed with mem_free. Source: Unicode Annex 15, through
 * utf8proc. */
status normalize_nfc(char **out, size_t *n_out, const char *text, size_t n, err *e);

#endif
