/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/lines.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include <utf8proc.h>

#include "cli/line_editor.h"
#include "kernels/base/mem.h"

/* Turn the marks around pasted texts on and off. */
#define PASTE_ON  "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

struct lines {
    typed_input in;
    bool marks;          /* the terminal marks pasted texts */
    line_editor *editor; /* NULL: not a terminal */
    typed_text typed;
    char *line; /* last line of a terminal */
    size_t line_cap;
};

status lines_open(lines **out, bool edit, err *e)
{
    const char *term = getenv("TERM");
    TRY(MEM_NEW(out, 1, e));
    (*out)->marks = term && strcmp(term, "dumb") != 0;
    if (!edit || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) return ST_OK;
    status st = line_editor_open(&(*out)->editor, &(*out)->in, e);
    if (st == ST_OK) return ST_OK;
    lines_close(*out);
    *out = NULL;
    return st;
}

bool lines_edited(const lines *in)
{
    return in->editor != NULL;
}

void lines_close(lines *in)
{
    if (!in) return;
    line_editor_close(in->editor);
    mem_free(in->in.text);
    mem_free(in->typed.c);
    mem_free(in->line);
    mem_free(in);
}

/* Reads a line that ends with a newline or the end of input. */
static status read_line(typed_input *in, const char **line, err *e)
{
    char *end = NULL;
    *line = NULL;
    while (!(end = in->n > in->at ? memchr(in->text + in->at, '\n', in->n - in->at) : NULL)) {
        if (in->ended) break;
        TRY(typed_input_more(in, e));
    }
    if (!end && in->n == in->at) return ST_OK;
    if (!end) end = in->text + in->n++; /* the last line has no newline; there is room for one */
    *end = 0;
    *line = in->text + in->at;
    in->at = (size_t)(end + 1 - in->text);
    return ST_OK;
}

/* ---- terminals ---- */

static struct termios editing; /* modes while a line is edited */

/* Restores the modes, which shells change while the program is stopped. */
static void on_continue(int sig)
{
    (void)sig;
    const int before = errno;
    tcsetattr(STDIN_FILENO, TCSANOW, &editing);
    errno = before;
}

/* Turns off the terminal's own editing, whose lines have at most 4,095 bytes. */
static void begin_editing(const lines *in, struct termios *before)
{
    tcgetattr(STDIN_FILENO, before);
    editing = *before;
    editing.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    editing.c_cc[VMIN] = 1;
    editing.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &editing);
    sigaction(SIGCONT, &(struct sigaction){.sa_handler = on_continue, .sa_flags = SA_RESTART}, NULL);
    if (in->marks) fputs(PASTE_ON, stderr);
}

static void end_editing(const lines *in, const struct termios *before)
{
    if (in->marks) fputs(PASTE_OFF, stderr);
    signal(SIGCONT, SIG_DFL);
    tcsetattr(STDIN_FILENO, TCSADRAIN, before);
}

/* Encodes the typed text in UTF-8, without its last newline. */
static status encode_line(lines *in, err *e)
{
    const typed_text *t = &in->typed;
    size_t n = 0;
    TRY(MEM_ROOM(&in->line, &in->line_cap, 4 * t->n + 1, e));
    for (size_t i = 0; i < t->n; i++)
        n += (size_t)utf8proc_encode_char((utf8proc_int32_t)t->c[i], (utf8proc_uint8_t *)in->line + n);
    while (n && in->line[n - 1] == '\n') n--;
    in->line[n] = 0;
    return ST_OK;
}

static status edit_line(lines *in, const char **line, err *e)
{
    struct termios before;
    bool end = false;
    in->typed.n = 0;
    *line = NULL;
    begin_editing(in, &before);
    status st = line_editor_read(in->editor, &in->typed, &end, e);
    end_editing(in, &before);
    if (st != ST_OK || end) return st;
    TRY(encode_line(in, e));
    line_editor_add(in->editor, in->line);
    *line = in->line;
    return ST_OK;
}

status lines_next(lines *in, const char **line, err *e)
{
    return in->editor ? edit_line(in, line, e) : read_line(&in->in, line, e);
}
