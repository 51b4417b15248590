/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "serve/fork.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attention/reuse.h"
#include "kernels/base/mem.h"
#include "model/session_copy.h"
#include "model/session_file.h"

struct prompt_fork {
    session_file *file; /* in memory; NULL: a copy */
    session_copy *copy;
    size_t vocab;
    float *logits;
};

size_t fork_bytes(const session *s)
{
    attn_bytes held = attn_seq_held(session_attn(s));
    return held.kv + held.index + (size_t)decoder_model(session_decoder(s))->config.vocab * sizeof(float);
}

static bool can_map(const session *s)
{
    const backend *be = decoder_model(session_decoder(s))->be;
    return be->ops->map_file && attn_reuse_of(attn_seq_spec(session_attn(s))) != ATTN_REUSE_NEVER;
}

static status save(prompt_fork *f, const session *s, err *e)
{
    const session_notes none = {0};
    int fd = memfd_create("fork", MFD_CLOEXEC);
    if (fd < 0) return err_set(e, ST_NOMEM, "no file in memory: %s", strerror(errno));
    status st = session_save_part(s, fd, "fork", &none, e);
    if (st != ST_OK) {
        close(fd);
        return st;
    }
    TRY(session_file_take(&f->file, fd, "fork", 0, e));
    session_file_trust(f->file);
    return ST_OK;
}

status fork_take(prompt_fork **out, session *s, const float *logits, err *e)
{
    prompt_fork *f;
    *out = NULL;
    TRY(MEM_NEW(&f, 1, e));
    f->vocab = (size_t)decoder_model(session_decoder(s))->config.vocab;
    status st = MEM_NEW(&f->logits, f->vocab, e);
    if (st == ST_OK) memcpy(f->logits, logits, f->vocab * sizeof *logits);
    if (st == ST_OK) st = can_map(s) ? save(f, s, e) : session_copy_take(&f->copy, s, e);
    if (st != ST_OK) fork_free(f);
    else *out = f;
    return st;
}

status fork_give(const prompt_fork *f, session *s, float *logits, err *e)
{
    session_notes unused;
    memcpy(logits, f->logits, f->vocab * sizeof *logits);
    return f->file ? session_load(s, f->file, &unused, e) : session_copy_give(s, f->copy, e);
}

void fork_free(prompt_fork *f)
{
    if (!f) return;
    session_file_close(f->file);
    session_copy_free(f->copy);
    mem_free(f->logits);
    mem_free(f);
}
