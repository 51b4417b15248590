/* SPDX-License-Identifier: MIT */
/* Values, syntax tree and state of a rendering. Memory of a template or a rendering is an arena, freed as a whole. */
#ifndef TOKENIZER_JINJA_IMPL_H
#define TOKENIZER_JINJA_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/jinja/jinja.h"

enum {
    JINJA_MAX_TEXT = 1 << 20,
    JINJA_MAX_NESTING = 100, /* of the syntax tree, and of JSON variables */
    JINJA_MAX_DEPTH = 1000,  /* of the evaluation and of walks over values */
    JINJA_MAX_STEPS = 10000000,
    JINJA_MAX_OUTPUT = 64 << 20,
    JINJA_MAX_MEMORY = 512 << 20,
    JINJA_MAX_RANGE = 100000, /* as in jinja2's sandbox */
    JINJA_MAX_ARGS = 5        /* of a built-in function with named parameters */
};

typedef struct jblock jblock;
typedef struct {
    jblock *head;
    size_t left;  /* bytes in head */
    size_t total; /* bytes allocated */
    size_t limit;
} jarena;

/* Stores zeroed memory in *out. ST_NOMEM when the system is out of memory, ST_FORMAT beyond the arena's limit. */
status jarena_alloc(jarena *a, void **out, size_t n, size_t size, err *e);
#define JARENA_NEW(a, pp, n, e) jarena_alloc((a), (void **)(pp), (n), sizeof **(pp), (e))
void jarena_free(jarena *a);

typedef enum {
    J_MISSING, /* an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST, /* the kinds from J_LIST to J_VALUES have a jlist */
    J_TUPLE,
    J_RANGE,
    J_GENERATOR,
    J_KEYS,
    J_ITEMS,
    J_VALUES,
    J_DICT,
    J_NAMESPACE,
    J_MACRO,
    J_BUILTIN,
    J_LOOP
} jkind;

/* Growing text with its marks. */
typedef struct {
    char *s;
    unsigned char *marks; /* NULL: every byte has the origin `input` */
    size_t n, cap;
    bool input; /* some byte is from the variables */
} jbuf;

/* Text with the origin of its bytes. */
typedef struct {
    const char *s; /* valid UTF-8, may contain NUL */
    size_t n;
    const unsigned char *marks; /* [n] or NULL: every byte has the value's `input` */
    bool safe;                  /* Markup: `+` escapes the other operand */
    jbuf *buf;                  /* NULL, or s = buf->s: a longer text may be made by appending while buf->n == n */
} jstr;

typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jmacro jmacro;
typedef struct jmethod jmethod;
typedef struct jloop jloop;
typedef struct jnode jnode;
typedef struct jscope jscope;
typedef struct jctx jctx;

/* Reason of an undefined value. */
typedef enum { WHY_NAME, WHY_ATTRIBUTE, WHY_ELEMENT, WHY_UNSAFE, WHY_EMPTY, WHY_ARGUMENT } jwhy;

typedef struct {
    jkind kind;
    bool input;        /* some part of the value is from the variables */
    unsigned char why; /* J_UNDEFINED: a jwhy */
    unsigned char of;  /* J_UNDEFINED: jkind of the object without such an attribute or element */
    union {
        bool b;
        int64_t i;
        double f;
        const jstr *s;
        jlist *l;
        jdict *d; /* J_DICT and J_NAMESPACE */
        const jmacro *macro;
        const jmethod *method; /* J_BUILTIN */
        jloop *loop;
        const jstr *name; /* J_UNDEFINED: the missing name; its index is in i for WHY_ELEMENT */
    } as;
} jvalue;

struct jlist {
    jvalue *v;
    size_t n;
    size_t used;              /* J_GENERATOR: number of consumed items */
    int64_t from, to, stride; /* J_RANGE */
};

typedef struct {
    jvalue key, value;
} jpair;

struct jdict {
    jpair *v;
    size_t n, cap;
};

typedef struct {
    jvalue *v;
    size_t n;
    const jstr **names; /* [n_named] keyword arguments */
    jvalue *named;
    size_t n_named;
} jargs;

/* Call of a built-in filter, test, method or function. */
typedef struct {
    const char *name;
    jvalue self; /* operand of a filter or test, object of a method */
    jvalue a[JINJA_MAX_ARGS];
    const jargs *args; /* all arguments, for a specification "*" */
} jcall;

/* spec: names of the parameters, separated by spaces; those after "?" are optional. "*": any arguments. */
typedef struct {
    const char *name, *spec;
    status (*fn)(jctx *c, const jcall *call, jvalue *out);
} jbuiltin;

struct jmethod {
    const jbuiltin *builtin;
    jvalue self;
};

