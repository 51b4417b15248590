/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/stop_text.h"

#include <string.h>

#include "kernels/base/mem.h"

/* Returns the number of bytes of t->held that can be output. *stopped: a stop text is complete. */
static size_t releasable(stop_text *t, bool *stopped)
{
    size_t safe = t->n;
    *stopped = false;
    for (int i = 0; i < t->n_stop; i++) {
        size_t len = strlen(t->stop[i]);
        const char *hit = len ? memmem(t->held, t->n, t->stop[i], len) : NULL;
        if (hit) {
            if (!*stopped || (size_t)(hit - t->held) < safe) t->hit = i;
            *stopped = true;
            if ((size_t)(hit - t->held) < safe) safe = (size_t)(hit - t->held);
        }
    }
    if (*stopped) return safe;
    for (int i = 0; i < t->n_stop; i++)
        for (size_t k = strlen(t->stop[i]); k-- > 1;)
            if (k <= t->n && memcmp(t->held + t->n - k, t->stop[i], k) == 0) {
                if (t->n - k < safe) safe = t->n - k;
                break;
            }
    return safe;
}

static void drop_given(stop_text *t)
{
    if (t->given) memmove(t->held, t->held + t->given, t->n - t->given);
    t->n -= t->given;
    t->given = 0;
}

status stop_text_add(stop_text *t, const char *text, size_t n, const char **out, size_t *k, bool *stopped, err *e)
{
    *out = "";
    *k = 0;
    *stopped = false;
    drop_given(t);
    if (n == 0) return ST_OK; /* nothing new to release */
    TRY(MEM_ROOM(&t->held, &t->cap, t->n + n, e));
    memcpy(t->held + t->n, text, n);
    t->n += n;
    t->given = *k = releasable(t, stopped);
    *out = t->held;
    return ST_OK;
}

void stop_text_rest(stop_text *t, const char **out, size_t *k)
{
    drop_given(t);
    *out = t->n ? t->held : "";
    *k = t->n;
    t->given = t->n;
}

void stop_text_free(stop_text *t)
{
    mem_free(t->held);
    *t = (stop_text){0};
}
