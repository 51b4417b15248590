/* SPDX-License-Identifier: MIT */
/* The options that several commands take. */
#include "config.h"

#include "cli/command.h"

#define COMMON .groups = OPTIONS_COMMON
#define MODEL  .groups = OPTIONS_MODEL
#define LENGTH .groups = OPTIONS_LENGTH
#define SEEDS  .groups = OPTIONS_LENGTH | OPTIONS_RESULTS
#define PREFIX .groups = OPTIONS_PREFIX, .in = IN_PREFIX

enum { MOST = 1 << 30 };

const cli_option shared_rows[] = {
    /* ---- of every command ---- */
    {COMMON, .letter = 'm', .arg = "DIR", AT(run_options, engine.model.dir),
     .help = "Hugging Face model folder (default: the built-in model)"},
    {COMMON, .name = "json", .arg = "FILE", AT(run_options, out.json), .help = "write results as JSON",
     .man = "Writes the results as one JSON object."},
    {COMMON, .name = "quiet", .type = OPTION_FLAG, AT(run_options, out.quiet), .help = "no progress, no statistics"},

    /* ---- of those that run a model ---- */
    {MODEL, .name = "attn", .arg = "NAME[:K=V]...", AT(run_options, attn.names),
     .help = "attention strategy; a list where a command compares several",
     .man =
         "Attention strategy, for example streaming:sink=4:budget=256. passkey, bench and the evaluations compare "
         "several: a list separated by commas, in which \"all\" is the whole table (see --help-attn list). A strategy "
         "that cannot run is left out, with its reason.\n"
         "The parameter gqa says how the query heads of a KV head share a selection. By default they vote or "
         "average; with gqa=per_q each query head selects for itself, as the code of Quest's authors does."},
    {MODEL, .name = "budget", .arg = "N", AT(run_options, attn.budget),
     .help = "tokens kept or attended; a list where a command compares several"},
    {MODEL, .name = "skip", .arg = "N", AT(run_options, attn.skip),
     .help = "the first N layers run full attention, or the layers of a list a+b+c (default: 0 where strategies are "
             "compared, else the strategy's own)",
     .man = "The first N layers run full attention, or the layers of a list a+b+c. Where strategies are compared "
            "(passkey, bench, eval) the default is 0 for all of them, and the table says so; generate and chat take "
            "the default of the strategy's paper (2 for quest and fier, else 0). A strategy that sets skip or budget "
            "itself keeps its own."},
    {MODEL, .name = "certify", .arg = "EPS", AT(run_options, attn.certify),
     .help = "no query head misses more than this share of its attention, for sure (--attn codes --kv kivi4)",
     .man = "No query head of a layer that selects misses more than the share EPS of its attention: a step attends as "
            "many tokens as it takes to be sure of that, whatever --budget says; budget=N inside the strategy bounds "
            "them, and heads that need more then count as not certified. The bound is that of the keys as they were "
            "before they became codes. For codes over q8, q4, kivi4, logquant4 or hf4:zero=float, on a CPU; strategies "
            "whose "
            "bounds certify nothing (pages, single bits) and those that drop tokens are refused."},
    {MODEL, .name = "kv", .arg = "STORE", AT(run_options, attn.kv),
     .help =
         "how keys and values are stored: f16 (default; logits: f32), bf16, f32, in blocks of 8 or 4 bits: q8, q4, or "
         "in codes: kivi2, kivi4, logquant, logquant4, hf2, hf4, with parameters as kivi2:r=64:g=32",
     .man = "How keys and values are stored: f16 (default; logits: f32), bf16, f32, in blocks of 8 or 4 bits: q8, q4, "
            "or in "
            "codes of 2 or 4 bits: kivi2, kivi4, logquant, logquant4, hf2, hf4, with parameters as kivi2:r=64:g=32. "
            "Inside a strategy it is written with a slash: streaming:kv=kivi2/r=64."},
    {MODEL, .name = "kv-tier", .arg = "PLACE", AT(run_options, attn.kv_tier),
     .help = "where keys and values are kept: device (default), host[:cache=SIZE][:window=N] (CPU: the same as device; "
             "cuda: pinned memory that kernels read), or disk[:cache=SIZE][:window=N][:DIR]: older tokens in files in "
             "DIR (default: $TMPDIR, else the current folder), for strategies that drop nothing",
     .man = "The place of keys and values: device (default), host[:cache=SIZE][:window=N] (on a CPU the same as "
            "device), or disk[:cache=SIZE][:window=N][:DIR].\n"
            "On disk: the newest N tokens (default 256, or what the strategy always attends if that is more) and the "
            "first tokens that the strategy always attends stay in memory. The others go to files in DIR (default: "
            "$TMPDIR, else the current folder), one for each layer. The files have no name and belong to the owner "
            "alone, so nothing is left of them however the program ends. A step reads what it selected, in blocks of "
            "16 tokens of a head; a cache keeps blocks of SIZE bytes in all (default 512M) in memory. The index and "
            "dense layers (--skip) stay in memory; during prefill each layer is fully in memory for a moment. Results "
            "are bit for bit those of the device. Strategies that drop tokens are refused; full, kivi and logquant "
            "read everything in each step. Such sessions cannot be saved.\n"
            "On host with a GPU: keys and values are in pinned memory of the machine, and kernels read what they need "
            "over the link. The device keeps copies of the first and newest tokens as above and, in at most SIZE bytes "
            "(0: none), of rows that steps have read; of codes it keeps none. generate and bench report the traffic "
            "over the link and the share of rows that were found on the device."},
    {MODEL, .name = "weights", .arg = "TYPE", AT(run_options, engine.model.weights),
     .help = "type of the matrices: bf16, f16, f32, q8 or q4 (8 or 4 bits; default: as in the files); bench: a list",
     .man = "Type of the matrices: bf16, f16, f32, q8 or q4. The default is the type in the files, which are mapped. "
            "q8 and "
            "q4 hold 8 and 4 bits a weight in blocks of 32 with a scale of 16 bits: a token reads 1.06 and 0.56 bytes "
            "a weight. Norms, biases and the embedding stay as in the files; an output matrix that is tied to the "
            "embedding is quantized. On the built-in model the error of the logits (NMSE) is 3e-5 with q8 and 7e-3 "
            "with q4; perplexity rises by less than 0.5 and by about 5 %. Products with q8 and q4 round activations "
            "to 8 bits in blocks of 32 (q8: 9e-5 in all), or use the vendor's library where that is faster for "
            "prompts; with --gemm builtin and in logits activations stay in float32. bench takes a list.\n"
            "Quantized weights are kept in a file that the next start maps, see FILES; if it cannot be written, in "
            "memory."},
    {MODEL, .name = "no-weights-cache", .type = OPTION_FLAG, AT(run_options, engine.model.no_cache),
     .help = "q8, q4: quantize at every start instead of keeping the result under ~/.cache/kvasir",
     .man = "Quantizes at every start, in memory."},
    {MODEL, .name = "gemm", .arg = "auto|builtin", AT(run_options, engine.device.gemm),
     .help = "matrix products of prompts: the vendor's library (default, except for logits), or our own in float32",
     .man = "Matrix products of prompts: by the vendor's library (default), or by our own in float32 (default of "
            "logits).\n"
            "If the CPU multiplies bf16 (level avx512_bf16) and the matrices are bf16, q8 or q4, auto rounds what is "
            "multiplied to bf16: activations beside bf16 matrices, and, unless --kv is f32, queries, keys, values and "
            "weights in the attention of prompts. Keys and values of f16 lose 3 of their 11 bits there, not in the "
            "cache. Sums and the softmax stay in float32. The error (NMSE) of attention is 1e-5, that of the built-in "
            "model's logits 5e-6, of which 4e-6 come from the other products. Models of f32 and f16 keep float32."},
    {MODEL, .name = "chunk", .arg = "N", WHOLE(1, 65536, 0), AT(run_options, engine.device.chunk),
     .help = "prompt tokens of one forward pass (default 512; on a GPU 2048)"},
    {MODEL, .name = "device", .arg = "NAME", AT(run_options, engine.device.name), .help = "auto, cpu, cuda, cuda:N",
     .man =
         "auto, cpu, cuda or cuda:N. On cuda all strategies run over all stores. No part of the CUDA backend has been "
         "run on a GPU yet; its kernels are tested on the host."},
    {MODEL, .name = "tp", .arg = "N", WHOLE(1, 1024, 0), AT(run_options, engine.device.tp),
     .help =
         "run one model in N processes, on cuda with a GPU each (tensor parallel); on several machines: mpirun -n N",
     .man = "Runs the model in N processes of this machine (tensor parallel), with --device cuda on a GPU each; see "
            "RANKS. Under mpirun: the number of ranks that is expected; another number is refused."},
    {MODEL, .name = "threads", .arg = "N", WHOLE(1, 1024, 0), AT(run_options, engine.device.threads),
     .help = "threads of a process (default: its share of the physical cores)",
     .man = "Threads of a process. The default is the number of physical cores, divided among the ranks of a machine."},
    {MODEL, .name = "help-attn", .arg = "NAME", .type = OPTION_HELP_ATTN,
     .help = "parameters of a strategy (list: all strategies)",
     .man = "Prints the parameters of a strategy with their defaults; list prints all strategies."},

    /* ---- of those that choose a length ---- */
    {LENGTH, .name = "ctx", .arg = "N", AT(run_options, attn.ctx),
     .help = "most tokens of a session; passkey, bench, eval recall, agree, accept and niah: a list of lengths",
     .man = "Most tokens of a session, prompt and new ones together. passkey, bench, eval recall, agree, accept and "
            "niah: the "
            "lengths to run, a list. eval longbench, longbench2, infinitebench, scbench and mrcr: the window, by "
            "default the model's. Sizes may be written as 4k and 1M."},
    {SEEDS, .name = "seed", .arg = "N", .type = OPTION_SEED, AT(run_options, seed), .def = 42,
     .help = "seed of everything random (default 42)"},
    {0}};

const cli_option prefix_rows[] = {
    {PREFIX, .name = "prefix-disk", .arg = "DIR[:SIZE]", AT(prefix_args, disk),
     .help = "keep prompts in a folder, and take from there what later ones begin with: at most SIZE bytes (default "
             "8192M)",
     .man =
         "Keeps what prompts left in the KV cache, and in the strategy's index, in a folder, which is made where "
         "there is none (mode 0700: prompts lie in it in the clear). A later prompt of the same model, strategy, "
         "store, --ctx, --chunk, --gemm and --threads that begins with the same tokens takes them from there, and "
         "only the rest is computed; texts do not change by it. Strategies that evict, and stores with codes, are "
         "refused; where several strategies are compared they compute their prompts. At most SIZE bytes are kept "
         "(default 8192M), the least recently used go. Several processes may use a folder; that of serve, with "
         "--prefix-shared and the same --ctx and --chunk, is the same. A folder whose name has a colon is written with "
         "a slash behind it."},
    {PREFIX, .name = "prefix-min", .arg = "N", WHOLE(1, MOST, 1024), AT(prefix_args, least),
     .help = "tokens that nobody asked with before, from which on a prompt is kept (default 1024)"},
    {0}};
