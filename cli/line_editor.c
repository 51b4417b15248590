/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/line_editor.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"

#define PROMPT "> "

#ifdef HAVE_EDIT

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/find_model.h"
#include "cli/output.h"
#include "kernels/base/file.h"
#include "kernels/base/temp_file.h"

enum { HISTORY_LINES = 1000 };

struct line_editor {
    EditLine *el;
    History *history;
    char *path; /* history file; NULL: none */
    typed_input *in;
    typed_text *line; /* line that is read, and its result */
    status st;
    err *e;
};

static line_editor *editor_of(EditLine *el)
{
    line_editor *ed = NULL;
    el_get(el, EL_CLIENTDATA, &ed);
    return ed;
}

static char *prompt(EditLine *el)
{
    static char text[] = PROMPT;
    (void)el;
    return text;
}

/* Reads a key for libedit: 1, 0 at the end of input, or -1. */
static int read_key(EditLine *el, wchar_t *c)
{
    line_editor *ed = editor_of(el);
    ed->st = typed_read_char(ed->in, c, ed->e);
    el_resize(el); /* after the user has changed the size of the terminal */
    return ed->st != ST_OK ? -1 : *c >= 0;
}

/* Inserts a pasted text, newlines included. */
static unsigned char insert_paste(EditLine *el, int key)
{
    line_editor *ed = editor_of(el);
    (void)key;
    ed->line->n = 0;
    ed->st = typed_read_paste(ed->in, ed->line, ed->e);
    if (ed->st == ST_OK) ed->st = typed_text_add(ed->line, 0, ed->e);
    if (ed->st != ST_OK) return CC_EOF;
    return ed->line->n == 1 || el_winsertstr(el, ed->line->c) == 0 ? CC_REFRESH : CC_ERROR;
}

/* Sets the path of the history file, and reads the file. */
static status open_history(line_editor *ed, err *e)
{
    HistEvent event;
    const char *own = getenv("KVASIR_HISTORY");
    if (own && !*own) return ST_OK;
    char *dir = own ? mem_strdup(own) : cli_state_folder();
    if (!dir) return own ? err_set(e, ST_NOMEM, "out of memory") : ST_OK;
    ed->path = own ? dir : path_join(dir, "history");
    if (!own) mem_free(dir);
    if (!ed->path) return err_set(e, ST_NOMEM, "out of memory");
    history(ed->history, &event, H_LOAD, ed->path);
    return ST_OK;
}

/* libedit shows the characters that the locale knows. */
static void set_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

