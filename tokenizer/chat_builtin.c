/* SPDX-License-Identifier: MIT */
/* Built-in chat templates for --template NAME, in the layouts of the model families. Dates are fixed unless the
 * variable date_string is set, so that prompts do not depend on the current date. Source: evals.md section 3. */
#include "config.h"

#include <string.h>

#include "tokenizer/chat.h"
#include "tokenizer/chat_set.h"

/* clang-format off */

/* The leading system message as `system`, and the other messages as `rest`. */
#define SPLIT_SYSTEM \
    "{%- if messages[0].role == 'system' %}" \
        "{%- set system = messages[0].content %}{%- set rest = messages[1:] %}" \
    "{%- else %}{%- set rest = messages %}{%- endif %}"

/* Refuses all but user (assistant user)*. */
#define ALTERNATE \
    "{%- for m in rest %}" \
        "{%- set expected = ['user', 'assistant'][loop.index0 % 2] %}" \
        "{%- if m.role != expected %}" \
            "{{- raise_exception('message ' ~ (loop.index + (1 if system is defined else 0)) ~ ' is from \"' ~ m.role" \
            " ~ '\", expected \"' ~ expected ~ '\"') }}" \
        "{%- endif %}" \
    "{%- endfor %}"

#define GENERATE(text) "{%- if add_generation_prompt %}{{- '" text "' }}{%- endif %}"

#define LLAMA3_TURNS(list) \
    "{%- for m in " list " %}" \
        "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}" \
    "{%- endfor %}" \
    GENERATE("<|start_header_id|>assistant<|end_header_id|>\\n\\n")

#define CHATML_SYSTEM(text) \
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\n" text "<|im_end|>\\n' }}{%- endif %}"
#define CHATML_TURNS(content) \
    "{%- for m in messages %}" \
        "{{- '<|im_start|>' + m.role + '\\n' + " content " + '<|im_end|>\\n' }}" \
    "{%- endfor %}" \
    GENERATE("<|im_start|>assistant\\n")

static const struct {
    const char *name, *needs, *text;
} builtin[] = {
    {"llama3", "<|start_header_id|>",
     "{{- bos_token }}" LLAMA3_TURNS("messages")},
    {"llama3.1", "<|start_header_id|>",
     SPLIT_SYSTEM
     "{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
     "{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + (date_string or '26 Jul 2024') + '\\n\\n' }}"
     "{{- (system or '') | trim + '<|eot_id|>' }}"
     LLAMA3_TURNS("rest")},
    {"mistral-v1", NULL,
     SPLIT_SYSTEM ALTERNATE "{{- bos_token }}"
     "{%- for m in rest %}"
        "{%- if m.role == 'user' %}"
            "{{- '[INST] ' + (system + '\\n\\n' if loop.first and system else '') + m.content + ' [/INST]' }}"
        "{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}"
     "{%- endfor %}"},
    {"mistral-v3", "[INST]", /* the system text precedes the last user message */
     SPLIT_SYSTEM ALTERNATE "{{- bos_token }}"
     "{%- for m in rest %}"
        "{%- if m.role == 'user' %}"
            "{{- '[INST]' + (system + '\\n\\n' if loop.revindex <= 2 and system else '') + m.content + '[/INST]' }}"
        "{%- else %}{{- m.content + eos_token }}{%- endif %}"
     "{%- endfor %}"},
    {"mistral-v7", "[SYSTEM_PROMPT]", /* without the system text that some models of this layout have by default */
     SPLIT_SYSTEM ALTERNATE "{{- bos_token }}"
     "{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' if system is defined else '' }}"
     "{%- for m in rest %}"
        "{%- if m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}"
        "{%- else %}{{- m.content + eos_token }}{%- endif %}"
     "{%- endfor %}"},
    {"qwen2", "<|im_start|>",
     CHATML_SYSTEM("You are a helpful assistant.") CHATML_TURNS("m.content")},
    {"qwen2.5", "<|im_start|>",
     CHATML_SYSTEM("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.") CHATML_TURNS("m.content")},
    {"qwen3", "<|im_start|>", /* drops the thoughts of earlier replies; does not think unless enable_thinking is true */
     CHATML_TURNS("(m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content)")
     "{%- if add_generation_prompt and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"},
    {"smollm2", "<|im_start|>",
     CHATML_SYSTEM("You are a helpful AI assistant named SmolLM, trained by Hugging Face") CHATML_TURNS("m.content")},
    {"chatml", "<|im_start|>",
     CHATML_TURNS("m.content")},
    {"vicuna", NULL,
     SPLIT_SYSTEM
     "{%- set usual = 'A chat between a curious user and an artificial intelligence assistant. The assistant gives "
        "helpful, detailed, and polite answers to the user\\'s questions.' %}"
     "{{- bos_token + (system or usual) + ' ' }}"
     "{%- for m in rest %}"
        "{%- if m.role == 'user' %}{{- 'USER: ' + m.content + ' ' }}"
        "{%- else %}{{- 'ASSISTANT: ' + m.content + eos_token }}{%- endif %}"
     "{%- endfor %}"
     GENERATE("ASSISTANT:")},
    {"llama2", NULL,
     SPLIT_SYSTEM ALTERNATE
     "{%- for m in rest %}"
        "{%- if m.role == 'user' %}"
            "{{- bos_token + '[INST] ' }}"
            "{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system else '' }}"
            "{{- m.content | trim + ' [/INST]' }}"
        "{%- else %}{{- ' ' + m.content | trim + ' ' + eos_token }}{%- endif %}"
     "{%- endfor %}"},
};
/* clang-format on */
enum { N_BUILTIN = sizeof builtin / sizeof *builtin };

const char *chat_builtin(const char *name, const char **needs)
{
    for (int i = 0; i < N_BUILTIN; i++) {
        if (strcmp(builtin[i].name, name) != 0) continue;
        *needs = builtin[i].needs;
        return builtin[i].text;
    }
    return NULL;
}

const char *const *chat_template_names(void)
{
    static const char *const names[] = {"llama3", "llama3.1", "mistral-v1", "mistral-v3", "mistral-v7",
                                        "qwen2",  "qwen2.5",  "qwen3",      "smollm2",    "chatml",
                                        "vicuna", "llama2",   NULL};
    _Static_assert(sizeof names / sizeof *names == N_BUILTIN + 1, "a name for each template");
    return names;
}
