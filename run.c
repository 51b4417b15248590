/* SPDX-License-Identifier: MIT */
/* The program: subcommands, options, exit codes. */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval/cli.h"
#include "eval/options.h"
#include "eval/ranks.h"

enum {
    O_TEMP = 256,
    O_TOP_K,
    O_TOP_P,
    O_MIN_P,
    O_PENALTY,
    O_SEED,
    O_STOP,
    O_CHAT,
    O_SYSTEM,
    O_TEMPLATE,
    O_CTX,
    O_BUDGET,
    O_ATTN,
    O_SKIP,
    O_KV,
    O_KV_TIER,
    O_WEIGHTS,
    O_NO_WEIGHTS_CACHE,
    O_GEMM,
    O_CHUNK,
    O_DEVICE,
    O_THREADS,
    O_JSON,
    O_PLAN,
    O_QUIET,
    O_HELP_ATTN,
    O_TRIALS,
    O_SAMPLES,
    O_PROTOCOL,
    O_CHARS,
    O_SHAPE,
    O_PHASE,
    O_BATCH,
    O_FILL,
    O_JSONL,
    O_DECODE,
    O_BOS,
    O_SPECIAL,
    O_IDS,
    O_LAST,
    O_IGNORE_EOS,
    O_SCORE,
    O_DATASET,
    O_MEAN,
    O_QUERIES,
    O_TENSORS,
    O_DUMP,
    O_WINDOW,
    O_DATA,
    O_MAX_LENGTH,
    O_PROMPTS,
    O_RULES,
    O_LENGTH,
    O_WRAP,
    O_CLEAN_UP,
    O_LIMIT,
    O_SAMPLE_SEED,
    O_JOBS,
    O_COT,
    O_NO_CONTEXT,
    O_STRIDE,
    O_TOKENS,
    O_CSV,
    O_SAVE,
    O_LOAD,
    O_TP,
};