typedef enum {
    N_TEXT, /* s: text */
    N_OUTPUT,
    N_BLOCK,
    N_IF,          /* a: condition, b: then, c: else */
    N_FOR,         /* a: target, b: iterable, c: filter, list: body and else */
    N_SET,         /* a: target, b: value */
    N_SET_BODY,    /* a: target, b: body, c: filter or NULL */
    N_MACRO,       /* name, list: parameters, a: body */
    N_CALL_BODY,   /* a: call, b: macro of the body */
    N_FILTER_BODY, /* a: filter, b: body */
    N_SCOPE,       /* a: body, list: assignments */
    N_BREAK,
    N_CONTINUE,
    N_CONST, /* v */
    N_NAME,  /* name */
    N_LIST,
    N_TUPLE,
    N_DICT,      /* list: keys and values in turn */
    N_ATTRIBUTE, /* a: object, v: string */
    N_ITEM,      /* a: object, b: index */
    N_SLICE,     /* list: start, stop, step, each may be NULL */
    N_CALL,      /* a: function, list: arguments */
    N_FILTER,    /* a: operand or NULL, v: name, builtin, list: arguments */
    N_TEST,
    N_KEYWORD,     /* v: name, a: value; also a parameter of a macro, whose a may be NULL */
    N_STAR,        /* a: list of arguments */
    N_DOUBLE_STAR, /* a: dict of keyword arguments */
    N_NOT,
    N_NEGATE,
    N_PLUS,
    N_AND,
    N_OR,
    N_CHOICE, /* a if b else c */
    N_BINARY, /* op, a, b */
    N_CONCAT, /* list */
    N_COMPARE /* a: first operand, list: N_BINARY nodes with op and b */
} jnode_type;

typedef enum {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOOR,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
} jop;

struct jnode {
    jnode_type type;
    int line;
    int name; /* index into the template's names, or NO_NAME */
    jop op;
    jnode *a, *b, *c;
    jnode **list;
    size_t n;
    jvalue v;
    const jbuiltin *builtin;
    unsigned uses;  /* N_MACRO: special names in its body */
    int special[3]; /* N_MACRO: indices of the names caller, varargs, kwargs */
};

enum { NO_NAME = -1 };

enum { USES_CALLER = 1, USES_VARARGS = 2, USES_KWARGS = 4 };

struct jloop {
    status (*attribute)(jctx *c, jvalue loop, const jstr *name, jvalue *out);
    const jnode *target;
    const jnode *filter; /* NULL: every item passes */
    jscope *scope;       /* around the loop */
    jvalue *items;
    size_t n, at;              /* items before `at` are read */
    jvalue before, now, after; /* missing: there is none, or it is not read */
    int64_t index;             /* from 0 */
    jvalue seen;               /* arguments of the last call of changed() */
};

typedef enum {
    TABLE_FILTERS,
    TABLE_TESTS,
    TABLE_FUNCTIONS,
    TABLE_STRING,
    TABLE_DICT,
    TABLE_LIST,
    TABLE_TUPLE,
    TABLE_LOOP
} jtable;

struct jinja {
    const jbuiltin *const *tables; /* [TABLE_LOOP + 1] */
    jarena arena;
    const char *name; /* for messages */
    jnode *root;
    const jstr **names; /* [n_names] names of variables */
    size_t n_names, cap_names;
    const jstr **constants; /* [n_names] strings of jinja_set_constants, or NULL */
};

struct jmacro {
    status (*call)(jctx *c, const jmacro *m, const jargs *args, jvalue *out);
    const jnode *node;
    jscope *scope; /* of the definition */
};

/* Variables that one block assigns. */
struct jscope {
    jscope *parent;
    struct jslot {
        int name;
        jvalue v;
    } * v;
    size_t n, cap;
    bool kept; /* a macro refers to the scope */
};

