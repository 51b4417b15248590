/* SPDX-License-Identifier: MIT */
/* The prefix cache: a prompt takes the beginning that an earlier one left in the prefix store, and leaves its own
 * there. Commands, the library and the server can share its folder. */
#ifndef GENERATE_PREFIX_CACHE_H
#define GENERATE_PREFIX_CACHE_H

#include "attention/reuse.h"
#include "generate/prefix.h"

/* ---- keys ---- */

/* Hash of what bits depend on in addition to model and strategy: this program, the device, how it multiplies. */
void prefix_cache_build(char out[SHA256_HEX], const decoder *d, bool exact);

/* Everything that the rows of a prompt depend on in addition to its ids, and whose they are. */
typedef struct {
    const decoder *d;
    const char *weights, *build; /* model_fingerprint, prefix_cache_build */
    const attn_spec *spec;
    int64_t ctx;               /* session_limit */
    const char *client, *salt; /* "": anybody's; none */
    const char *before;        /* how the tokens before the prompt were fed; "": it begins the session */
} prefix_origin;
void prefix_cache_key(char out[SHA256_HEX], const prefix_origin *o);

/* Which part of an entry serves: attn_reuse_of, or never where the rows of n tokens are rotated by their number. */
attn_reuse prefix_cache_takes(const decoder *d, const attn_spec *spec, size_t n);

/* Sessions that share prompts have room for the whole context, which must cost nothing until it is written:
 * ST_UNSUPPORTED where a device takes all of it at once. name: of the option. */
status prefix_cache_check_device(const backend *be, const char *name, err *e);
/* Before such sessions: they write a part of each head's room, and with huge pages would take more than is planned. The
 * weights have theirs already. */
void prefix_small_pages(void);

/* ---- a cache ---- */

typedef struct prefix_cache prefix_cache;

typedef struct {
    prefix_log log;  /* name of the option, and lines */
    size_t memory;   /* most bytes of entries in memory */
    const char *dir; /* folder of the entries; NULL: in memory only */
    uint64_t disk;   /* most bytes of it */
    int64_t ctx;     /* tokens of the sessions that share prompts (prefix_cache_size) */
    size_t least;    /* fewest new tokens of a prompt that is kept */
    bool exact;      /* decoder_options.exact */
    bool quiet;      /* prints no line for a prompt that is not kept */
    /* Returns the bytes that a new entry may take. NULL: 90 % of what the device has available. */
    size_t (*room)(void *ctx);
    void *room_ctx;
} prefix_cache_options;

/* Opens a prefix cache. With sessions of prefix_cache_size that are larger than they need be, prefix_small_pages comes
 * before.
 */
status prefix_cache_open(prefix_cache **out, const prefix_cache_options *o, const decoder *d, err *e);
/* Returns after all entries were written to the folder. */
void prefix_cache_close(prefix_cache *u);
/* ST_UNSUPPORTED for strategies without prefix caching, and for drafts over their rows (NULL: none). name: of the
 * option. */
status prefix_cache_check(const attn_spec *spec, const attn_spec *draft, const char *name, err *e);
/* A session for `size`, whose context must be the same in all runs that share: --ctx, else the model's, or what it is
 * for if that is more. u may be NULL. */
session_size prefix_cache_size(const prefix_cache *u, session_size size);

/* A prompt of a session: ids [from, n) after the `from` tokens that the session has. */
typedef struct {
    const attn_spec *spec;
    int64_t limit; /* session_limit */
    const int32_t *ids;
    size_t from, n;
    const char *client, *salt, *before; /* as in prefix_origin; NULL: "" */
    attn_hint hint;
    bool keep_only; /* all of it is computed, and kept */
} prefix_lookup;

/* Result of a lookup. */
typedef struct {
    prefix_entry *entry; /* NULL: nothing was found */
    size_t n_cached;     /* tokens of the session once it is loaded; `from` or more */
    size_t keep;         /* where prefix_cache_keep is called; 0: nowhere */
    size_t from, end;    /* of the prompt; end: of what is kept */
    const int32_t *ids;  /* borrowed until prefix_cache_keep */
    bool any;            /* a part of an entry serves */
    char key[SHA256_HEX];
} prefix_hit;

/* Looks up a prompt; u may be NULL. The entry stays until prefix_cache_release, which comes after the session is reset
 * or freed.
 */
void prefix_cache_find(prefix_hit *k, prefix_cache *u, const prefix_lookup *p);
/* Gives a session what was found. The rest is fed with prefill_options.before, in two calls where `keep` lies in it.
 * After a damaged entry the session is empty, and n_cached 0. */
void prefix_cache_load(prefix_hit *k, prefix_cache *u, session *s);
void prefix_cache_keep(prefix_hit *k, prefix_cache *u, const session *s);
void prefix_cache_release(prefix_hit *k, prefix_cache *u);
/* The entries, for prefix_shrink and prefix_count. */
prefix_store *prefix_cache_store(const prefix_cache *u);
/* Waits until all entries are in the folder, and only there. */
void prefix_cache_settle(prefix_cache *u);

#endif
