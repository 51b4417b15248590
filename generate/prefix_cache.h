/* SPDX-License-Identifier: MIT */
/* The prefix cache: a prompt reuses the beginning that an earlier prompt left in the prefix store, and stores its own.
 * Commands, the library and the server can share the folder. */
#ifndef GENERATE_PREFIX_CACHE_H
#define GENERATE_PREFIX_CACHE_H

#include "attention/reuse.h"
#include "generate/prefix.h"

/* ---- keys ---- */

/* Hashes everything that results depend on in addition to model and strategy: this program, the device, and its
 * GEMM. */
void prefix_cache_build(char out[SHA256_HEX], const decoder *d, bool exact);

/* Everything that the rows of a prompt depend on in addition to its ids, and their owner. */
typedef struct {
    const decoder *d;
    const char *weights, *build; /* model_fingerprint, prefix_cache_build */
    const attn_spec *spec;
    int64_t ctx;               /* session_limit */
    const char *client, *salt; /* "": any client; no salt */
    const char *before;        /* hash of how the tokens before the prompt were fed; "": it begins the session */
} prefix_origin;
void prefix_cache_key(char out[SHA256_HEX], const prefix_origin *o);

/* Returns which part of an entry can be used: attn_reuse_of, or never if n tokens are rotated by the sequence
 * length. */
attn_reuse prefix_cache_reuse(const decoder *d, const attn_spec *spec, size_t n);

/* Returns ST_UNSUPPORTED if the device allocates a session's whole context at once. Sessions that share prompts reserve
 * the whole context, which must cost nothing until it is written. name: of the option. */
status prefix_cache_check_device(const backend *be, const char *name, err *e);
/* Disables huge pages. Call before creating such sessions: they write only a part of each head's space, and huge pages
 * would take more memory than planned. Weights that are already loaded keep theirs. */
void prefix_small_pages(void);

/* ---- a cache ---- */

typedef struct prefix_cache prefix_cache;

typedef struct {
    prefix_log log;  /* name of the option, and receiver of log lines */
    size_t memory;   /* limit of entries in memory, in bytes */
    const char *dir; /* folder of the entries; NULL: in memory only */
    uint64_t disk;   /* limit of the folder, in bytes */
    int64_t ctx;     /* tokens of sessions that share prompts (prefix_cache_size) */
    size_t least;    /* fewest new tokens of a prompt to keep */
    bool exact;      /* decoder_options.exact */
    bool quiet;      /* logs nothing for a prompt that is not kept */
    /* Returns the bytes available for a new entry. NULL: 90 % of the device's available memory. */
    size_t (*room)(void *ctx);
    void *room_ctx;
} prefix_cache_options;

/* Opens a prefix cache. Call prefix_small_pages first if sessions are larger than needed (prefix_cache_size). */
status prefix_cache_open(prefix_cache **out, const prefix_cache_options *o, const decoder *d, err *e);
/* Closes a cache after all entries are written to the folder. */
void prefix_cache_close(prefix_cache *u);
/* Returns ST_UNSUPPORTED for strategies without prefix caching, and for drafts over their rows (NULL: none). name: of
 * the option. */
status prefix_cache_check(const attn_spec *spec, const attn_spec *draft, const char *name, err *e);
/* Returns the size of a session for `size`. The context must be equal in all runs that share prompts: --ctx, else the
 * model's, or size.n_tokens if larger. u may be NULL. */
session_size prefix_cache_size(const prefix_cache *u, session_size size);

/* A prompt of a session: ids [from, n), after the `from` tokens already in the session. */
typedef struct {
    const attn_spec *spec;
    int64_t limit; /* see session_limit */
    const int32_t *ids;
    size_t from, n;
    const char *client, *salt, *before; /* see prefix_origin; NULL: "" */
    attn_hint hint;
    bool keep_only; /* skip the lookup, compute the whole prompt, and keep it */
    bool replies;   /* also find and keep replies, if the strategy can reuse them (attn_reuse_steps) */
} prefix_lookup;

/* Result of a lookup. */
typedef struct {
    prefix_entry *entry;                         /* NULL: not found */
    size_t n_cached;                             /* tokens in the session once the entry is loaded, at least `from` */
    size_t keep;                                 /* tokens after which to call prefix_cache_keep; 0: never */
    size_t from, end;                            /* start of the prompt, and end of the part to keep */
    size_t kept;                                 /* tokens in the cache */
    const int32_t *ids;                          /* borrowed until prefix_cache_keep */
    bool any;                                    /* a part of an entry can be used */
    char key[SHA256_HEX], reply_key[SHA256_HEX]; /* "": nothing, and no replies, can be found or kept */
} prefix_hit;

/* Looks up a prompt; u may be NULL. The entry is held until prefix_cache_release, to be called after the session is
 * reset or freed. */
void prefix_cache_find(prefix_hit *k, prefix_cache *u, const prefix_lookup *p);
/* Loads the entry found into a session. The caller feeds the rest with prefill_options.before, split at `keep`. If the
 * entry is damaged, the session is empty and n_cached is 0. */
void prefix_cache_load(prefix_hit *k, prefix_cache *u, session *s);
void prefix_cache_keep(prefix_hit *k, prefix_cache *u, const session *s);
/* True if prefix_cache_keep_fed may keep a session that is fed n tokens. */
bool prefix_cache_may_keep(const prefix_hit *k, const prefix_cache *u, size_t n);
/* Keeps what a session was fed when its sequence ends: an unfinished prompt, or prompt and reply. The session is
 * rewound to the last multiple of the chunk within its first n tokens. ids [n + 1]. Entries with rows of replies have a
 * key of their own, since the bits of such rows depend on how they were computed: only lookups with `replies` find
 * them. */
void prefix_cache_keep_fed(prefix_hit *k, prefix_cache *u, session *s, const int32_t *ids, size_t n);
void prefix_cache_release(prefix_hit *k, prefix_cache *u);
/* Returns the store, for prefix_shrink and prefix_count. */
prefix_store *prefix_cache_store(const prefix_cache *u);
/* Waits until all entries are in the folder, then removes them from memory. */
void prefix_cache_settle(prefix_cache *u);

#endif
