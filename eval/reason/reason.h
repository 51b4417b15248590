/* SPDX-License-Identifier: MIT */
/* Problems with one correct answer: GSM8K, MATH-500, AIME, GPQA and MMLU. Data, protocols and prompts. Source: evals.md
 * 17. */
#ifndef EVAL_REASON_H
#define EVAL_REASON_H

#include "eval/prompt.h"
#include "eval/samples.h"

enum { REASON_CHOICES = 4, REASON_METRICS = 2, REASON_STOPS = 8, REASON_DRAWN = 8 };

typedef enum { REASON_GSM8K, REASON_MATH, REASON_AIME, REASON_GPQA, REASON_MMLU, REASON_TASKS } reason_task;

const char *reason_task_name(reason_task t); /* "gsm8k" */

/* ---- problems ---- */

typedef struct {
    sample_head at; /* record in which numeric labels have become texts */
    utf8_text question, answer, choice[REASON_CHOICES];
    utf8_text id;    /* n 0: none */
    utf8_text group; /* level or subject; n 0: none */
} reason_problem;

typedef struct {
    reason_task task;
    sample_list *problems; /* of reason_problem, in order of index */
    sample_list shots;     /* worked examples: of MMLU, or read by reason_data_read_shots */
} reason_data;

static inline const reason_problem *reason_at(const sample_list *l, size_t i)
{
    return samples_at(l, i);
}

/* True if a and b have the same level or subject, or both have none. */
bool reason_same_group(const reason_problem *a, const reason_problem *b);
/* Initializes *out, whose problems are added to the caller's list. */
void reason_data_start(reason_data *out, reason_task task, sample_list *problems);

/* Reads files of JSON lines, one JSON array or CSV (records.h).
 *
 * MMLU: files whose names end in "dev" before the suffix, and records whose "split" is "dev", hold the shots. A folder
 * stands for its *_dev.csv and *_test.csv, or those in its folders dev and test. Choices are A to D; the answer is a
 * letter. GPQA: choice 0 is the correct one.
 *
 * Errors: ST_FORMAT naming file, line and field; ST_USAGE; ST_IO. Call reason_data_free also after an error; it does
 * not free the problems. */
status reason_data_read(reason_data *out, const sample_source *s, err *e);
/* Reads the problems of a file as shots. option: name of the option, for error messages. */
status reason_data_read_shots(reason_data *out, const char *option, const char *path, err *e);
/* Adds the problems of one file's text. */
status reason_data_add(reason_data *out, const char *name, const char *text, size_t n, err *e);
void reason_data_free(reason_data *d);

/* ---- protocols ---- */

typedef enum { REASON_ORDER_NONE, REASON_ORDER_SHA256, REASON_ORDER_SIMPLE_EVALS } reason_order;

/* Protocol of a benchmark: a member of reason/protocols.json. Texts are borrowed from `source`. */
typedef struct {
    json_t *source;
    const char *name;
    const char *system; /* system message, the first of `said`; NULL: none */
    const char *user;   /* template with {question}, {A} ... {D} */
    prompt_text before; /* fixed shots before the user's text */
    chat_message *said; /* [n_said] system message and shots as chat turns, with room for one more message */
    size_t n_said;
    const char *shot;   /* template of a shot */
    int drawn;          /* shots drawn for each problem; 0: none */
    int64_t seed;       /* seed of CPython's stream for drawing shots */
    const char *header; /* MMLU: header with {subject} */
    bool strips;        /* white space around questions is removed */
    const char *stop[REASON_STOPS + 1];
    const metric *metric[REASON_METRICS + 1]; /* the first is the score; NULL-terminated */
    int n_new, samples, top_k;
    double temp, top_p;
    prompt_wrap wrap;
    bool thinks; /* thinking stays on where the chat template could turn it off */
    bool loses;  /* drops as many characters of an answer as its prompt's special tokens have */
    reason_order order;
} reason_protocol;

/* Reads a protocol; name NULL: the task's first one. ST_USAGE: unknown name; the message has the nearest one.
 * ST_FORMAT: invalid file. Call reason_protocol_close also after an error. */
status reason_protocol_open(reason_protocol *p, reason_task task, const char *name, const char *data_dir, err *e);
void reason_protocol_close(reason_protocol *p);

/* Writes the shots and the user's text of a problem. order: index of the choice at each letter; NULL: unchanged. draw:
 * indices of the shots of d; NULL: none. The caller frees *out, also after an error. */
status reason_fill(prompt_text *out, const reason_protocol *p, const reason_problem *x, const uint8_t *order,
                   const reason_data *d, const uint32_t *draw, err *e);
/* Writes a complete MMLU prompt with the first `shots` shots of its subject. *begins: byte offset of the question. The
 * caller frees *out, also after an error. */
status reason_fill_mmlu(prompt_text *out, size_t *begins, const reason_protocol *p, const reason_data *d,
                        const reason_problem *x, size_t shots, err *e);
/* Encodes the prompt followed by " A" to " D". *head has the tokens common to all four; only[i] is the last token of
 * choice i. ST_UNSUPPORTED: a choice needs several tokens. */
status reason_encode_choices(token_list *head, int32_t only[REASON_CHOICES], const prompter *p, const prompt_text *text,
                             err *e);
/* Moves the question's tokens, from byte `begins` of the text on, from head to tail. */
status reason_cut(prompt_tokens *out, const prompter *p, const prompt_text *text, size_t begins, err *e);
/* Draws the shots of each problem, p->drawn per problem, in order from one stream. draw: [problems]. ST_USAGE: too few
 * shots. */
status reason_draw(uint32_t (*draw)[REASON_DRAWN], const reason_protocol *p, const reason_data *d, err *e);

/* Sets out[i] to the GPQA choice at letter i; 0 is the correct choice. SHA256: shuffled, seeded by the record's id.
 * SIMPLE_EVALS: permutation number `at` of one stream. ST_FORMAT: SHA256, and the record has no id. */
status reason_order_of(uint8_t out[REASON_CHOICES], reason_order by, const reason_problem *x, size_t at, err *e);
/* Returns the letter of the correct choice, or of an earlier one with the same text. */
char reason_letter(const reason_problem *x, const uint8_t order[REASON_CHOICES]);

#endif
