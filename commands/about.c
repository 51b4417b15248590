/* SPDX-License-Identifier: MIT */
/* Descriptions of the commands, for --help and the man page. A newline starts a paragraph. */
#include "config.h"

#include <stddef.h>

#include "cli/command.h"

const command_about command_abouts[] = {
    {"generate", "Continues a prompt (-p, -f or standard input). Tokens are printed as they are generated; statistics "
                 "follow on standard error."},
    {"chat", "Holds a conversation; earlier turns are not computed again. Ctrl-C stops the reply; a second Ctrl-C, or "
             "Ctrl-D at the prompt, ends the chat. At a terminal, lines are edited, a pasted text is one message, and "
             "/help lists the commands: /new starts another conversation, /save FILE saves this one, /attn SPEC "
             "changes the strategy, /bye ends the chat."},
    {"serve", "Implements the OpenAI HTTP API. Fields, access and metrics: doc/serve.md."},
    {"lens",
     "Shows which tokens of a prompt (-p, -f or standard input) up to three strategies read while a text is generated, "
     "and the attention that they missed. -o FILE.html writes a page for a browser; any other file, or standard "
     "output, "
     "receives records, one JSON object per line, which the page can open."},
    {"passkey",
     "Hides a number in a long text and asks for it, for several strategies and budgets. --trials N prompts of each "
     "length (20) hide it at depths from the beginning to the end. With --chars a length of n means 4n characters of "
     "filler, as in Quest."},
    {"eval niah", "Hides a sentence in a text at several depths and scores the words of the answer."},
    {"bench",
     "Measures the speed of prefill and decode for lists of strategies, budgets, contexts, batches and KV types, also "
     "for known shapes with random weights (--shape, --weights). The limits of the machine are measured in the same "
     "run: read bandwidth, and the rates of f32, bf16 and int8 products. Each sample lies between two measurements of "
     "the limit. It is rejected if another process used a core, if the threads ran less than 98 % of the time, or if "
     "the measurements differ by more than 12 %. Rows with too few valid samples are marked with ?. Rows that cannot "
     "run are listed below the table, in --json as \"left_out\".\n"
     "--phase kernel times single ops on random data of the model's shape. --fill fills the context with random rows "
     "instead of a prompt; prompts beyond 8,192 tokens are always filled, except for their last chunk. A second table "
     "has microseconds by part, a third one bytes held and read. scripts/bench_compare compares two reports, "
     "scripts/report makes tables and a picture."},
    {"eval recall",
     "Compares the selection of strategies with exact attention over the same queries and keys: recall, attention "
     "mass, "
     "output error, by layer. The input is a text (-p, -f) or tensors of a safetensors file (--tensors). --queries "
     "positions at the end of the text are evaluated; --dump FILE receives the selected positions as JSON lines."},
    {"eval longbench, eval longbench2, eval infinitebench, eval ruler, eval scbench, eval mrcr",
     "Run a benchmark with its own prompts, truncation, stops and metrics: a table of datasets against strategies and "
     "budgets. A prompt is prefilled once for all strategies that leave it exact. --data PATH,... names the published "
     "files or their folders; without it a few invented samples are used. --dataset, --limit and --sample-seed choose "
     "samples.\n"
     "-o FILE.jsonl writes one line per result before the next sample starts. The first line is the configuration. The "
     "same command resumes an interrupted run; a different configuration is refused.\n"
     "Prompts longer than --max-length tokens are cut in the middle. The default of longbench is the window of the "
     "model (or --ctx) in thousands of tokens, less 500: 3500, 7500, 15500, 31500 as in the published tables; that of "
     "longbench2 is 120000, that of infinitebench 131072, or what the window leaves for the answer and the chat "
     "template. --wrap chooses what surrounds a prompt, except for datasets that are never wrapped: template (one BOS; "
     "the default if the model has a chat template), raw (as Quest runs Llama-3.1 and Mistral) or double-bos (as "
     "InfLLM, ActQKV and KIVI run Llama-3). --protocol decode feeds the question, at most the last 100 characters, "
     "token "
     "by token through the strategy, as Quest does; prefill (the default) feeds the whole prompt at once. --jobs N "
     "decodes N samples as one batch, with the same results.\n"
     "longbench --score FILE.jsonl scores a file of predictions as LongBench's eval.py does, by the dataset in the "
     "file's name or in --dataset; -E gives a score for each range of lengths. longbench2 --cot asks for reasoning of "
     "at "
     "most 1024 tokens, then, without the document, for the answer; --no-context asks without the documents. "
     "infinitebench makes the retrieval tasks at each --length; its prompts (--prompts) are official, chat or infllm, "
     "its scoring (--rules) is official or infllm; --dataset all is all twelve tasks."},
    {"eval pg19",
     "Measures perplexity by length on books. --data PATH,... names texts, files NAME.jsonl with lines {\"text\", "
     "\"short_book_title\"}, or folders of them; without it a book of PG-19's test split is read. --limit N takes the "
     "first N books (default: one, as in Quest).\n"
     "--protocol decode (the default; Quest) feeds BOS and every token through the decode path, up to --ctx tokens. A "
     "strategy that attends everything is also computed in one chunked pass; if the log-likelihoods are further apart "
     "than rounding explains (evals.md), the exit status is 1. --protocol window is YaRN's sliding window of "
     "--max-length "
     "tokens every --stride tokens (256); --protocol truncate is the first window of each book. --csv FILE receives "
     "all "
     "points of all curves."},
    {"eval fidelity", "Runs eval recall (--measure selection), eval accept (tokens), eval agree (text), eval drift "
                      "(logits) or eval divergence (divergence), and takes its options."},
    {"eval agree", "Measures the fraction of a strategy's greedy text before it differs from that of full attention. "
                   "Pieces of a text (-f, by default the book of eval pg19) are continued by 64 tokens."},
    {"eval accept",
     "Measures the fraction of a strategy's next tokens that equal those of full attention with the same random "
     "number, "
     "over exact rows (h1) and after seven tokens of its own (h8). Also reports the tokens from one difference to the "
     "next, and the tokens that drafts of any length would yield (--draft), at each temperature of --temp."},
    {"eval divergence",
     "Measures the KL divergence of a strategy's next-token distributions from those of full attention over float32 "
     "rows: mean with standard error, median, 99th percentile, and the fraction of tokens with the same most likely "
     "next token. Pieces of a text (-f, by default the book of eval pg19) are read up to their last -n tokens, which "
     "are then fed one by one."},
    {"eval drift", "Generates a long text (-n, 32k tokens) with each strategy and reports speed, memory, bytes read "
                   "and selection for "
                   "every interval of new tokens. The last steps of each interval are compared with exact attention."},
    {"eval gsm8k, eval math, eval aime, eval gpqa, eval mmlu",
     "Solve problems with one right answer. --rules chooses the official prompts, sampling and scoring, --samples the "
     "number of generations per problem. The table has accuracies with intervals, pass@k, and the lengths, limits and "
     "loops of the generations; eval mmlu compares the likelihood of four letters."},
    {"eval score",
     "Scores predictions on standard input, JSON lines with prediction, answers and, for classification, all_classes: "
     "one score per line, the best over the answers, and their mean with --mean. Metrics: qa_f1, qa_f1_zh, rouge, "
     "rouge_zh, classification, retrieval, retrieval_zh, count and code_sim, and the tasks of InfiniteBench (passkey, "
     "number_string, kv_retrieval, longdialogue_qa_eng, longbook_sum_eng, longbook_choice_eng, longbook_qa_eng, "
     "longbook_qa_chn, math_find, math_calc, code_run, code_debug). Answers may be numbers; 5 differs from 5.0. "
     "math_calc takes the numbers in order; longbook_choice_eng and code_debug take the text of the right option and "
     "its "
     "letter; longbook_choice_eng_infllm and code_debug_infllm score as InfLLM and ActQKV do."},
    {"info", "Prints the contents of a model; with --weights TYPE its sizes in that type."},
    {"template",
     "Prints what a chat template renders: of --messages FILE with the template of the model (or of --template), with "
     "--ids its tokens; or of the variables in --context FILE with the template in --file FILE. The environment "
     "variable SOURCE_DATE_EPOCH fixes the date."},
    {"tokenize", "Converts text on standard input to token ids, and back (--decode)."},
    {"logits", "Prints logits of given ids, as text or in NumPy's format."},
    {NULL, NULL}};
