/* SPDX-License-Identifier: MIT */
/* Builds GGUF files in memory:
 *     gguf_file f = {0};
 *     file_begin(&f, 3, 1, 1);                       version, tensors, keys
 *     pair_u32(&f, "general.alignment", 64);
 *     entry(&f, "a", 2, (uint64_t[]){32, 4}, GGUF_Q8_0, 0);
 *     file_data(&f, 64, 4 * 34);                     alignment, bytes
 * free(f.p) releases it. */
#ifndef TESTS_UNIT_GGUF_FILE_H
#define TESTS_UNIT_GGUF_FILE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/gguf.h"

/* Kinds of values, as numbered in files. */
enum { K_U8, K_I8, K_U16, K_I16, K_U32, K_I32, K_F32, K_BOOL, K_STRING, K_ARRAY, K_U64, K_I64, K_F64 };

typedef struct {
    uint8_t *p;
    size_t n, room;
} gguf_file;

static inline void put(gguf_file *f, const void *p, size_t n)
{
    if (f->n + n >= f->room) {
        f->room = 2 * (f->n + n) + 64;
        f->p = realloc(f->p, f->room);
        if (!f->p) exit(1);
    }
    if (n) memcpy(f->p + f->n, p, n);
    f->n += n;
}

static inline void put_le(gguf_file *f, uint64_t v, unsigned bytes)
{
    for (; bytes > 0; bytes--, v >>= 8) put(f, &(uint8_t){(uint8_t)v}, 1);
}

static inline void put_text(gguf_file *f, const char *s)
{
    put_le(f, strlen(s), 8);
    put(f, s, strlen(s));
}

static inline void file_begin(gguf_file *f, uint32_t version, uint64_t n_tensors, uint64_t n_pairs)
{
    put(f, "GGUF", 4);
    put_le(f, version, 4);
    put_le(f, n_tensors, 8);
    put_le(f, n_pairs, 8);
}

/* Begins a pair; its value follows. */
static inline void pair_begin(gguf_file *f, const char *key, uint32_t kind)
{
    put_text(f, key);
    put_le(f, kind, 4);
}

/* Begins a pair that is an array; n elements follow. */
static inline void array_begin(gguf_file *f, const char *key, uint32_t kind, uint64_t n)
{
    pair_begin(f, key, K_ARRAY);
    put_le(f, kind, 4);
    put_le(f, n, 8);
}

static inline void pair_u32(gguf_file *f, const char *key, uint32_t v)
{
    pair_begin(f, key, K_U32);
    put_le(f, v, 4);
}

static inline void pair_text(gguf_file *f, const char *key, const char *v)
{
    pair_begin(f, key, K_STRING);
    put_text(f, v);
}

/* Appends the entry of a tensor. dim: fastest first. */
static inline void entry(gguf_file *f, const char *name, uint32_t rank, const uint64_t *dim, uint32_t type,
                         uint64_t offset)
{
    put_text(f, name);
    put_le(f, rank, 4);
    for (uint32_t i = 0; i < rank; i++) put_le(f, dim[i], 8);
    put_le(f, type, 4);
    put_le(f, offset, 8);
}

static inline void file_pad(gguf_file *f, size_t alignment)
{
    while (f->n % alignment) put(f, "", 1);
}

/* Appends padding and n bytes 0, 1, 2, ... of data. */
static inline void file_data(gguf_file *f, size_t alignment, size_t n)
{
    file_pad(f, alignment);
    for (size_t i = 0; i < n; i++) put(f, &(uint8_t){(uint8_t)i}, 1);
}

#endif
