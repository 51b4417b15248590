/* SPDX-License-Identifier: MIT */
/* Problems with one right answer: GSM8K, MATH-500, AIME, GPQA and MMLU. Their data, protocols and prompts. Source:
 * evals.md 17. */
#ifndef EVAL_REASON_H
#define EVAL_REASON_H

#include "eval/prompt.h"
#include "eval/samples.h"

enum { REASON_CHOICES = 4, REASON_METRICS = 2, REASON_STOPS = 8, REASON_DRAWN = 8 };

typedef enum { REASON_GSM8K, REASON_MATH, REASON_AIME, REASON_GPQA, REASON_MMLU, REASON_TASKS } reason_task;

const char *reason_task_name(reason_task t); /* "gsm8k" */

/* ---- problems ---- */

typedef struct {
    sample_head at; /* labels that are numbers become texts in its record */
    utf8_text question, answer, choice[REASON_CHOICES];
    utf8_text id;    /* n 0: none */
    utf8_text group; /* a level or subject; n 0: none */
} reason_problem;

typedef struct {
    reason_task task;
    sample_list *problems; /* of reason_problem, by index */
    sample_list shots;     /* worked questions, of MMLU or of reason_data_read_shots */
} reason_data;

static inline const reason_problem *reason_at(const sample_list *l, size_t i)
{
    return samples_at(l, i);
}

/* True if a and b have the same level or subject, or none. */
bool reason_same_group(const reason_problem *a, const reason_problem *b);
/* Begins data whose problems go into a list of the caller's. */
void reason_data_start(reason_data *out, reason_task task, sample_list *problems);

/* Files are JSON lines, one JSON array or CSV (records.h). Of MMLU, files whose names end in "dev" before their suffix
 * and records whose "split" is "dev" hold the shots, and a folder stands for its *_dev.csv and *_test.csv, or those in
 * its folders dev and test. Choices of GPQA are the right one and the three others; of MMLU A to D, and the answer is a
 * letter. Errors: ST_FORMAT naming file, line and field; ST_USAGE; ST_IO. reason_data_free also after an error; it
 * leaves the problems to the caller. */
status reason_data_read(reason_data *out, const sample_source *s, err *e);
/* The problems of a file as worked questions; option: for messages. */
status reason_data_read_shots(reason_data *out, const char *option, const char *path, err *e);
/* Adds the problems of one file's text. */
status reason_data_add(reason_data *out, const char *name, const char *text, size_t n, err *e);
void reason_data_free(reason_data *d);

/* ---- protocols ---- */

typedef enum { REASON_ORDER_NONE, REASON_ORDER_SHA256, REASON_ORDER_SIMPLE_EVALS } reason_order;

/* How a benchmark is run: a member of reason/protocols.json. Texts are borrowed from `source`. */
typedef struct {
    json_t *source;
    const char *name;
    const char *system; /* first of `said`; NULL: none */
    const char *user;   /* with {question}, {A} ... {D} */
    prompt_text before; /* shots in front of the user's text */
    chat_message *said; /* [n_said] system and shots that are turns of a chat, with room for one more message */
    size_t n_said;
    const char *shot;   /* of shots that are drawn anew for each problem, */
    int drawn;          /* so many of them; 0: none */
    int64_t seed;       /* of CPython's stream from which they are drawn */
    const char *header; /* of MMLU, with {subject} */
    bool strips;        /* questions are stripped */
    const char *stop[REASON_STOPS + 1];
    const metric *metric[REASON_METRICS + 1]; /* the first one is the score; NULL-terminated */
    int n_new, samples, top_k;
    double temp, top_p;
    prompt_wrap wrap;
    bool thinks; /* a template that can switch thinking off leaves it on */
    bool loses;  /* as many characters of an answer as the special tokens of its prompt have */
    reason_order order;
} reason_protocol;

/* name NULL: the task's first one. ST_USAGE with the nearest name; ST_FORMAT for a file that is wrong.
 * reason_protocol_close also after an error. */
status reason_protocol_open(reason_protocol *p, reason_task task, const char *name, const char *data_dir, err *e);
void reason_protocol_close(reason_protocol *p);

/* The user's text of a problem, with its shots in front. order: which choice stands at each letter, NULL: as they are;
 * draw: the worked questions of d that stand in front, NULL: none. *out is freed also after an error. */
status reason_fill(prompt_text *out, const reason_protocol *p, const reason_problem *x, const uint8_t *order,
                   const reason_data *d, const uint32_t *draw, err *e);
/* A whole prompt of MMLU with the first `shots` worked questions of its subject; *begins: the byte where the question
 * itself begins. *out is freed also after an error. */
status reason_fill_mmlu(prompt_text *out, size_t *begins, const reason_protocol *p, const reason_data *d,
                        const reason_problem *x, size_t shots, err *e);
/* Encodes the prompt with " A" to " D" behind it. What the four share goes into *head; each ends in one token more,
 * of `only`. */
status reason_encode_choices(token_list *head, int32_t only[REASON_CHOICES], const prompter *p, const prompt_text *text,
                             err *e);
/* Moves the question's tokens, from byte `begins` of the text on, from head to tail. */
status reason_cut(prompt_tokens *out, const prompter *p, const prompt_text *text, size_t begins, err *e);
/* Which worked questions stand in front of each problem: as many as the protocol draws, problem by problem from one
 * stream. draw: [problems]. ST_USAGE: there are too few. */
status reason_draw(uint32_t (*draw)[REASON_DRAWN], const reason_protocol *p, const reason_data *d, err *e);

/* Which choice of GPQA stands at each letter, 0 the right one. SHA256: a shuffle by the record's id. SIMPLE_EVALS: the
 * number `at` of the permutations that one stream gives. ST_FORMAT for a record without an id. */
status reason_order_of(uint8_t out[REASON_CHOICES], reason_order by, const reason_problem *x, size_t at, err *e);
/* The letter of the right choice: the first one whose text is the right one's. */
char reason_letter(const reason_problem *x, const uint8_t order[REASON_CHOICES]);

#endif