status line_editor_open(line_editor **out, typed_input *in, err *e)
{
    HistEvent event;
    set_locale();
    TRY(MEM_NEW(out, 1, e));
    line_editor *ed = *out;
    ed->in = in;
    ed->el = el_init("kvasir", stdin, stderr, stderr);
    ed->history = history_init();
    if (!ed->el || !ed->history) return err_set(e, ST_NOMEM, "libedit cannot start on this terminal");
    history(ed->history, &event, H_SETSIZE, HISTORY_LINES);
    history(ed->history, &event, H_SETUNIQUE, 1);
    el_set(ed->el, EL_CLIENTDATA, ed);
    el_set(ed->el, EL_PROMPT, prompt);
    el_set(ed->el, EL_EDITOR, "emacs");
    el_set(ed->el, EL_GETCFN, read_key);
    el_set(ed->el, EL_HIST, history, ed->history);
    el_wset(ed->el, EL_ADDFN, L"insert-paste", L"Insert a pasted text", insert_paste); /* el_set leaks the names */
    el_set(ed->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(ed->el, NULL); /* the user's ~/.editrc */
    el_set(ed->el, EL_BIND, "\\e[200~", "insert-paste", NULL);
    return open_history(ed, e);
}

status line_editor_read(line_editor *ed, typed_text *line, bool *end, err *e)
{
    int n;
    ed->line = line;
    ed->e = e;
    ed->st = ST_OK;
    const wchar_t *text = el_wgets(ed->el, &n);
    TRY(ed->st);
    *end = !text;
    line->n = 0;
    for (int i = 0; text && i < n; i++) TRY(typed_text_add(line, text[i], e));
    return ST_OK;
}

/* Writes the history file, readable by the user only. */
static status write_history(const line_editor *ed, err *e)
{
    HistEvent event;
    temp_file temp;
    char *slash = strrchr(ed->path, '/');
    if (slash && slash != ed->path) {
        *slash = 0;
        status st = dir_make(ed->path, e);
        *slash = '/';
        TRY(st);
    }
    TRY(temp_file_open(&temp, ed->path, e));
    int fd = dup(temp.fd);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool good = f && history(ed->history, &event, H_SAVE_FP, f) >= 0;
    if (!f && fd >= 0) close(fd);
    if (f && fclose(f) != 0) good = false;
    status st = good ? temp_file_publish(&temp, e) : err_set(e, ST_IO, "%s: cannot be written", path_tail(ed->path));
    temp_file_close(&temp);
    return st;
}

void line_editor_add(line_editor *ed, const char *line)
{
    HistEvent event;
    err why = {0};
    if (!*line || history(ed->history, &event, H_ENTER, line) < 0 || !ed->path) return;
    if (write_history(ed, &why) == ST_OK) return;
    out_note("history: %s; KVASIR_HISTORY=FILE names another file", why.msg);
    mem_free(ed->path);
    ed->path = NULL;
}

void line_editor_close(line_editor *ed)
{
    if (!ed) return;
    if (ed->el) el_end(ed->el);
    if (ed->history) history_end(ed->history);
    mem_free(ed->path);
    mem_free(ed);
}

#else

#include <utf8proc.h>

enum { CTRL_D = 4, BACKSPACE = 8, CTRL_U = 21, ESCAPE = 27, DELETE = 127 };

struct line_editor {
    typed_input *in;
};

status line_editor_open(line_editor **out, typed_input *in, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->in = in;
    return ST_OK;
}

static void show(wchar_t c)
{
    uint8_t text[4];
    if (c == '\t' || c == '\n') fputc(c == '\t' ? ' ' : '\n', stderr);
    else if (utf8proc_charwidth(c) > 0) fwrite(text, 1, (size_t)utf8proc_encode_char(c, text), stderr);
}

/* Removes the last n characters of a line. */
static void erase(typed_text *line, size_t n)
{
    for (; n && line->n; n--) {
        wchar_t c = line->c[--line->n];
        for (int i = c == '\t' ? 1 : utf8proc_charwidth(c); i > 0; i--) fputs("\b \b", stderr);
    }
}

/* Reads the rest of an escape sequence of a key, which is ignored, or a pasted text. */
static status read_escape(typed_input *in, typed_text *line, err *e)
{
    static const char paste[] = "[200~";
    const size_t before = line->n;
    size_t n = 0;
    bool same = true;
    wchar_t c;
    do {
        TRY(typed_read_char(in, &c, e));
        same = same && n < 5 && c == (wchar_t)paste[n];
        n++;
    } while (c >= 0 && (n == 1 ? c == '[' || c == 'O' : c < '@'));
    if (!same) return ST_OK;
    TRY(typed_read_paste(in, line, e));
    for (size_t i = before; i < line->n; i++) show(line->c[i]);
    return ST_OK;
}

status line_editor_read(line_editor *ed, typed_text *line, bool *end, err *e)
{
    wchar_t c = 0;
    fputs(PROMPT, stderr);
    while (c != '\n' && !*end) {
        TRY(typed_read_char(ed->in, &c, e));
        *end = (c < 0 || c == CTRL_D) && line->n == 0;
        if (c == BACKSPACE || c == DELETE) erase(line, 1);
        else if (c == CTRL_U) erase(line, line->n);
        else if (c == ESCAPE) TRY(read_escape(ed->in, line, e));
        else if (c < 0) c = '\n';
        else if (c >= ' ' || c == '\t') {
            TRY(typed_text_add(line, c, e));
            show(c);
        }
    }
    if (!*end) fputc('\n', stderr);
    return ST_OK;
}

void line_editor_add(line_editor *ed, const char *line)
{
    (void)ed;
    (void)line;
}

void line_editor_close(line_editor *ed)
{
    mem_free(ed);
}

#endif
