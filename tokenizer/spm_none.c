/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/spm.h"

status spm_open(spm **out, const char *data, size_t n, const char *name, err *e)
{
    (void)data;
    (void)n;
    *out = NULL;
    return err_set(e, ST_UNSUPPORTED, "built without SentencePiece; cannot read %s", name);
}

/* Stubs for the linker. Without spm_open they are never called. */

void spm_free(spm *s)
{
    (void)s;
}

int32_t spm_n_ids(const spm *s)
{
    (void)s;
    return 0;
}

int32_t spm_bos(const spm *s)
{
    (void)s;
    return -1;
}

int32_t spm_eos(const spm *s)
{
    (void)s;
    return -1;
}

spm_kind spm_kind_of(const spm *s, int32_t id)
{
    (void)s;
    (void)id;
    return SPM_UNUSED;
}

const char *spm_piece(const spm *s, int32_t id, size_t *n)
{
    (void)s;
    (void)id;
    *n = 0;
    return NULL;
}

int32_t spm_byte_id(const spm *s, unsigned char c)
{
    (void)s;
    (void)c;
    return -1;
}

spm_strip spm_strip_rule(const spm *s)
{
    (void)s;
    return SPM_KEEP_SPACE;
}

status spm_encode(const spm *s, const char *text, size_t n, int prefix, int32_t **ids, size_t *n_ids, err *e)
{
    (void)s;
    (void)text;
    (void)n;
    (void)prefix;
    *ids = NULL;
    *n_ids = 0;
    return err_set(e, ST_UNSUPPORTED, "built without SentencePiece");
}
