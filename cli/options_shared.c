/* SPDX-License-Identifier: MIT */
/* Options that several commands share. */
#include "config.h"

#include "cli/command.h"

#define COMMON .groups = OPTIONS_COMMON
#define MODEL  .groups = OPTIONS_MODEL
#define LENGTH .groups = OPTIONS_LENGTH
#define SEEDS  .groups = OPTIONS_LENGTH | OPTIONS_RESULTS
#define TABLES .groups = OPTIONS_RESULTS | OPTIONS_TABLE
#define PREFIX .groups = OPTIONS_PREFIX, .in = IN_PREFIX

enum { MOST = 1 << 30 };

const cli_option shared_rows[] = {
    /* ---- every command ---- */
    {COMMON, .letter = 'm', .arg = "DIR", AT(run_options, engine.model.dir),
     .help = "Hugging Face folder, GGUF file or name of a model (default: the built-in model)"},
    {COMMON, .name = "json", .arg = "FILE", AT(run_options, out.json), .help = "write results as JSON",
     .man = "Writes the results as one JSON object."},
    {COMMON, .name = "quiet", .type = OPTION_FLAG, AT(run_options, out.quiet),
     .help = "print no progress and no statistics"},

    /* ---- commands that run a model ---- */
    {MODEL, .name = "attn", .arg = "NAME[:K=V]...", AT(run_options, attn.names),
     .help = "attention strategy; comma-separated in commands that compare several",
     .man = "Attention strategy, such as streaming:sink=4:budget=256. passkey, bench and the evaluations compare a "
            "comma-separated list, in which \"all\" stands for every strategy (see --help-attn list). A strategy that "
            "cannot run is omitted, with its reason.\nThe parameter gqa sets how the query heads of a KV head share a "
            "selection. By default they vote or average; with gqa=per_q each query head selects for itself, as in the "
            "code of Quest's authors."},
    {MODEL, .name = "budget", .arg = "N", AT(run_options, attn.budget),
     .help = "tokens kept or attended; comma-separated in commands that compare strategies"},
    {MODEL, .name = "skip", .arg = "N", AT(run_options, attn.skip),
     .help = "layers with full attention: the first N, or a+b+c (default: 0 in comparisons, else the strategy's)",
     .man =
         "Layers with full attention: the first N layers, or a list a+b+c. Commands that compare strategies (passkey, "
         "bench, eval) default to 0 for all of them and print it in the table. generate and chat default to the value "
         "of the strategy's paper: 2 for quest and fier, else 0. skip and budget inside a strategy take precedence."},
    {MODEL, .name = "certify", .arg = "EPS", AT(run_options, attn.certify),
     .help = "certify that no query head misses more than EPS of its attention (--attn codes --kv kivi4)",
     .man = "Certifies that no query head of a selecting layer misses more than the fraction EPS of its attention. A "
            "step attends as many tokens as the proof requires, whatever --budget is. budget=N inside the strategy "
            "limits them; heads that would need more count as not certified. The bound refers to the keys before "
            "quantization. Supported for codes over q8, q4, kivi4, logquant4 and hf4:zero=float on a CPU. Strategies "
            "whose bounds certify nothing (pages, single bits) or that drop tokens are refused."},
    {MODEL, .name = "kv", .arg = "STORE", AT(run_options, attn.kv),
     .help = "KV format: f16 (logits: f32), bf16, f32, q8, q4, kivi2, kivi4, logquant, logquant4, hf2, hf4",
     .man = "Format of keys and values: f16 (default; logits: f32), bf16 or f32; q8 or q4, blocks of 8 or 4 bits; "
            "kivi2, kivi4, logquant, logquant4, hf2 or hf4, quantized to 2 or 4 bits, with parameters such as "
            "kivi2:r=64:g=32. Inside a strategy parameters are separated by slashes: streaming:kv=kivi2/r=64."},
    {MODEL, .name = "kv-tier", .arg = "TIER", AT(run_options, attn.kv_tier),
     .help = "KV tier: device (default), host[:cache=SIZE][:window=N] or disk[:cache=SIZE][:window=N][:DIR]",
     .man =
         "Tier of keys and values: device (default), host[:cache=SIZE][:window=N] (on a CPU the same as device), or "
         "disk[:cache=SIZE][:window=N][:DIR].\nOn disk: the newest N tokens (default 256, or the tokens that the "
         "strategy always attends if these are more) and the first tokens that the strategy always attends stay in "
         "memory. The others are written to one file per layer in DIR (default: $TMPDIR, else the current folder). The "
         "files are unlinked and private to the user, so none remain, however the program ends. A step reads its "
         "selected tokens in blocks of 16 tokens of a head; a cache holds up to SIZE bytes of blocks in memory "
         "(default 512M). The index and dense layers (--skip) stay in memory; prefill holds one whole layer in memory "
         "at a time. The results have the same bits as on the device. Strategies that drop tokens are refused; full, "
         "kivi and logquant read everything in each step. Such sessions cannot be saved.\nOn host with a GPU: keys and "
         "values are in pinned host memory, and kernels read rows over the bus. The device holds copies of the first "
         "and newest tokens as above and, in at most SIZE bytes (0: none), of rows that steps have read, but not of "
         "quantized rows. generate and bench report the bus traffic and the hit rate of the copies."},
    {MODEL, .name = "weights", .arg = "TYPE", AT(run_options, engine.model.weights),
     .help = "type of the matrices: bf16, f16, f32, q8 or q4 (default: as in the files); bench: a list",
     .man =
         "Type of the matrices: bf16, f16, f32, q8 or q4. The default is the type in the files, which are mapped. q8 "
         "and q4 hold 8 and 4 bits per weight in blocks of 32 with a 16-bit scale: a token reads 1.06 and 0.56 bytes "
         "per weight. Norms, biases and the embedding stay as in the files; an output matrix that is tied to the "
         "embedding is quantized. On the built-in model the error of the logits (NMSE) is 3e-5 with q8 and 7e-3 with "
         "q4; perplexity rises by less than 0.5 % and by about 5 %. GEMMs with q8 and q4 round activations to 8 bits "
         "in blocks of 32 (total error with q8: 9e-5), or to bf16 where that is faster for prompts: by the vendor's "
         "library or, at level amx, by tiles (4e-5). "
         "With --gemm builtin and in logits, activations stay in float32. bench takes a list.\nQuantized weights are "
         "cached in a file that the next start maps, see FILES; if it cannot be written, they are kept in memory."},
    {MODEL, .name = "no-weights-cache", .type = OPTION_FLAG, AT(run_options, engine.model.no_cache),
     .help = "q8, q4: quantize at every start; do not use ~/.cache/kvasir",
     .man = "Quantizes at every start, in memory."},
    {MODEL, .name = "gemm", .arg = "auto|builtin", AT(run_options, engine.device.gemm),
     .help = "GEMM of prompts: the vendor's library (default, except in logits) or our own in float32",
     .man = "GEMM of prompts: the vendor's library (default) or our own in float32 (default of logits).\nIf the CPU "
            "multiplies bf16 (levels avx512_bf16 and amx) and the matrices are bf16, q8 or q4, auto rounds operands to "
            "bf16: activations multiplied by bf16 matrices (level amx: also by quantized matrices, whose weights are "
            "rounded too) and, unless --kv is f32, queries, keys, values and weights "
            "in the attention of prompts (level amx: to 16 bits, also with builtin). Keys and values of f16 lose 3 of "
            "their 11 bits in these products, not in the cache. "
            "Sums and the softmax stay in float32. The error (NMSE) of attention is 1e-5, that of the built-in model's "
            "logits 5e-6, of which 4e-6 come from the other products. Models of f32 and f16 keep float32 (level amx: "
            "products of f16 "
            "have 16 bits of each number and an error of 1e-11)."},
    {MODEL, .name = "chunk", .arg = "N", WHOLE(1, 65536, 0), AT(run_options, engine.device.chunk),
     .help = "prompt tokens per forward pass (default 512; on a GPU 2048)"},
    {MODEL, .name = "device", .arg = "NAME", AT(run_options, engine.device.name), .help = "auto, cpu, cuda, cuda:N",
     .man = "auto, cpu, cuda or cuda:N. On cuda all strategies support all stores. No part of the CUDA backend has "
            "been run on a GPU yet; its kernels are tested on the host."},
    {MODEL, .name = "tp", .arg = "N", WHOLE(1, 1024, 0), AT(run_options, engine.device.tp),
     .help = "tensor parallel: run one model in N processes (several machines: mpirun), on cuda one GPU each",
     .man = "Runs the model in N processes of this machine (tensor parallel), with --device cuda on one GPU each; see "
            "RANKS. Under mpirun: the expected number of ranks; any other number is refused."},
    {MODEL, .name = "threads", .arg = "N", WHOLE(1, 1024, 0), AT(run_options, engine.device.threads),
     .help = "threads per process (default: its share of the physical cores)",
     .man = "Threads per process. The default is the number of physical cores, divided among the ranks of a machine."},
    {MODEL, .name = "help-attn", .arg = "NAME", .type = OPTION_HELP_ATTN,
     .help = "print the parameters of a strategy (list: all strategies)",
     .man = "Prints the parameters of a strategy with their defaults; list prints all strategies."},

    /* ---- commands with a choice of length ---- */
    {LENGTH, .name = "ctx", .arg = "N", AT(run_options, attn.ctx),
     .help = "maximum tokens of a session; passkey, bench, eval recall, agree, accept, niah: a list of lengths",
     .man =
         "Maximum tokens of a session, prompt and new tokens together. passkey, bench, eval recall, agree, accept "
         "and niah: a list of lengths to run. eval longbench, longbench2, infinitebench, scbench and mrcr: the "
         "window, by default the model's. Sizes such as 4k and 1M are accepted. generate, chat and serve also accept "
         "max: the longest context that the model's positions and the memory allow."},
    {SEEDS, .name = "seed", .arg = "N", .type = OPTION_SEED, AT(run_options, seed), .def = 42,
     .help = "seed of all random numbers (default 42)"},
    {TABLES, .name = "wide", .type = OPTION_FLAG, AT(run_options, out.wide),
     .help = "print all columns of tables, beyond 80 characters",
     .man =
         "Prints all columns of tables. Without it a table has at most 80 characters: columns of details that do not "
         "fit or are zero are left out and listed, and a table that is still too wide is divided. --json has all "
         "values."},
    {0}};

const cli_option prefix_rows[] = {
    {PREFIX, .name = "prefix-disk", .arg = "DIR[:SIZE]", AT(prefix_args, disk),
     .help = "cache prompts in a folder for reuse by later prompts, at most SIZE bytes (default 8192M)",
     .man =
         "Caches the KV rows and the strategy's index of prompts in a folder, which is created if it is missing (mode "
         "0700, since it contains prompts in the clear). A later prompt that begins with the same tokens reuses them "
         "and computes only the rest, with the same text. A hit requires the same model, strategy, store, --ctx, "
         "--chunk, --gemm and --threads. Strategies that evict and stores that quantize are refused; commands that "
         "compare strategies compute the prompts of these. At most SIZE bytes are kept (default 8192M); the least "
         "recently used entries are removed. Several processes may share a folder, including serve with "
         "--prefix-shared and the same --ctx and --chunk. Append a slash to a folder name that contains a colon."},
    {PREFIX, .name = "prefix-min", .arg = "N", WHOLE(1, MOST, 64), AT(prefix_args, least),
     .help = "cache a prompt only if at least N of its tokens are new (default 64)"},
    {0}};
