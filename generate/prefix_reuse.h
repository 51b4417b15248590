/* SPDX-License-Identifier: MIT */
/* Prompts and the prefix store: what tells their rows from others', and a cache from which a prompt takes what is known
 * of it and in which it leaves itself. Commands, the library and the server can share its folder. */
#ifndef GENERATE_PREFIX_REUSE_H
#define GENERATE_PREFIX_REUSE_H

#include "attention/reuse.h"
#include "generate/prefix.h"

/* ---- keys ---- */

/* What bits depend on beside model and strategy: this program, the device, how it multiplies. */
void reuse_build(char out[SHA256_HEX], const decoder *d, bool exact);

/* Everything that the rows of a prompt depend on, beside its ids, and whose they are. */
typedef struct {
    const decoder *d;
    const char *weights, *build; /* model_fingerprint, reuse_build */
    const attn_spec *spec;
    int64_t ctx;               /* session_limit */
    const char *client, *salt; /* "": anybody's; none */
    const char *before;        /* how the tokens before the prompt came; "": it begins the session */
} reuse_origin;
void reuse_key(char out[SHA256_HEX], const reuse_origin *o);

/* attn_reuse_of; never where the rows of a prompt of n tokens are rotated by its length. */
attn_reuse reuse_of(const decoder *d, const attn_spec *spec, size_t n);

/* Sessions that share prompts have room for the whole context, which must cost nothing until it is written:
 * ST_UNSUPPORTED where a device takes all of it at once. name: of the option. */
status reuse_check_device(const backend *be, const char *name, err *e);
/* Before such sessions: they write a part of each head's room, and with huge pages would take more than is planned. The
 * weights have theirs already. */
void reuse_small_pages(void);

/* ---- a cache ---- */

typedef struct reuse reuse;

typedef struct {
    prefix_log log;  /* name of the option, and lines */
    size_t memory;   /* most bytes of entries in memory */
    const char *dir; /* folder of the entries; NULL: in memory only */
    uint64_t disk;   /* most bytes of it */
    int64_t ctx;     /* tokens of the sessions that share prompts (reuse_size) */
    size_t least;    /* fewest new tokens of a prompt that is kept */
    bool exact;      /* decoder_options.exact */
    bool quiet;      /* prints no line for a prompt that is not kept */
    /* Returns the bytes that a new entry may take. NULL: 90 % of what the device has available. */
    size_t (*room)(void *ctx);
    void *room_ctx;
} reuse_options;

/* Opens a prefix cache. With sessions of reuse_size that are larger than they need be, reuse_small_pages comes before.
 */
status reuse_open(reuse **out, const reuse_options *o, const decoder *d, err *e);
/* Once all that is to be in the folder is there. */
void reuse_close(reuse *u);
/* ST_UNSUPPORTED where no prompt of the strategy serves another one, or something drafts over its rows (NULL: nothing
 * does). name: of the option. */
status reuse_check(const attn_spec *spec, const attn_spec *draft, const char *name, err *e);
/* A session for `size`, whose context must be the same in all runs that share: --ctx, else the model's, or what it is
 * for if that is more. u may be NULL. */
session_size reuse_size(const reuse *u, session_size size);

/* A prompt of a session: ids [from, n) after the `from` tokens that the session has. */
typedef struct {
    const attn_spec *spec;
    int64_t limit; /* session_limit */
    const int32_t *ids;
    size_t from, n;
    const char *client, *salt, *before; /* as in reuse_origin; NULL: "" */
    attn_hint hint;
    bool keep_only; /* all of it is computed, and kept */
} reuse_prompt;

/* Result of a lookup. */
typedef struct {
    prefix_entry *entry; /* NULL: nothing was found */
    size_t known;        /* tokens of the session once it is loaded; `from` or more */
    size_t keep;         /* where reuse_keep is called; 0: nowhere */
    size_t from, end;    /* of the prompt; end: of what is kept */
    const int32_t *ids;  /* borrowed until reuse_keep */
    bool any;            /* a part of an entry serves */
    char key[SHA256_HEX];
} reuse_known;

/* Looks up a prompt; u may be NULL. The entry stays until reuse_let_go, which comes after the session is reset or
 * freed.
 */
void reuse_find(reuse_known *k, reuse *u, const reuse_prompt *p);
/* Gives a session what was found. The rest is fed with prefill_options.before, in two calls where `keep` lies in it.
 * After a damaged entry the session is empty, and known 0. */
void reuse_load(reuse_known *k, reuse *u, session *s);
void reuse_keep(reuse_known *k, reuse *u, const session *s);
void reuse_let_go(reuse_known *k, reuse *u);
/* The entries, for prefix_shrink and prefix_count. */
prefix_store *reuse_store(const reuse *u);
/* Waits until what was kept is in the folder, and only there. */
void reuse_settle(reuse *u);

#endif