/* Of every command; then of those that run a model; then of those that choose a length. */
static const struct argp_option common[] = {
    {0, 'm', "DIR", 0, "Hugging Face model folder (default: the built-in model)", 1},
    {"json", O_JSON, "FILE", 0, "write results as JSON", 1},
    {"quiet", O_QUIET, 0, 0, "no progress, no statistics", 1},
    {0},
};
static const struct argp_option engine_options[] = {
    {"attn", O_ATTN, "NAME[:K=V]...", 0,
     "attention strategy; a list where a command compares several", 1},
    {"budget", O_BUDGET, "N", 0, "tokens kept or attended; a list where a command compares several",
     1},
    {"skip", O_SKIP, "N", 0, "leading dense layers of every strategy, or a list a+b+c", 1},
    {"kv", O_KV, "STORE", 0,
     "how keys and values are held: f16 (default; logits: f32), bf16, f32, or in codes: kivi2, kivi4, "
     "logquant, logquant4, with parameters as kivi2:r=64:g=32", 1},
    {"kv-tier", O_KV_TIER, "PLACE", 0,
     "where keys and values lie: device (default), host[:cache=SIZE][:window=N] (CPU: the same as device; cuda: pinned memory that kernels read), or disk[:cache=SIZE][:window=N][:DIR]: older "
     "tokens in files in DIR (default: $TMPDIR, else the current folder), for strategies that drop nothing", 1},
    {"weights", O_WEIGHTS, "TYPE", 0,
     "how matrices are held: bf16, f16, f32, q8 or q4 (8 or 4 bits; default: as in the files); "
     "bench: a list", 1},
    {"no-weights-cache", O_NO_WEIGHTS_CACHE, 0, 0,
     "q8, q4: quantize at every start instead of keeping the result under ~/.cache/kvasir", 1},
    {"gemm", O_GEMM, "auto|builtin", 0,
     "prompt products: the vendor's library (default; not of logits), or our own in float32", 1},
    {"chunk", O_CHUNK, "N", 0, "prompt tokens of one forward (default 512)", 1},
    {"device", O_DEVICE, "NAME", 0, "auto, cpu, cuda, cuda:N", 1},
    {"tp", O_TP, "N", 0, "compute one model by N processes, on cuda with a GPU each (tensor parallel); on several machines: mpirun -n N", 1},
    {"threads", O_THREADS, "N", 0, "threads of a process (default: its share of the physical cores)", 1},
    {"help-attn", O_HELP_ATTN, "NAME", 0, "parameters of a strategy (list: all of them)", 1},
    {0},
};
static const struct argp_option length_options[] = {
    {"ctx", O_CTX, "N", 0, "most tokens of a session; passkey and bench: list of lengths", 1},
    {"seed", O_SEED, "N", 0, "seed of everything random (default 42)", 1},
    {0},
};
static const struct argp_option reply_options[] = {
    {0, 'n', "N", 0, "most new tokens (generate: 256, chat: 512)", 2},
    {"temp", O_TEMP, "T", 0, "temperature, 0 = greedy (default 0.8)", 2},
    {"top-k", O_TOP_K, "K", 0, "keep the K most likely (0: off)", 2},
    {"top-p", O_TOP_P, "P", 0, "keep the most likely up to mass P (default 0.95)", 2},
    {"min-p", O_MIN_P, "P", 0, "keep those with at least P times the best one's probability", 2},
    {"repeat-penalty", O_PENALTY, "R", 0, "divide logits of tokens seen before (1: off)", 2},
    {"stop", O_STOP, "TEXT", 0, "stop at this text (up to 8 times)", 2},
    {"ignore-eos", O_IGNORE_EOS, 0, 0, "go on after end-of-text", 2},
    {"system", O_SYSTEM, "TEXT", 0, "system message", 2},
    {"template", O_TEMPLATE, "NAME", 0, "chat template (default: the model's own)", 2},
    {"save", O_SAVE, "FILE", 0, "at the end, write the session: --load goes on where it ended", 2},
    {"load", O_LOAD, "FILE", 0, "start from a saved session of this model", 2},
    {0},
};
static const struct argp_option prompt_options[] = {
    {0, 'p', "TEXT", 0, "prompt (default: standard input)", 3},
    {0, 'f', "FILE", 0, "prompt from a file", 3},
    {"chat", O_CHAT, 0, 0, "wrap the prompt in the model's chat template", 3},
    {"special", O_SPECIAL, 0, 0, "spellings of special tokens become these tokens", 3},
    {"plan", O_PLAN, 0, 0, "print the memory that is needed and stop", 3},
    {0},
};
static const struct argp_option passkey_options[] = {
    {"trials", O_TRIALS, "N", 0, "prompts a length (default 20)", 3},
    {"protocol", O_PROTOCOL, "decode|prefill", 0,
     "feed the question token by token (default), or all at once", 3},
    {"chars", O_CHARS, 0, 0, "length N means 4N characters of filler (Quest)", 3},
    {"jobs", O_JOBS, "N", 0, "trials side by side, decoded as one batch (default 1)", 3},
    {0, 'o', "FILE.jsonl", 0, "a line for each trial; goes on where such a file ends", 3},
    {0},
};
static const struct argp_option bench_options[] = {
    {"shape", O_SHAPE, "NAME,...", 0, "random weights of known shapes, e.g. llama-3.2-1b", 3},
    {"phase", O_PHASE, "LIST", 0, "what to time: prefill, decode (default: both), or kernel, single ops", 3},
    {"batch", O_BATCH, "N,...", 0, "sequences of one decode step (default 1)", 3},
    {"samples", O_SAMPLES, "N", 0, "timed runs that count, of at most 2 N (default 20; fewer for a quick look)", 3},
    {"fill", O_FILL, 0, 0, "random rows as context instead of a real prompt (prompts beyond 8k are always so)", 3},
    {0},
};
static const struct argp_option text_options[] = {
    {0, 'p', "TEXT", 0, "the text", 3},
    {0, 'f', "FILE", 0, "the text from a file", 3},
    {0},
};
static const struct argp_option recall_options[] = {
    {"queries", O_QUERIES, "N", 0, "positions at the end of the text that are judged (default 64)", 3},
    {"window", O_WINDOW, 0, 0, "judge them as one prompt window (strategies that choose there: actqkv)", 3},
    {"tensors", O_TENSORS, "FILE", 0,
     "q [heads, m, d], k [kv_heads, n, d] and maybe v of a safetensors file instead of a text", 3},
    {"dump", O_DUMP, "FILE", 0, "write the selected positions as JSON lines", 3},
    {0},
};
static const struct argp_option samples_options[] = {
    {"data", O_DATA, "PATH,...", 0, "folders or files of samples (default: a few of our own)", 3},
    {"limit", O_LIMIT, "N", 0, "at most N samples of a dataset, the first ones", 3},
    {"sample-seed", O_SAMPLE_SEED, "N", 0, "draw the samples of --limit by this seed", 3},
    {"jobs", O_JOBS, "N", 0, "samples side by side, decoded as one batch (default 1)", 3},
    {0, 'o', "FILE.jsonl", 0, "a line for each result; goes on where such a file ends", 3},
    {"max-length", O_MAX_LENGTH, "N", 0,
     "tokens above which prompts are cut in the middle (default: what the window leaves)", 3},
    {"wrap", O_WRAP, "template|raw|double-bos", 0,
     "prompts in the chat template (default where there is one), as they are, or with BOS twice", 3},
    {"template", O_TEMPLATE, "NAME", 0, "chat template (default: the model's own)", 3},
    {"clean-up", O_CLEAN_UP, "on|off", 0,
     "remove spaces before punctuation in what is decoded (default: as the tokenizer says)", 3},
    {0},
};
static const struct argp_option longbench_options[] = {
    {"dataset", O_DATASET, "NAME,...", 0,
     "these datasets alone (default: all that are there; --score: by the file's name)", 3},
    {"e", 'E', 0, 0, "LongBench-E: a score for each range of lengths", 3},
    {"score", O_SCORE, "FILE.jsonl", 0,
     "only score predictions: lines with pred, answers, all_classes, length", 3},
    {"protocol", O_PROTOCOL, "prefill|decode", 0,
     "feed the prompt at once (default), or its question token by token (Quest)", 3},
    {0},
};
static const struct argp_option longbench2_options[] = {
    {"cot", O_COT, 0, 0, "chain of thought: reasoning first, then the answer that follows from it", 3},
    {"no-context", O_NO_CONTEXT, 0, 0, "the questions alone, without their documents", 3},
    {0},
};
static const struct argp_option infinitebench_options[] = {
    {"dataset", O_DATASET, "NAME,...", 0, "these tasks alone, or all (default: the six of ActQKV's table)", 3},
    {"prompts", O_PROMPTS, "official|chat|infllm", 0,
     "the base model's prompts (default), the chat model's, or InfLLM's with its last token decoded", 3},
    {"rules", O_RULES, "official|infllm", 0, "who judges En.MC and Code.Debug (default: as the prompts)", 3},
    {"length", O_LENGTH, "N,...", 0,
     "make the retrieval tasks with prompts of N tokens (default without --data: --ctx, else at most 4k)", 3},
    {0},
};
static const struct argp_option pg19_options[] = {
    {"data", O_DATA, "PATH,...", 0, "texts, JSON lines with \"text\", folders of them (default: a book)", 3},
    {"limit", O_LIMIT, "N", 0, "the first N books (default 1)", 3},
    {"protocol", O_PROTOCOL, "decode|window|truncate", 0,
     "token by token through the strategy (default; Quest), YaRN's sliding window, or its first window", 3},
    {"ctx", O_CTX, "N", 0, "decode: tokens of a book (default: the model's window, at most 4k)", 3},
    {"max-length", O_MAX_LENGTH, "N,...", 0, "tokens of a window (default: as --ctx)", 3},
    {"stride", O_STRIDE, "N", 0, "a window begins every N tokens (default 256)", 3},
    {"tokens", O_TOKENS, "N", 0, "windows: at most N tokens of a book", 3},
    {0, 'o', "FILE.jsonl", 0, "a line for each result; goes on where such a file ends", 3},
    {"csv", O_CSV, "FILE", 0, "write book,title,strategy,budget,length,ppl", 3},
    {"seed", O_SEED, "N", 0, "seed of everything random (default 42)", 3},
    {0},
};
static const struct argp_option score_options[] = {
    {"mean", O_MEAN, 0, 0, "at the end, their mean", 3},
    {0},
};
static const struct argp_option info_options[] = {
    {"weights", O_WEIGHTS, "TYPE", 0, "sizes with matrices held as bf16, f16, f32, q8 or q4", 3},
    {0},
};
static const struct argp_option tokenize_options[] = {
    {"jsonl", O_JSONL, 0, 0, "lines {\"text\": ...} in, one line of ids each", 3},
    {"decode", O_DECODE, 0, 0, "ids to text", 3},
    {"bos", O_BOS, 0, 0, "put BOS in front", 3},
    {"special", O_SPECIAL, 0, 0, "spellings of special tokens become these tokens", 3},
    {0},
};
static const struct argp_option logits_options[] = {
    {"ids", O_IDS, "1,2,3", 0, "token ids to feed", 3},
    {"last", O_LAST, 0, 0, "the last row only", 3},
    {0, 'o', "FILE.npy", 0,
     "write float32 [tokens, vocab]; without it the ten most likely next tokens are printed", 3},
    {0},
};

