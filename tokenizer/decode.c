/* SPDX-License-Identifier: MIT */
/* Decoding of ids, token by token; tokenizer_decode uses the same stream. */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/utf8.h"
#include "tokenizer/chars.h"
#include "tokenizer/impl.h"

typedef struct {
    char *p;
    size_t n, cap;
} text_buf;

struct token_stream {
    const tokenizer *t;
    bool keep_special;
    bool as_bytes; /* invalid characters are kept as they are */
    bool at_start; /* SentencePiece: the next piece may lose its space mark */
    bool printed;  /* text was output before */
    text_buf raw;  /* bytes of an incomplete character: at most 3 between calls */
    text_buf out;
};

#define REPLACEMENT "\xef\xbf\xbd"

static status put(text_buf *b, const char *s, size_t n, err *e)
{
    TRY(MEM_ROOM(&b->p, &b->cap, b->n + n + 1, e));
    if (n) memcpy(b->p + b->n, s, n);
    b->n += n;
    b->p[b->n] = 0;
    return ST_OK;
}

static bool has_pieces(const tokenizer *t)
{
    return t->spm || t->pieces.on;
}

static spm_strip strip_rule(const tokenizer *t)
{
    return t->spm ? spm_strip_rule(t->spm) : t->pieces.strip;
}

status token_stream_create(token_stream **out, const tokenizer *t, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->t = t;
    (*out)->at_start = strip_rule(t) != SPM_KEEP_SPACE;
    return ST_OK;
}

void token_stream_keep_special(token_stream *s)
{
    s->keep_special = true;
}

void token_stream_as_bytes(token_stream *s)
{
    s->keep_special = s->as_bytes = true;
    s->at_start = false;
}

void token_stream_free(token_stream *s)
{
    if (!s) return;
    mem_free(s->raw.p);
    mem_free(s->out.p);
    mem_free(s);
}

/* Moves complete characters from raw to out, and U+FFFD for invalid ones. As in the references, byte-level BPE writes
 * one per maximal subpart, SentencePiece one per byte. */
static status settle(token_stream *s, bool final, err *e)
{
    size_t i = 0;
    while (i < s->raw.n) {
        const char *p = s->raw.p + i;
        const size_t left = s->raw.n - i;
        const int k = utf8_valid_len((const unsigned char *)p, left);
        if (k) {
            TRY(put(&s->out, p, (size_t)k, e));
            i += (size_t)k;
            continue;
        }
        const size_t broken = broken_len(p, left);
        if (!final && broken == left && utf8_partial_tail((const unsigned char *)p, left) == left) break;
        TRY(put(&s->out, REPLACEMENT, 3, e));
        i += has_pieces(s->t) ? 1 : broken;
    }
    if (i) memmove(s->raw.p, s->raw.p + i, s->raw.n - i);
    s->raw.n -= i;
    return ST_OK;
}

static status push_bytes(token_stream *s, const char *bytes, size_t n, err *e)
{
    if (s->as_bytes) return put(&s->out, bytes, n, e);
    TRY(put(&s->raw, bytes, n, e));
    return settle(s, false, e);
}

/* Appends a piece of text. Space marks become spaces; the first one of the text is dropped if the model added it. */
static status push_piece(token_stream *s, const char *piece, size_t n, err *e)
{
    const size_t k = sizeof SPACE_MARK - 1;
    const bool drop_all = s->at_start && s->t->pieces.first_all;
    if (s->at_start && n >= k && memcmp(piece, SPACE_MARK, k) == 0) {
        piece += k;
        n -= k;
        if (strip_rule(s->t) == SPM_STRIP_ONE) s->at_start = false;
    }
    for (size_t i = 0; i < n;) {
        const bool mark = n - i >= k && memcmp(piece + i, SPACE_MARK, k) == 0;
        if (!mark || !drop_all) TRY(put(&s->out, mark ? " " : piece + i, 1, e));
        i += mark ? k : 1;
    }
    if (n || s->t->pieces.first_all) s->at_start = false;
    return ST_OK;
}

