/* SPDX-License-Identifier: MIT */
/* Sessions on disk: what a session holds, to go on later with the same bits.
 *
 * Rows, codes and indices lie in the file as they do in memory, so that loading maps them: they are read where they
 * are attended. Everything that other things are looked up by is copied. All of it has checksums: those of rows are
 * compared when the session is loaded. The file is sparse: it is as long as the context has room, and takes the disk
 * space of what was written. */
#ifndef MODEL_SESSION_FILE_H
#define MODEL_SESSION_FILE_H

#include "kernels/base/sha256.h"
#include "model/session.h"

enum { SESSION_FILE_VERSION = 5, SESSION_FILE_UNSUMMED = 4 /* rows have no checksums; still loaded */ };

/* What those who feed a session keep beside it. */
typedef struct {
    const int32_t *ids;  /* all tokens of the session, and maybe one that was chosen and is not fed yet */
    size_t n_ids;        /* 0: not wanted */
    const float *logits; /* [vocab] of the next token, unless it is chosen already: then NULL */
    uint64_t random;     /* state of the sampler */
} session_notes;

/* Writes a session between two prompts or steps. Nothing stands at `path` before it is complete. ST_IO with the file
 * and the byte; ST_UNSUPPORTED in the middle of a prompt; ST_NOMEM. */
status session_save(const session *s, const char *path, const session_notes *notes, err *e);
typedef struct session_file session_file;

/* Saves a session to a file in memory and opens it. Sessions that load it share rows that can be mapped, until they
 * change them. In the middle of a prompt only where another prompt can continue it: prefill_options.before, and
 * attn_reuse_of is not NEVER. ST_UNSUPPORTED, ST_NOMEM. */
status session_keep(session_file **out, const session *s, const session_notes *notes, err *e);

/* Opens a file and checks all of it but rows, codes and indices, which session_load checks. Errors: ST_IO, ST_FORMAT
 * (not a session, cut, damaged, of another version: with the file, what was found and what was expected), ST_NOMEM. */
status session_file_open(session_file **out, const char *path, err *e);
/* The same of an open file, which is closed with it, or after an error: its first `bytes` bytes; 0: all. */
status session_file_take(session_file **out, int fd, const char *name, uint64_t bytes, err *e);
void session_file_close(session_file *f);
int session_file_fd(const session_file *f);
/* Makes session_load skip the check of rows: nobody else can have changed the file, or it is larger than memory. */
void session_file_trust(session_file *f);
/* True unless the file is of the version whose rows have no checksums. */
bool session_file_summed(const session_file *f);
/* How it was saved: attn_spec_write's words, and the most tokens of the session. Valid while it is open. */
const char *session_file_strategy(const session_file *f);
const char *session_file_store(const session_file *f);
int64_t session_file_context(const session_file *f);
/* The ids that were saved with it, n of them; not checked to be of a model's vocabulary. */
const int32_t *session_file_ids(const session_file *f, size_t *n);

/* Gives a session what the file holds, and notes whose ids (within the vocabulary) and logits are valid while the file
 * is open. The session must be of the same model (a hash of its shape and of pieces of its weights), strategy, store,
 * context and chunk: else ST_FORMAT with what was found and what was expected. After any other error it is empty.
 * The first call reads all rows with the backend's threads and compares their checksums: ST_FORMAT names the rows, the
 * layer and the bytes of the first block that differs. Bytes that change after that are not detected. */
status session_load(session *s, session_file *f, session_notes *notes, err *e);

/* 64 hexadecimal digits that tell a model with its weights from others. */
void model_fingerprint(char out[SHA256_HEX], const model *m);

#endif