enum { MAX_LISTS = 4, MAX_OPTIONS = 64 };

typedef struct {
    const char *name, *args, *about;
    const struct argp_option *options[MAX_LISTS]; /* besides the common ones */
    status (*run)(const cli *, err *);
} command;

static const command commands[] = {
    {"generate",
     "",
     "continue a prompt",
     {engine_options, length_options, reply_options, prompt_options},
     cmd_generate},
    {"chat", "", "talk, turn by turn", {engine_options, length_options, reply_options}, cmd_chat},
    {"passkey",
     "",
     "find a hidden key: strategies and budgets compared",
     {engine_options, length_options, passkey_options},
     cmd_passkey},
    {"bench",
     "",
     "speed, and its share of what the machine can do",
     {engine_options, length_options, bench_options},
     cmd_bench},
    {"eval recall",
     "",
     "what strategies select, against exact attention",
     {engine_options, length_options, text_options, recall_options},
     cmd_recall},
    {"eval longbench",
     "",
     "LongBench v1: strategies and budgets compared, or predictions scored",
     {engine_options, length_options, samples_options, longbench_options},
     cmd_longbench},
    {"eval longbench2",
     "",
     "LongBench v2, multiple choice: strategies and budgets compared",
     {engine_options, length_options, samples_options, longbench2_options},
     cmd_longbench2},
    {"eval infinitebench",
     "",
     "InfiniteBench: retrieval at any length, and tasks of its data",
     {engine_options, length_options, samples_options, infinitebench_options},
     cmd_infinitebench},
    {"eval pg19",
     "",
     "perplexity against length on books: strategies and budgets compared",
     {engine_options, pg19_options},
     cmd_pg19},
    {"eval score",
     "METRIC",
     "score predictions on standard input, one line each",
     {score_options},
     cmd_score},
    {"info", "[DIR]", "what a model folder holds", {info_options}, cmd_info},
    {"tokenize",
     "",
     "text on standard input to token ids, and back",
     {tokenize_options},
     cmd_tokenize},
    {"logits", "", "logits of given ids", {engine_options, logits_options}, cmd_logits},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *f)
{
    fprintf(
        f,
        "kvasir " PACKAGE_VERSION
        ": LLM inference with KV-cache retrieval built in\n\nusage: run COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-18s %s\n", commands[i].name, commands[i].about);
    fprintf(f, "\nrun COMMAND --help lists a command's options. Strategies (--help-attn NAME for "
               "parameters):\n\n");
    attn_print_help(f, NULL);
}