/* Returns the byte of a piece "<0xAB>", -1 for another piece. */
static int byte_of_piece(const char *piece, size_t n)
{
    static const char hex[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>') return -1;
    const char *hi = memchr(hex, piece[3], 16), *lo = memchr(hex, piece[4], 16);
    return hi && lo ? (int)((hi - hex) * 16 + (lo - hex)) : -1;
}

/* Returns the spelling of a piece and its kind. */
static const char *find_piece(const tokenizer *t, int32_t id, size_t *n, spm_kind *kind)
{
    if (t->spm) {
        *kind = spm_kind_of(t->spm, id);
        return spm_piece(t->spm, id, n);
    }
    const char *piece = bpe_token(t->bpe, id, n);
    *kind = piece && t->pieces.bytes && byte_of_piece(piece, *n) >= 0 ? SPM_BYTE : SPM_NORMAL;
    return piece;
}

static status push_spm(token_stream *s, int32_t id, const added_token *a, err *e)
{
    size_t n;
    spm_kind kind;
    const char *piece = find_piece(s->t, id, &n, &kind);
    if (kind == SPM_BYTE && !a && n == 6) {
        const char byte = (char)byte_of_piece(piece, n);
        return push_bytes(s, &byte, 1, e);
    }
    TRY(settle(s, true, e)); /* earlier bytes cannot be completed any more */
    if (s->printed || s->out.n) s->at_start = false;
    if (a && a->special && !s->keep_special) return ST_OK;
    if (a && s->t->spm) return put(&s->out, a->text, a->n, e);
    if (a) piece = added_matched(a, &n);
    if (!piece || kind == SPM_CONTROL) return ST_OK;
    return kind == SPM_UNKNOWN ? put(&s->out, piece, n, e) : push_piece(s, piece, n, e);
}

static status push_bpe(token_stream *s, int32_t id, const added_token *a, err *e)
{
    size_t n;
    if (a && a->special && !s->keep_special) return ST_OK;
    const char *bytes = a ? added_matched(a, &n) : bpe_token(s->t->bpe, id, &n);
    return bytes ? push_bytes(s, bytes, n, e) : ST_OK;
}

/* Appends the text of an id to s->out. */
static status push(token_stream *s, int32_t id, err *e)
{
    const added_token *a = added_by_id(&s->t->added, id);
    return has_pieces(s->t) ? push_spm(s, id, a, e) : push_bpe(s, id, a, e);
}

static void begin(token_stream *s)
{
    s->printed |= s->out.n > 0;
    s->out.n = 0;
}

static status give(token_stream *s, const char **text, size_t *len, err *e)
{
    TRY(put(&s->out, "", 0, e)); /* NUL-terminates even an empty text */
    *text = s->out.p;
    *len = s->out.n;
    return ST_OK;
}

status token_stream_push(token_stream *s, int32_t id, const char **text, size_t *len, err *e)
{
    *text = "";
    *len = 0;
    begin(s);
    TRY(push(s, id, e));
    return give(s, text, len, e);
}

status token_stream_end(token_stream *s, const char **text, size_t *len, err *e)
{
    *text = "";
    *len = 0;
    begin(s);
    TRY(settle(s, true, e));
    return give(s, text, len, e);
}

status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool keep_special, char **out, size_t *len,
                        err *e)
{
    token_stream *s;
    *out = NULL;
    if (len) *len = 0;
    TRY(token_stream_create(&s, t, e));
    s->keep_special = keep_special;
    status st = ST_OK;
    for (size_t i = 0; i < n; i++) TRY_GOTO(push(s, ids[i], e));
    TRY_GOTO(settle(s, true, e));
    TRY_GOTO(put(&s->out, "", 0, e));
    *out = s->out.p;
    if (len) *len = s->out.n;
    s->out.p = NULL;
done:
    token_stream_free(s);
    return st;
}

status tokenizer_bytes(const tokenizer *t, int32_t id, char **out, size_t *len, err *e)
{
    token_stream *s;
    *out = NULL;
    *len = 0;
    TRY(token_stream_create(&s, t, e));
    token_stream_as_bytes(s);
    status st = push(s, id, e);
    if (st == ST_OK) st = put(&s->out, "", 0, e);
    if (st == ST_OK) {
        *out = s->out.p;
        *len = s->out.n;
        s->out.p = NULL;
    }
    token_stream_free(s);
    return st;
}

/* Replaces every `from` by `to`, which is not longer, from left to right. */
static void replace_all(char *text, size_t *n, const char *from, const char *to)
{
    const size_t n_from = strlen(from), n_to = strlen(to);
    size_t out = 0;
    for (size_t i = 0; i < *n;) {
        if (*n - i >= n_from && memcmp(text + i, from, n_from) == 0) {
            memcpy(text + out, to, n_to);
            out += n_to;
            i += n_from;
        } else {
            text[out++] = text[i++];
        }
    }
    *n = out;
    text[out] = 0;
}

void tokenizer_clean_up(char *text, size_t *n)
{
    static const char *const pairs[][2] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) replace_all(text, n, pairs[i][0], pairs[i][1]);
}
