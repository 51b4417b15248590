/* SPDX-License-Identifier: MIT */
/* Made by scripts/fixtures/make_rope_table.py with transformers 5.23.0, torch 2.15.0+cu132. */
static const struct {
    const char *name, *json;
    long long seq_len;
    float mscale;
    int half;
    float freq[32];
} rope_cases[] = {
    {"plain, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64}",
     1,
     1.0f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f,
      0.000316227786f}},
    {"theta at the top, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_theta\": 500000}",
     1,
     1.0f,
     8,
     {1.0f, 0.193922758f, 0.0376060307f, 0.00729266508f, 0.00141421345f, 0.000274248188f, 5.31829573e-05f,
      1.03133852e-05f}},
    {"theta in rope_parameters, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"default\", \"rope_theta\": 1000000.0}}",
     1,
     1.0f,
     8,
     {1.0f, 0.177827939f, 0.0316227786f, 0.00562341325f, 0.00100000005f, 0.00017782794f, 3.16227743e-05f,
      5.62341347e-06f}},
    {"linear, old spelling, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
     "\"linear\", \"factor\": 8.0}}",
     1,
     1.0f,
     8,
     {0.125f, 0.0395284705f, 0.0125000002f, 0.00395284733f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
      3.95284733e-05f}},
    {"linear, new spelling, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 50000.0}}",
     1,
     1.0f,
     8,
     {0.25f, 0.0646500364f, 0.0167185087f, 0.00432340847f, 0.00111803401f, 0.000289123738f, 7.47674421e-05f,
      1.93348696e-05f}},
    {"dynamic, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
     "\"dynamic\", \"factor\": 2.0}}",
     1,
     1.0f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f,
      0.000316227786f}},
    {"dynamic, length 64",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
     "\"dynamic\", \"factor\": 2.0}}",
     64,
     1.0f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f,
      0.000316227786f}},
    {"dynamic, length 65",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
     "\"dynamic\", \"factor\": 2.0}}",
     65,
     1.0f,
     8,
     {1.0f, 0.314840704f, 0.0991246626f, 0.0312084779f, 0.00982569903f, 0.00309352996f, 0.000973969174f,
      0.000306645117f}},
    {"dynamic, length 200",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
     "\"dynamic\", \"factor\": 2.0}}",
     200,
     1.0f,
     8,
     {1.0f, 0.249528468f, 0.0622644536f, 0.0155367535f, 0.00387686281f, 0.000967387517f, 0.000241390735f,
      6.02338623e-05f}},
    {"llama3, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 131072, \"rope_theta\": 500000.0, "
     "\"head_dim\": 64, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
     "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}",
     1,
     1.0f,
     32,
     {1.0f,
      0.663601279f,
      0.440366626f,
      0.292227834f,
      0.193922758f,
      0.128687382f,
      0.0853971019f,
      0.0566696189f,
      0.0376060307f,
      0.0249554086f,
      0.0165604409f,
      0.0109895291f,
      0.00729266508f,
      0.00483942125f,
      0.00321144611f,
      0.00137189368f,
      0.000524846022f,
      0.000178507791f,
      7.78465546e-05f,
      5.16590699e-05f,
      3.42810235e-05f,
      2.2748929e-05f,
      1.50962178e-05f,
      1.00178686e-05f,
      6.64786967e-06f,
      4.41153452e-06f,
      2.92749974e-06f,
      1.94269251e-06f,
      1.28917316e-06f,
      8.55496921e-07f,
      5.6770881e-07f,
      3.7673226e-07f}},
    {"llama3, trained length absent, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 256, \"rope_scaling\": "
     "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0}}",
     1,
     1.0f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.00661310693f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
      3.95284733e-05f}},
    {"llama3, trained length at the top, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 4096, \"rope_scaling\": "
     "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 64}, \"original_max_position_embeddings\": 512}",
     1,
     1.0f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.0184966773f, 0.00124999997f, 0.000395284733f, 0.000125000006f,
      3.95284733e-05f}},
    {"yarn, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 8192, \"rope_theta\": 1000000.0, "
     "\"head_dim\": 32, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
     "\"original_max_position_embeddings\": 2048}}",
     1,
     1.13862944f,
     16,
     {1.0f, 0.421696514f, 0.177827939f, 0.063741006f, 0.022135945f, 0.0073343683f, 0.00224936521f, 0.000592843455f,
      0.000250000012f, 0.000105424122f, 4.44569851e-05f, 1.87473561e-05f, 7.90569356e-06f, 3.33380353e-06f,
      1.40585337e-06f, 5.92843435e-07f}},
    {"yarn, length 9000",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 8192, \"rope_theta\": 1000000.0, "
     "\"head_dim\": 32, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
     "\"original_max_position_embeddings\": 2048}}",
     9000,
     1.13862944f,
     16,
     {1.0f, 0.421696514f, 0.177827939f, 0.063741006f, 0.022135945f, 0.0073343683f, 0.00224936521f, 0.000592843455f,
      0.000250000012f, 0.000105424122f, 4.44569851e-05f, 1.87473561e-05f, 7.90569356e-06f, 3.33380353e-06f,
      1.40585337e-06f, 5.92843435e-07f}},
    {"yarn, old spelling, no trained length, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": "
     "\"yarn\", \"factor\": 4.0}}",
     1,
     1.13862944f,
     8,
     {1.0f, 0.237170815f, 0.049999997f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
      7.90569466e-05f}},
    {"yarn, range not rounded, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"head_dim\": 32, "
     "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 2048, "
     "\"truncate\": false}}",
     1,
     1.13862944f,
     16,
     {1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0494530834f, 0.0238701962f, 0.0112079531f,
      0.00505697168f, 0.00214322237f, 0.000811290462f, 0.000444569858f, 0.000250000012f, 0.000140585325f,
      7.90569466e-05f, 4.44569851e-05f}},
    {"yarn, betas, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"head_dim\": 32, "
     "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 2048, "
     "\"beta_fast\": 16, \"beta_slow\": 2.5}}",
     1,
     1.13862944f,
     16,
     {1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0562341288f, 0.025693506f, 0.0111142462f,
      0.00437500002f, 0.00140585331f, 0.000790569466f, 0.000444569858f, 0.000250000012f, 0.000140585325f,
      7.90569466e-05f, 4.44569851e-05f}},
    {"yarn, betas of 0, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"head_dim\": 32, "
     "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 2048, "
     "\"beta_fast\": 0, \"beta_slow\": 0}}",
     1,
     1.13862944f,
     16,
     {1.0f, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0502090417f, 0.02484647f, 0.0120668961f,
      0.00571428565f, 0.0026108704f, 0.00112938497f, 0.000444569858f, 0.000250000012f, 0.000140585325f, 7.90569466e-05f,
      4.44569851e-05f}},
    {"yarn, attention factor, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 2048, \"attention_factor\": "
     "0.75}}",
     1,
     0.75f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.025693506f, 0.00624999963f, 0.00138349656f, 0.000250000012f,
      7.90569466e-05f}},
    {"yarn, mscale pair, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 2048, \"mscale\": 0.707, "
     "\"mscale_all_dim\": 1.3}}",
     1,
     0.930345714f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.025693506f, 0.00624999963f, 0.00138349656f, 0.000250000012f,
      7.90569466e-05f}},
    {"yarn, mscale alone, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 2048, \"mscale\": 0.707}}",
     1,
     1.13862944f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.025693506f, 0.00624999963f, 0.00138349656f, 0.000250000012f,
      7.90569466e-05f}},
    {"yarn, factor null, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 8192, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": null, \"original_max_position_embeddings\": 2048}}",
     1,
     1.13862944f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.025693506f, 0.00624999963f, 0.00138349656f, 0.000250000012f,
      7.90569466e-05f}},
    {"yarn, factor below 1, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": 0.5, \"original_max_position_embeddings\": 2048}}",
     1,
     1.0f,
     8,
     {1.0f, 0.316227764f, 0.100000001f, 0.0395284742f, 0.0149999997f, 0.00553398626f, 0.00200000009f, 0.000632455572f}},
    {"yarn, empty ramp, length 1",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
     "\"intermediate_size\": 8"
     ", \"num_attention_heads\": 2, \"vocab_size\": 8, \"max_position_embeddings\": 64, \"rope_parameters\": "
     "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 4}}",
     1,
     1.13862944f,
     8,
     {1.0f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f,
      7.90569466e-05f}},
};
