/* SPDX-License-Identifier: MIT */
/* C interface of libsentencepiece, the only header shared by C and C++ here. In a build without the library, spm_open
 * always fails with ST_UNSUPPORTED. */
#ifndef TOKENIZER_SPM_H
#define TOKENIZER_SPM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#ifdef __cplusplus
#define SPM_NOEXCEPT noexcept
extern "C" {
#else
#define SPM_NOEXCEPT
#endif

typedef struct spm spm;

typedef enum { SPM_NORMAL, SPM_UNKNOWN, SPM_CONTROL, SPM_BYTE, SPM_UNUSED } spm_kind;

/* Treatment of the first piece's space mark by the library's decoder. */
typedef enum { SPM_KEEP_SPACE, SPM_STRIP_ONE, SPM_STRIP_ALL } spm_strip;

/* Opens the model in data[0..n), which is copied. name: for messages. Errors: ST_FORMAT, ST_UNSUPPORTED, ST_NOMEM. */
status spm_open(spm **out, const char *data, size_t n, const char *name, err *e) SPM_NOEXCEPT;
void spm_free(spm *s) SPM_NOEXCEPT;

int32_t spm_n_ids(const spm *s) SPM_NOEXCEPT;
int32_t spm_bos(const spm *s) SPM_NOEXCEPT; /* -1 if the model has none */
int32_t spm_eos(const spm *s) SPM_NOEXCEPT;
spm_kind spm_kind_of(const spm *s, int32_t id) SPM_NOEXCEPT;
/* Returns the spelling of a piece, with space marks U+2581; for SPM_UNKNOWN the surface printed by decoding; NULL for
 * an id outside the model. */
const char *spm_piece(const spm *s, int32_t id, size_t *n) SPM_NOEXCEPT;
/* Returns the id of the byte piece <0xXX>, -1 if the model has no byte pieces. */
int32_t spm_byte_id(const spm *s, unsigned char c) SPM_NOEXCEPT;
spm_strip spm_strip_rule(const spm *s) SPM_NOEXCEPT;

/* Encodes valid UTF-8; *ids is freed with mem_free. prefix false: omits the dummy space that the model may insert
 * before the text (for text after an invalid byte). */
status spm_encode(const spm *s, const char *text, size_t n, int prefix, int32_t **ids, size_t *n_ids,
                  err *e) SPM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
