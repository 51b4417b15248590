/* SPDX-License-Identifier: MIT */
/* Status codes and error text. A fallible function returns a status and takes `err *e` last. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ST_OK,
    ST_USAGE,       /* bad option or argument */
    ST_NOMEM,       /* an allocation failed, or a plan does not fit */
    ST_IO,          /* the operating system refused a read or write */
    ST_FORMAT,      /* a file's content is wrong */
    ST_UNSUPPORTED, /* valid, but not supported */
    ST_DEVICE,      /* the device failed */
    ST_INTERRUPTED  /* the user stopped it */
} status;

typedef struct {
    status code;
    char msg[256];
} err;

/* Records code and a one-line message unless an error is already recorded; the first message wins. e may be NULL.
 * Control characters and invalid UTF-8 in the result are replaced by '?', so that a hostile file name or key cannot
 * reach a terminal. Returns code. */
status err_set(err *e, status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        status try_st_ = (call);                                                                                       \
        if (try_st_ != ST_OK) return try_st_;                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif

/* Like TRY for functions with something to free: sets the local `st` and goes to `done`. */
#define TRY_GOTO(call)                                                                                                 \
    do {                                                                                                               \
        st = (call);                                                                                                   \
        if (st != ST_OK) goto done;                                                                                    \
    } while (0)

#endif
