/* SPDX-License-Identifier: MIT */
/* The folders of tests/data/models. */
static const char *const MODEL_NAMES[] = {
    "llama31-f32-tied",
    "llama31-bf16-untied-sharded",
    "llama2-linear-f16",
    "llama-dynamic-f32",
    "mistral-swa-bf16",
    "mistral-nemo-like-f32",
    "qwen2-f16",
    "qwen2-yarn-f32",
    "qwen2-swa-f32",
    "qwen3-bf16",
    "qwen3-f32-sharded-tied",
    "phi3-longrope-f16",
    "ministral3-vision-f16",
    "ministral-layers-f16",
    "mistral3-vision-bf16",
    "mixtral-f16",
    "qwen2-moe-bf16",
    "qwen3-moe-f32",
    "qwen3-vl-f16",
    "qwen3-vl-moe-bf16",
};
