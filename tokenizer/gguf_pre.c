/* SPDX-License-Identifier: MIT */
/* Expressions that cut texts before byte-pair encoding, by tokenizer.ggml.pre: a GGUF file has the name alone.
 * Source: the tokenizer.json files of the models, and llama.cpp, src/llama-vocab.cpp. */
#include "config.h"

#include <string.h>

#include "tokenizer/gguf_tokens.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORD         "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MARKS        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const char digit[] = "\\p{N}", digits3[] = "\\p{N}{1,3}";
static const char gpt2[] = PRETOK_GPT2, llama3[] = PRETOK_LLAMA3, qwen2[] = PRETOK_QWEN2;
static const char qwen35[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                                          " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
static const char tekken[] = "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|"
                             "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char gpt4o[] = "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|"
                            "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTIONS "?|"
                            "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char han[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
static const char deepseek3[] = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                                "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES;
static const char seed[] = CONTRACTIONS "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES;
static const char minicpm5[] = CONTRACTIONS "|" WORD "|\\p{N}+|" MARKS "|" SPACES;
static const char lines[] = "[\\r\\n]", letters[] = "\\s?\\p{L}+", punctuation[] = "\\s?\\p{P}+";
static const char cjk[] = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
/* The letters of deepseek-llm: those of alphabets with two cases. */
static const char deepseek_letters[] =
    "\\s?"
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+";
static const char deepseek_marks[] = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
static const char trailing[] = "\\s+$";

/* A row has the names that share it, up to six expressions, and what else the name decides. */
static const gguf_pre table[] = {
    {"smollm", 0, {digit, gpt2}},
    {"llama-bpe llama3 llama-v3 falcon3 pixtral midm-2.0", PRE_WHOLE | PRE_BOS, {llama3}},
    {"qwen2 deepseek-r1-qwen megrez kormo", PRE_NFC, {qwen2}},
    {"qwen35", PRE_NFC, {qwen35}},
    {"tekken", PRE_WHOLE | PRE_BOS, {tekken}},
    {"dbrx smaug-bpe", 0, {llama3}},
    {"gpt-4o llama4", 0, {gpt4o}},
    {"gpt-2 phi-2 gigachat a.x-4.0 mellum trillion", 0, {gpt2}},
    {"starcoder refact command-r codeshell exaone minerva-7b mellum2", 0, {digit, gpt2}},
    {"deepseek-v3 hunyuan-dense joyai-llm", 0, {digits3, han, deepseek3}},
    {"deepseek-coder", 0, {lines, letters, punctuation, cjk, digit}},
    {"deepseek-llm", 0, {lines, deepseek_letters, deepseek_marks, trailing, cjk, digit}},
    {"seed-coder", 0, {seed}},
    {"minicpm5", PRE_WHOLE, {digits3, minicpm5}},
};

static bool lists(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; n && (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0)) return true;
    return false;
}

const gguf_pre *gguf_pre_find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (lists(table[i].names, name) && !strchr(name, ' ')) return &table[i];
    return NULL;
}
