/* SPDX-License-Identifier: MIT */
/* Session files: the state of a session on disk, for resuming it bit for bit.
 *
 * Rows and indices are stored as they are in memory, so that loading maps them and reads them on demand. All other
 * state is copied. Everything has checksums; those of rows are compared when the session is loaded. The file is sparse:
 * its length covers the whole context, but it takes only the disk space of the written rows. */
#ifndef MODEL_SESSION_FILE_H
#define MODEL_SESSION_FILE_H

#include "kernels/base/sha256.h"
#include "model/session.h"

enum { SESSION_FILE_VERSION = 5, SESSION_FILE_UNSUMMED = 4 /* no checksums of rows; can be loaded */ };

/* Data stored with a session for its caller. */
typedef struct {
    const int32_t *ids;  /* all tokens of the session, and optionally one that was chosen but not fed */
    size_t n_ids;        /* 0: none */
    const float *logits; /* [vocab] for the next token; NULL if it is already chosen */
    uint64_t random;     /* state of the sampler */
    size_t n_generated;  /* the last ids: those of the reply */
} session_notes;

/* Writes a session, between two prompts or steps, to `path`, which is replaced atomically. ST_IO with the file and the
 * byte; ST_UNSUPPORTED in the middle of a prompt; ST_NOMEM. */
status session_save(const session *s, const char *path, const session_notes *notes, err *e);
typedef struct session_file session_file;

/* Saves a session to a file in memory and opens it. Sessions loaded from it share mappable rows until they modify them.
 * In the middle of a prompt it requires that another prompt can continue it: prefill_options.before, and attn_reuse_of
 * must not be NEVER. ST_UNSUPPORTED, ST_NOMEM. */
status session_keep(session_file **out, const session *s, const session_notes *notes, err *e);

/* Opens a file and checks everything except rows and indices, which session_load checks. Errors: ST_IO; ST_FORMAT (not
 * a session, truncated, damaged, or another version), with the file, the value found and the value expected;
 * ST_NOMEM. */
status session_file_open(session_file **out, const char *path, err *e);
/* Opens a session in the first `bytes` bytes of fd; 0: all. Takes ownership of fd, also on error. */
status session_file_take(session_file **out, int fd, const char *name, uint64_t bytes, err *e);
void session_file_close(session_file *f);
int session_file_fd(const session_file *f);
/* Makes session_load skip the check of rows: nobody else can have modified the file, or it is larger than memory. */
void session_file_trust(session_file *f);
/* Lets session_load accept another strategy whose state of a prompt is the same (attn_reuse_spec): the session has no
 * tokens but those of a prompt. */
void session_file_is_prompt(session_file *f);
/* True unless the file has the version without checksums of rows. */
bool session_file_summed(const session_file *f);
/* Return how the session was saved: strategy and store as written by attn_spec_write, and the context in tokens. The
 * strings are valid while the file is open. */
const char *session_file_strategy(const session_file *f);
const char *session_file_store(const session_file *f);
int64_t session_file_context(const session_file *f);
/* Returns the n ids saved with the session. They are not checked against a model's vocabulary. */
const int32_t *session_file_ids(const session_file *f, size_t *n);

/* Loads a session and its notes. Their ids (checked to be in the vocabulary) and logits are valid while the file is
 * open. The session must have the file's model (compared by a hash of its shape and of pieces of its weights),
 * strategy, store, context and chunk; otherwise ST_FORMAT with the value found and the value expected. After any other
 * error the session is empty. The first call reads all rows with the backend's threads and compares checksums;
 * ST_FORMAT names the rows, the layer and the bytes of the first bad block. Later changes of the file are not
 * detected. */
status session_load(session *s, session_file *f, session_notes *notes, err *e);

/* Writes 64 hexadecimal digits that identify a model and its weights. */
void model_fingerprint(char out[SHA256_HEX], const model *m);

#endif
