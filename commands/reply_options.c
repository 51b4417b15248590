/* SPDX-License-Identifier: MIT */
/* Options of replies and prompts. */
#include "config.h"

#include <math.h>

#include "commands/generate.h"

#define REPLY  .groups = OPTIONS_REPLY
#define DRAFTS .groups = OPTIONS_REPLY | OPTIONS_SAMPLES | OPTIONS_TRIALS | OPTIONS_JOBS
#define CHATS  .groups = OPTIONS_REPLY | OPTIONS_SAMPLES, .in = IN_TEMPLATE
#define PROMPT .groups = OPTIONS_PROMPT

enum { MOST = 1 << 30 };

const cli_option reply_rows[] = {
    {REPLY, .letter = 'n', .arg = "N", WHOLE(0, MOST, -1), AT(reply_options, n_new),
     .help = "maximum new tokens (generate: 256, chat: 512)"},
    {REPLY, .name = "temp", .arg = "T", .type = OPTION_NUMBER, AT(reply_options, sampling.temp), .def = (double)NAN,
     .help = "temperature; 0: greedy (default: the model's, else 0.8)"},
    {REPLY, .name = "draw", .arg = "gumbel|rank", AT(reply_options, draw),
     .help = "sampling method: gumbel, noise per token (default), or rank, one random number per step",
     .man = "Sampling method. gumbel (default): the maximum of logit / temperature plus noise that depends on seed, "
            "position and token. Similar logits then choose the same token, which makes drafts effective. rank: "
            "inverse transform sampling over the tokens in the order of their logits, as in earlier versions. Both "
            "sample from the same distribution, but give different texts for a seed."},
    {REPLY, .name = "top-k", .arg = "K", WHOLE(0, MOST, -1), AT(reply_options, sampling.top_k),
     .help = "keep the K most likely tokens; 0: off (default: the model's, else 0)"},
    {REPLY, .name = "top-p", .arg = "P", .type = OPTION_NUMBER, AT(reply_options, sampling.top_p), .def = (double)NAN,
     .help = "keep the most likely tokens up to probability mass P (default: the model's, else 0.95)"},
    {REPLY, .name = "min-p", .arg = "P", .type = OPTION_NUMBER, AT(reply_options, sampling.min_p), .def = (double)NAN,
     .help = "keep tokens with at least P times the highest probability (default: the model's, else 0)"},
    {REPLY, .name = "repeat-penalty", .arg = "R", .type = OPTION_NUMBER, AT(reply_options, sampling.repeat_penalty),
     .def = (double)NAN, .help = "divide the logits of earlier tokens by R; 1: off (default: the model's, else 1)"},
    {REPLY, .name = "presence-penalty", .arg = "A", .type = OPTION_NUMBER, AT(reply_options, sampling.presence_penalty),
     .help = "subtract A (-2 to 2) from the logits of tokens that the reply has (default 0)"},
    {REPLY, .name = "frequency-penalty", .arg = "A", .type = OPTION_NUMBER,
     AT(reply_options, sampling.frequency_penalty),
     .help = "subtract A (-2 to 2) from a token's logit for each time that the reply has it (default 0)"},
    {DRAFTS, .name = "draft", .arg = "SPEC[:n=K]", AT(run_options, engine.draft),
     .help = "draft up to K tokens (at most 7) per step with ngram, a strategy, or ngram,STRATEGY",
     .man = "Drafts up to K tokens (1 to 7, default 7) and verifies them in one step, whose rows have the bits of "
            "single steps. The text does not change, byte for byte, greedy or sampled. ngram drafts the tokens after "
            "the latest earlier occurrence of the last three, two or one tokens. A strategy, such as fier:budget=256 "
            "or quest, drafts the model's tokens under that strategy, over the same keys and values; streaming, quest, "
            "fier, oracle, pqcache, pariskv and magicpig are supported. ngram,STRATEGY uses the strategy where ngram "
            "finds nothing. The number of drafted tokens adapts to acceptance and timing; with adapt=off it is K. "
            "Verification requires --attn full over f32, f16 or bf16 rows. The statistics report tokens per "
            "verification and the speedup."},
    {DRAFTS, .name = "draft-weights", .arg = "q8|q4", AT(run_options, engine.draft_weights),
     .help = "--draft STRATEGY: quantize the matrices for draft steps; STRATEGY may be full",
     .man = "With --draft STRATEGY, draft steps use matrices quantized to 8 or 4 bits (as with --weights), over the "
            "same keys and values; verification uses the model's own matrices. Both are in memory. The strategy may be "
            "full: only the weights are then cheaper."},
    {REPLY, .name = "stop", .arg = "TEXT", .type = OPTION_TEXTS, AT(reply_options, stop),
     .help = "stop at this text; up to 8 times"},
    {REPLY, .name = "ignore-eos", .type = OPTION_FLAG, AT(reply_options, ignore_eos),
     .help = "continue after end-of-text"},
    {REPLY, .name = "json-schema", .arg = "FILE|{..}", AT(reply_options, json_schema),
     .help = "reply with JSON that a JSON Schema allows",
     .man = "Replies with JSON that a JSON Schema allows, read from a file or given as an object: "
            "{\"type\":\"object\"} allows any object. Tokens that the schema does not allow are never chosen, and the "
            "reply ends only after a complete value; with -n it may be cut earlier. In chat, a model may think first. "
            "doc/usage.md lists the keywords; unsupported ones are errors."},
    {REPLY, .name = "system", .arg = "TEXT", AT(reply_options, system), .help = "system message"},
    {CHATS, .name = "template", .arg = "FILE|NAME|TEXT", AT(template_options, name),
     .help = "chat template: a Jinja file, a name or a Jinja text (default: the model's own)",
     .man = "Chat template: a Jinja file, a Jinja text (with {{ or {%), a named template of the model (such as "
            "tool_use), or a built-in one: llama3, "
            "llama3.1, mistral-v1, mistral-v3, mistral-v7, qwen2, qwen2.5, qwen3, smollm2, chatml, vicuna, llama2. "
            "Default: the "
            "model's own."},
    {CHATS, .name = "template-arg", .arg = "NAME=VALUE", .type = OPTION_TEXTS, AT(template_options, args),
     .help = "variable of the chat template, such as enable_thinking=false; repeatable",
     .man = "Sets a variable of the chat template. VALUE is JSON, or else a text: enable_thinking=false, "
            "date_string=\"1 Jan 2026\". Repeatable."},
    {REPLY, .name = "save", .arg = "FILE", AT(reply_options, save), .help = "save the session at the end, for --load",
     .man = "Saves the session at the end: tokens, keys and values, indices, the other state of the strategy, and that "
            "of the random numbers. The file (mode 0600) is renamed to its name once it is complete and on disk. "
            "After Ctrl-C or SIGTERM the session has the text so far. Without --ctx the session has room for 8192 "
            "tokens more than the prompt and "
            "-n need, within the model's limit. See SESSIONS."},
    {REPLY, .name = "load", .arg = "FILE", AT(reply_options, load),
     .help = "continue from a saved session of this model",
     .man =
         "Continues from a saved session. generate continues its text, or with -p or -f appends a prompt first (with "
         "--chat as a further turn). chat continues the conversation. Strategy, store and context are those of the "
         "file; options with other values are refused. The whole file is read first and its checksums are verified."},
    {REPLY, .name = "no-verify", .type = OPTION_FLAG, AT(reply_options, no_verify),
     .help = "--load: do not verify the checksums of keys and values",
     .man = "With --load, does not verify the checksums of keys, values and indices, so that they are read only when "
            "they are attended. For sessions larger than memory."},

    {PROMPT, .letter = 'p', .arg = "TEXT", AT(generate_options, prompt.text),
     .help = "prompt (default: standard input)"},
    {PROMPT, .letter = 'f', .arg = "FILE", AT(generate_options, prompt.file), .help = "read the prompt from a file"},
    {PROMPT, .name = "chat", .type = OPTION_FLAG, AT(generate_options, chat),
     .help = "wrap the prompt in the model's chat template"},
    {PROMPT, .name = "plan", .type = OPTION_FLAG, AT(generate_options, plan),
     .help = "print the required memory and exit"},
    {0}};