struct jctx {
    jarena arena;
    const jinja *j;
    err *e;
    int line;
    int depth;
    size_t steps;
    int64_t now;
    jvalue *globals; /* [n_names] variables and global functions */
    jscope *scope;
    jbuf *out;
    enum { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;
    jvalue filtered; /* body of the filter block or set block being filtered */
    jvalue raised;   /* message of raise_exception, or missing */
};

/* Records "NAME:LINE: ..." and returns ST_FORMAT. */
status jfail(jctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *j_type_name(jvalue v); /* Python's */
/* Fails with the message of an undefined value. */
status jfail_undefined(jctx *c, jvalue v);
status jfail_limit(jctx *c);

/* Counts n steps; fails beyond the limit. */
static inline status jspend(jctx *c, size_t n)
{
    c->steps += n;
    return c->steps > JINJA_MAX_STEPS ? jfail_limit(c) : ST_OK;
}

/* Fails when evaluation is nested too deep; pairs with --c->depth. */
static inline status jenter(jctx *c)
{
    return ++c->depth > JINJA_MAX_DEPTH ? jfail_limit(c) : jspend(c, 1);
}

status jscope_push(jctx *c); /* sets c->scope to a new scope */
status jscope_put(jctx *c, int name, jvalue v);
jvalue jscope_get(const jctx *c, int name);
/* Stores zeroed memory of the rendering. */
status jalloc(jctx *c, void **out, size_t n, size_t size);
#define JNEW(c, pp, n) jalloc((c), (void **)(pp), (n), sizeof **(pp))

/* value.c */
extern const jvalue j_none;
jvalue j_bool(bool b);
jvalue j_int(int64_t i);
jvalue j_float(double f);
jvalue j_undefined(jwhy why, jkind of, const jstr *name);
/* Stores a string that borrows s. */
status j_string(jctx *c, const char *s, size_t n, bool input, jvalue *out);
/* Stores bytes [from, to) of a string; shares its bytes. */
status j_substring(jctx *c, jvalue v, size_t from, size_t to, jvalue *out);
status j_list(jctx *c, jkind kind, jvalue *v, size_t n, jvalue *out);
status j_from_json(jctx *c, const json_t *j, jvalue *out);
bool j_is_sequence(jvalue v); /* kinds with a jlist */
bool j_is_number(jvalue v);   /* also booleans */
bool j_truth(jvalue v);
int64_t j_as_int(jvalue v); /* of an integer or boolean */
double j_as_float(jvalue v);
status j_equal(jctx *c, jvalue a, jvalue b, bool *out);
/* Stores the sign of a - b, or J_UNORDERED for NaN; fails for types without order. */
enum { J_UNORDERED = 2 };
status j_compare(jctx *c, jvalue a, jvalue b, int *out);
/* Fails for a list, a dict, and a tuple with one. */
status j_want_hashable(jctx *c, jvalue v);
/* Returns the value of a key, or NULL. */
jvalue *jdict_find(jctx *c, const jdict *d, jvalue key);
jvalue *jdict_find_name(const jdict *d, const char *name, size_t n);
status jdict_put(jctx *c, jdict *d, jvalue key, jvalue value);
/* Stores the items that iteration yields; consumes a generator. */
status j_items(jctx *c, jvalue v, jvalue **items, size_t *n);
status j_length(jctx *c, jvalue v, int64_t *n);
/* Stores the pairs in the order of their keys. */
status j_sorted_pairs(jctx *c, const jdict *d, jpair **out);
/* Stores the indices of keys in ascending or descending order; the sort is stable. */
status j_sort(jctx *c, const jvalue *keys, size_t n, bool reverse, size_t **order);
/* Stores true in *out if needle is in the container. */
status j_contains(jctx *c, jvalue container, jvalue needle, bool *out);

/* marked.c: text with marks, and its characters */
status jbuf_put(jctx *c, jbuf *b, const char *s, size_t n, const unsigned char *marks, bool input);
status jbuf_puts(jctx *c, jbuf *b, const char *s, bool input);
status jbuf_put_part(jctx *c, jbuf *b, jvalue v, size_t from, size_t to); /* bytes [from, to) of a string */
status jbuf_put_str(jctx *c, jbuf *b, jvalue string);
status jbuf_string(jctx *c, const jbuf *b, jvalue *out);
/* Stores the concatenation of n strings. A text that grows by appending is not copied each time. */
status j_concat(jctx *c, const jvalue *v, size_t n, jvalue *out);
status jbuf_reserve(jctx *c, jbuf *b, size_t n);         /* room for n more bytes */
status j_mark_safe(jctx *c, jvalue string, jvalue *out); /* Markup */
bool j_mark(jvalue string, size_t i);                    /* origin of byte i */
size_t j_n_chars(jvalue string);
size_t j_char_offset(jvalue string, size_t index); /* byte offset of a character */
/* Returns the byte offset of needle in s at or after from, or SIZE_MAX. */
size_t j_find(jvalue s, jvalue needle, size_t from);
size_t j_find_last(jvalue s, jvalue needle, size_t end); /* needle ends at or before end */
/* Stores the end of the line at `from`, and the start of the next. False if no line break ends the line. */
bool j_line(const jstr *s, size_t from, size_t *end, size_t *next);
status j_replace(jctx *c, jvalue s, jvalue from, jvalue to, int64_t most, jvalue *out);
status j_escape(jctx *c, jvalue v, jvalue *out); /* HTML; Markup is unchanged */
typedef enum { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP } jcase;
status j_change_case(jctx *c, jvalue s, jcase how, jvalue *out);
/* Strips chars (a string), or white space if missing or none, from the left and the right. */
status j_strip(jctx *c, jvalue s, jvalue chars, bool left, bool right, jvalue *out);

/* print.c */
status j_print(jctx *c, jbuf *b, jvalue v); /* str(v) */
status j_repr(jctx *c, jbuf *b, jvalue v);
status j_to_string(jctx *c, jvalue v, jvalue *out); /* str(v); a string stays the same */
void j_float_text(char out[40], double f);
typedef struct {
    bool ascii, sort;
    bool input;         /* origin of the whole text */
    const jstr *indent; /* of a level; NULL: one line */
    const jstr *comma, *colon;
} jjson_style;
status j_tojson(jctx *c, jbuf *b, jvalue v, const jjson_style *style, int level);

/* percent.c */
/* Reads decimal digits; fails for a number that is too large. */
status j_read_digits(jctx *c, const char **p, int64_t *n);
/* Appends format(v, spec). */
status j_put_formatted(jctx *c, jbuf *b, jvalue v, const char *spec, const char *end);
status j_percent(jctx *c, jvalue format, jvalue args, jvalue *out); /* format % args */

/* formatting.c */
status j_format(jctx *c, jvalue format, const jargs *args, jvalue *out); /* format.format(...) */
status j_strftime(jctx *c, jvalue format, jvalue *out);

/* operators.c */
status j_binary(jctx *c, jop op, jvalue a, jvalue b, jvalue *out);
status j_slice(jctx *c, jvalue v, const jvalue part[3], jvalue *out);
status j_attribute(jctx *c, jvalue v, const jstr *name, jvalue *out);
status j_item(jctx *c, jvalue v, jvalue key, jvalue *out);
/* Stores a method of v, undefined if the table has none of that name. */
status j_bind_method(jctx *c, const jbuiltin *table, jvalue v, const jstr *name, jvalue *out);

/* eval.c */
status j_add_named(jctx *c, jargs *args, const jstr *name, jvalue v);
status j_eval_arguments(jctx *c, const jnode *call, jargs *args);
status j_eval(jctx *c, const jnode *n, jvalue *out);
status j_call(jctx *c, jvalue f, const jargs *args, jvalue *out);
status j_call_builtin(jctx *c, const jbuiltin *f, jvalue self, const jargs *args, jvalue *out);
/* Calls a filter or test whose name is a value, as map and select do. */
status j_call_named(jctx *c, bool test, jvalue name, jvalue self, const jargs *args, jvalue *out);

/* exec.c */
status j_exec(jctx *c, const jnode *n);

/* call.c: checked arguments of built-in functions. A missing one gives the preset. */
status j_want_string(jctx *c, const jcall *call, jvalue v, jvalue *out); /* fails unless v is a string */
status j_want_int(jctx *c, const jcall *call, jvalue v, int64_t preset, int64_t *out);
bool j_flag(jvalue v, bool preset);

/* functions.c */
status j_dict_items(jctx *c, jvalue dict, jvalue *out); /* list of pairs, of kind J_ITEMS */

/* Tables end with a row of NULL. A row without function is a method that changes its object, which is refused. */
extern const jbuiltin j_filters[], j_tests[], j_functions[], j_string_methods[], j_dict_methods[], j_list_methods[],
    j_tuple_methods[], j_loop_methods[];
const jbuiltin *j_find_builtin(const jbuiltin *table, const char *name, size_t n);
/* Calls a method of a string that takes no arguments. */
status j_call_string_method(jctx *c, const char *name, jvalue s, jvalue *out);
bool j_is(const jstr *s, const char *text);

/* parser.c */
status jparse(jinja *j, const char *text, size_t n, err *e);

/* lexer.c */
typedef enum {
    T_END,
    T_TEXT,
    T_OUTPUT,
    T_OUTPUT_END,
    T_BLOCK,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP
} jtoken_type;

typedef struct {
    jtoken_type type;
    int line;
    const char *s; /* text, decoded string, name or operator */
    size_t n;
    int64_t i;
    double f;
} jtoken;

typedef struct {
    jarena *arena;
    const char *name;
    const char *s; /* source with \n line ends, NUL-terminated */
    size_t n, at;
    int line;
    bool line_start; /* the last tag ended with a newline */
    enum { LEX_TEXT, LEX_OUTPUT, LEX_BLOCK } in;
    bool tag; /* a tag starts at `at` */
    char open[JINJA_MAX_NESTING];
    int n_open; /* brackets */
    err *e;
} jlexer;

status jlexer_open(jlexer *l, jarena *arena, const char *text, size_t n, const char *name, err *e);
status jlexer_next(jlexer *l, jtoken *t);
status jlexer_fail(const jlexer *l, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
