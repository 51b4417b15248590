/* SPDX-License-Identifier: MIT */
/* The options of replies and prompts. */
#include "config.h"

#include "commands/generate.h"

#define REPLY  .groups = OPTIONS_REPLY
#define DRAFTS .groups = OPTIONS_REPLY | OPTIONS_SAMPLES | OPTIONS_TRIALS | OPTIONS_JOBS
#define CHATS  .groups = OPTIONS_REPLY | OPTIONS_SAMPLES, .in = IN_TEMPLATE
#define PROMPT .groups = OPTIONS_PROMPT

enum { MOST = 1 << 30 };

const cli_option reply_rows[] = {
    {REPLY, .letter = 'n', .arg = "N", WHOLE(0, MOST, -1), AT(reply_options, n_new),
     .help = "most new tokens (generate: 256, chat: 512)"},
    {REPLY, .name = "temp", .arg = "T", .type = OPTION_NUMBER, AT(reply_options, sampling.temp), .def = 0.8,
     .help = "temperature, 0 = greedy (default 0.8)"},
    {REPLY, .name = "draw", .arg = "gumbel|rank", AT(reply_options, draw),
     .help = "how a token is drawn: logits with noise of their own (default), or by a share of the mass in their order",
     .man =
         "How a token is drawn. gumbel (default): the largest sum of logit / temperature and a noise that follows "
         "from seed, position and token, so that close logits choose the same token: what drafts live on. rank: by a "
         "random share of the mass of the tokens in the order of their logits, as versions before did. Both draw by "
         "the same probabilities; for one seed they give other texts."},
    {REPLY, .name = "top-k", .arg = "K", WHOLE(0, MOST, 0), AT(reply_options, sampling.top_k),
     .help = "keep the K most likely tokens (0: off)"},
    {REPLY, .name = "top-p", .arg = "P", .type = OPTION_NUMBER, AT(reply_options, sampling.top_p), .def = 0.95,
     .help = "keep the most likely tokens up to mass P (default 0.95)"},
    {REPLY, .name = "min-p", .arg = "P", .type = OPTION_NUMBER, AT(reply_options, sampling.min_p),
     .help = "keep tokens with at least P times the best one's probability"},
    {REPLY, .name = "repeat-penalty", .arg = "R", .type = OPTION_NUMBER, AT(reply_options, sampling.repeat_penalty),
     .def = 1, .help = "divide logits of tokens seen before (1: off)"},
    {DRAFTS, .name = "draft", .arg = "SPEC[:n=K]", AT(run_options, engine.draft),
     .help =
         "propose up to K tokens (at most 7) and verify them in one step: the same text in fewer steps; SPEC: ngram "
         "(what followed the last tokens earlier in the text), a strategy as fier:budget=256, or ngram,STRATEGY",
     .man =
         "Proposes up to K tokens (1 to 7, by default 7) and verifies them in one step, whose rows have the bits of "
         "single steps: the text is that without drafts, byte for byte, greedy or drawn. ngram proposes what followed "
         "the last three, two or one tokens where they stood last. A strategy, as fier:budget=256 or quest, proposes "
         "what the model says under it, over the same keys and values; streaming, quest, fier, oracle, pqcache, "
         "pariskv and magicpig can. ngram,STRATEGY asks the strategy where ngram finds nothing. How many are proposed "
         "follows from how many were right, and from times; with adapt=off all K are. --attn full over rows of f32, "
         "f16 or bf16 verifies; others are refused. The statistics say how many tokens a verification yields and how "
         "much faster that is."},
    {DRAFTS, .name = "draft-weights", .arg = "q8|q4", AT(run_options, engine.draft_weights),
     .help = "--draft STRATEGY: drafts run with the model's matrices in 8 or 4 bits, verification with its own; "
             "'--draft full' too",
     .man = "With --draft STRATEGY the steps of drafts run with the matrices of the model quantized to 8 or 4 bits (as "
            "--weights does), over the same keys and values; verification runs with the model's own. Both are in "
            "memory. The strategy may be full: then the weights alone are cheaper."},
    {REPLY, .name = "stop", .arg = "TEXT", .type = OPTION_TEXTS, AT(reply_options, stop),
     .help = "stop at this text (up to 8 times)"},
    {REPLY, .name = "ignore-eos", .type = OPTION_FLAG, AT(reply_options, ignore_eos),
     .help = "go on after end-of-text"},
    {REPLY, .name = "system", .arg = "TEXT", AT(reply_options, system), .help = "system message"},
    {CHATS, .name = "template", .arg = "NAME", .help = "chat template (default: the model's own)"},
    {REPLY, .name = "save", .arg = "FILE", AT(reply_options, save),
     .help = "at the end, write the session; --load goes on from it",
     .man =
         "At the end, writes the session: tokens, keys and values, indices and everything else that the strategy "
         "holds, and the state of the random numbers. The file appears under its name (mode 0600) once it is complete "
         "and on the disk, or not at all; an interrupted run writes none. Without --ctx the session has room for "
         "8192 tokens more than the prompt and -n need, as far as the model goes. See SESSIONS."},
    {REPLY, .name = "load", .arg = "FILE", AT(reply_options, load), .help = "start from a saved session of this model",
     .man = "Starts from such a file. generate goes on where it ended; with -p or -f, behind it (with --chat as a "
            "further turn). chat goes on talking. Strategy, store and context are those of the file; options that "
            "name others are refused. The whole file is read first and its checksums are compared."},
    {REPLY, .name = "no-verify", .type = OPTION_FLAG, AT(reply_options, no_verify),
     .help = "--load: do not compare the checksums of keys and values",
     .man = "With --load, does not compare the checksums of keys, values and indices, so that they are read only where "
            "they are attended. For sessions larger than memory."},

    {PROMPT, .letter = 'p', .arg = "TEXT", AT(generate_options, prompt.text),
     .help = "prompt (default: standard input)"},
    {PROMPT, .letter = 'f', .arg = "FILE", AT(generate_options, prompt.file), .help = "prompt from a file"},
    {PROMPT, .name = "chat", .type = OPTION_FLAG, AT(generate_options, chat),
     .help = "wrap the prompt in the model's chat template"},
    {PROMPT, .name = "special", .type = OPTION_FLAG, AT(generate_options, special),
     .help = "read the spellings of special tokens as these tokens"},
    {PROMPT, .name = "plan", .type = OPTION_FLAG, AT(generate_options, plan),
     .help = "print the memory that is needed, and stop"},
    {0}};
