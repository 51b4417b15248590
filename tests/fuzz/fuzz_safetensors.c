/* SPDX-License-Identifier: MIT */
/* A safetensors file from outside: whatever opens must have all its tensors inside the input. */
#include "config.h"

#include <stdlib.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_file *f;
    err e = {0}; /* messages are built from the input too */
    unsigned sum = 0;
    if (st_open_memory(&f, data, size, "fuzz", &e) != ST_OK) return 0;
    for (size_t i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        if (st_find(f, t->name) != t) abort();
        if (t->data < data || t->data > data + size || t->bytes > (size_t)(data + size - t->data)) abort();
        if (t->bytes) sum += t->data[0] + t->data[t->bytes - 1];
    }
    volatile unsigned keep = sum; /* the reads must happen */
    (void)keep;
    st_close(f);
    return 0;
}