/* Exit status of what only prints. */
static int printed(void)
{
    err e = {0};
    if (out_flush(&e) == ST_OK) return 0;
    fprintf(stderr, "run: %s\n", e.msg);
    return 1;
}

/* The exit status. */
static int help_attn(const char *name)
{
    const attn_method *m = attn_method_find(name);
    if (!m && strcmp(name, "list") != 0 && strcmp(name, "all") != 0) {
        err e = {0};
        attn_method_unknown("--help-attn", name, &e);
        fprintf(stderr, "run: %s\n", e.msg);
        return 2;
    }
    attn_print_help(stdout, m);
    return printed();
}

/* One line, where argp_error adds others. */
#define wrong_usage(state, ...) argp_failure(state, 2, 0, __VA_ARGS__)

static double number(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno) wrong_usage(state, "%s: '%s' is not a number", option, text);
    return v;
}

static int integer(struct argp_state *state, const char *option, const char *text, int min, int max)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        wrong_usage(state, "%s: '%s', expected a whole number from %d to %d", option, text, min,
                    max);
    return (int)v;
}

static uint64_t seed_of(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || *end || errno || text[0] == '-')
        wrong_usage(state, "%s: '%s' is not a whole number", option, text);
    return v;
}

static error_t parse_string(int key, char *arg, cli *c)
{
    switch (key) {
    case 'm': c->model = arg; return 0;
    case 'p': c->prompt = arg; return 0;
    case 'f': c->prompt_file = arg; return 0;
    case 'o': c->output = arg; return 0;
    case O_SYSTEM: c->system = arg; return 0;
    case O_TEMPLATE: c->template_name = arg; return 0;
    case O_CTX: c->ctx = arg; return 0;
    case O_BUDGET: c->budget = arg; return 0;
    case O_ATTN: c->attn = arg; return 0;
    case O_SKIP: c->skip = arg; return 0;
    case O_KV: c->kv = arg; return 0;
    case O_KV_TIER: c->kv_tier = arg; return 0;
    case O_WEIGHTS: c->weights = arg; return 0;
    case O_GEMM: c->gemm = arg; return 0;
    case O_DEVICE: c->device = arg; return 0;
    case O_JSON: c->json = arg; return 0;
    case O_PROTOCOL: c->protocol = arg; return 0;
    case O_SHAPE: c->shape = arg; return 0;
    case O_PHASE: c->phase = arg; return 0;
    case O_BATCH: c->batch = arg; return 0;
    case O_IDS: c->ids = arg; return 0;
    case O_TENSORS: c->tensors = arg; return 0;
    case O_DUMP: c->dump = arg; return 0;
    case O_SCORE: c->score = arg; return 0;
    case O_DATASET: c->dataset = arg; return 0;
    case O_DATA: c->data = arg; return 0;
    case O_MAX_LENGTH: c->max_length = arg; return 0;
    case O_PROMPTS: c->prompts = arg; return 0;
    case O_RULES: c->rules = arg; return 0;
    case O_LENGTH: c->length = arg; return 0;
    case O_WRAP: c->wrap = arg; return 0;
    case O_CLEAN_UP: c->clean_up = arg; return 0;
    case O_STRIDE: c->stride = arg; return 0;
    case O_TOKENS: c->tokens = arg; return 0;
    case O_CSV: c->csv = arg; return 0;
    case O_SAVE: c->save = arg; return 0;
    case O_LOAD: c->load = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_flag(int key, cli *c)
{
    switch (key) {
    case O_CHAT: return c->chat = true, 0;
    case O_PLAN: return c->plan = true, 0;
    case O_NO_WEIGHTS_CACHE: return c->no_weights_cache = true, 0;
    case O_QUIET: return c->quiet = true, 0;
    case O_WINDOW: return c->window = true, 0;
    case O_CHARS: return c->chars = true, 0;
    case O_FILL: return c->fill = true, 0;
    case O_JSONL: return c->jsonl = true, 0;
    case O_DECODE: return c->decode = true, 0;
    case O_BOS: return c->bos = true, 0;
    case O_SPECIAL: return c->special = true, 0;
    case O_LAST: return c->last = true, 0;
    case O_IGNORE_EOS: return c->ignore_eos = true, 0;
    case O_MEAN: return c->mean = true, 0;
    case O_COT: return c->cot = true, 0;
    case O_NO_CONTEXT: return c->no_context = true, 0;
    case 'E': return c->longbench_e = true, 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static bool takes_argument(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return commands[i].args[0] != 0;
    return false;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    cli *c = state->input;
    if (arg && parse_string(key, arg, c) == 0) return 0;
    if (!arg && parse_flag(key, c) == 0) return 0;
    switch (key) {
    case 'n': c->n_new = integer(state, "-n", arg, 0, 1 << 30); return 0;
    case O_TEMP: c->temp = number(state, "--temp", arg); return 0;
    case O_TOP_K: c->top_k = integer(state, "--top-k", arg, 0, 1 << 30); return 0;
    case O_TOP_P: c->top_p = number(state, "--top-p", arg); return 0;
    case O_MIN_P: c->min_p = number(state, "--min-p", arg); return 0;
    case O_PENALTY: c->repeat_penalty = number(state, "--repeat-penalty", arg); return 0;
    case O_SEED:
        c->seed = seed_of(state, "--seed", arg);
        c->seeded = true;
        return 0;
    case O_CHUNK: c->chunk = integer(state, "--chunk", arg, 1, 65536); return 0;
    case O_TP: c->tp = integer(state, "--tp", arg, 1, 1024); return 0;
    case O_THREADS: c->threads = integer(state, "--threads", arg, 1, 1024); return 0;
    case O_QUERIES: c->queries = integer(state, "--queries", arg, 1, 1 << 30); return 0;
    case O_TRIALS: c->trials = integer(state, "--trials", arg, 1, 100000); return 0;
    case O_SAMPLES: c->samples = integer(state, "--samples", arg, 1, 20); return 0;
    case O_LIMIT: c->limit = integer(state, "--limit", arg, 1, 1 << 30); return 0;
    case O_JOBS: c->jobs = integer(state, "--jobs", arg, 1, 256); return 0;
    case O_SAMPLE_SEED:
        c->sample_seed = seed_of(state, "--sample-seed", arg);
        c->sampled = true;
        return 0;
    case O_HELP_ATTN: exit(help_attn(arg));
    case O_STOP:
        if (c->n_stop == sizeof c->stop / sizeof *c->stop)
            wrong_usage(state, "--stop: at most 8 texts");
        c->stop[c->n_stop++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (!takes_argument(c->command) || c->input)
            wrong_usage(state, "unexpected argument '%s'", arg);
        c->input = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The command of argv[1], or of argv[1] and argv[2] ("eval recall"); *n: words it takes. */
static const command *find_command(char **argv, int argc, int *n)
{
    char two[64];
    snprintf(two, sizeof two, "%s %s", argv[1], argc > 2 ? argv[2] : "");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        *n = strchr(commands[i].name, ' ') ? 2 : 1;
        if (strcmp(commands[i].name, *n == 2 ? two : argv[1]) == 0) return &commands[i];
    }
    return NULL;
}

static void unknown_command(char **argv, int argc)
{
    char two[64];
    const char *names[N_COMMANDS + 1] = {NULL};
    snprintf(two, sizeof two, "%s %s", argv[1], argc > 2 ? argv[2] : "");
    bool of_two = strcmp(argv[1], "eval") == 0 && argc > 2 && argv[2][0] != '-';
    for (size_t i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    options_unknown_command(of_two ? two : argv[1], names);
}

/* The options that a command takes, as one list. */
static void collect_options(const command *cmd, struct argp_option out[MAX_OPTIONS])
{
    size_t n = 0;
    for (int i = -1; i < MAX_LISTS; i++)
        for (const struct argp_option *o = i < 0 ? common : cmd->options[i];
             o && (o->name || o->key) && n + 1 < MAX_OPTIONS; o++)
            out[n++] = *o;
    out[n] = (struct argp_option){0};
}

/* Models and sessions are mapped: one that shrinks meanwhile faults where it is read. */
static err bus_error;

static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(sig, SIG_DFL); /* not that: the faulting instruction runs again and ends us */
        return;
    }
    ssize_t n = write(STDERR_FILENO, bus_error.msg, strlen(bus_error.msg));
    (void)n;
    _exit(1);
}

static void catch_bus_error(const cli *c)
{
    struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    const char *where = c->input ? c->input : c->model;
    err_set(&bus_error, ST_IO, "run %s: %.100s%s%.100s: a file was truncated while in use", c->command,
            where ? where : "the built-in model", c->load ? " or " : "", c->load ? c->load : "");
    strcat(bus_error.msg, "\n");
    sigaction(SIGBUS, &a, NULL);
}

static int run_command(const command *cmd, int argc, char **argv)
{
    struct argp_option options[MAX_OPTIONS];
    static char name[64]; /* argp keeps it in argv[0] */
    cli c = {.command = cmd->name,
             .temp = 0.8,
             .top_p = 0.95,
             .repeat_penalty = 1,
             .seed = 42,
             .trials = 20,
             .jobs = 1};
    if (strcmp(cmd->name, "generate") == 0) c.n_new = 256;
    collect_options(cmd, options);
    struct argp argp = {options, parse, cmd->args, cmd->about, NULL, NULL, NULL};
    snprintf(name, sizeof name, "run %s", cmd->name);
    argv[0] = name;
    argp_err_exit_status = 2;
    err e = {0};
    status st = options_check(options, argc, argv, &e);
    if (st == ST_OK) {
        argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &c);
        int rc = ranks_launch(&c);
        if (rc >= 0) return rc;
        catch_bus_error(&c);
        st = ranks_open(&c, argc, argv, &e);
    }
    if (st == ST_OK) st = report_check(&c, &e);
    if (st == ST_OK) st = cmd->run(&c, &e);
    int rc = st == ST_OK ? 0 : st == ST_USAGE ? 2 : 1;
    if (ranks_speaks(&c, rc) && rc) fprintf(stderr, "run %s: %s\n", cmd->name, e.msg);
    rc = ranks_close(&c, rc);
    if (st ==
        ST_INTERRUPTED) { /* ends as Ctrl-C would have ended it: shells and scripts look at that */
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    return rc;
}

/* A descriptor 0, 1 or 2 that is closed would be the next file's: text would go into reports. What
 * stands there instead fails when it is used. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
}

int main(int argc, char **argv)
{
    hold_standard_files();
    ranks_hush();
    signal(SIGPIPE, SIG_IGN); /* a closed stdout is an error message, not a silent end */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that reached the limit of its size */
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        puts("kvasir " PACKAGE_VERSION);
        return printed();
    }
    if (argc > 1 && strcmp(argv[1], "--help-attn") == 0)
        return help_attn(argc > 2 ? argv[2] : "list");
    int n_words = 1;
    const command *cmd = argc > 1 ? find_command(argv, argc, &n_words) : NULL;
    if (!cmd) {
        bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0);
        if (argc > 1 && !help) unknown_command(argv, argc);
        print_usage(help ? stdout : stderr);
        return help ? printed() : 2;
    }
    return run_command(cmd, argc - n_words, argv + n_words);
}
