# SPDX-License-Identifier: MIT
# Tests run beside each other: threads that wait by spinning would take the cores of those that work.
AM_TESTS_ENVIRONMENT = LC_ALL=C.UTF-8; export LC_ALL; OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY; SRCDIR='$(abs_top_srcdir)'; export SRCDIR; \
  RUN='$(abs_top_builddir)/run$(EXEEXT)'; export RUN;
TAP_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
TEST_EXTENSIONS = .t
LOG_DRIVER = $(TAP_DRIVER)
T_LOG_DRIVER = $(TAP_DRIVER)
T_LOG_COMPILER = $(SHELL)
noinst_LIBRARIES += libtap.a
libtap_a_SOURCES = %D%/tap.c %D%/tap.h
LDADD = libtap.a $(link_libs)
# The longest one first: it ends beside the others.
unit_tests = %D%/unit/test_product \
  %D%/unit/test_tier \
  %D%/unit/test_utf8 \
  %D%/unit/test_nearest \
  %D%/unit/test_comm \
  %D%/unit/test_sha256 \
  %D%/unit/test_reader \
  %D%/unit/test_config \
  %D%/unit/test_rope \
  %D%/unit/test_safetensors \
  %D%/unit/test_weights \
  %D%/unit/test_hold \
  %D%/unit/test_weight_quality \
  %D%/unit/test_ops \
  %D%/unit/test_gemm \
  %D%/unit/test_blocks \
  %D%/unit/test_cpu_attn \
  %D%/unit/test_codes \
  %D%/unit/test_evict_ops \
  %D%/unit/test_paris_ops \
  %D%/unit/test_pariskv \
  %D%/unit/test_select \
  %D%/unit/test_quest \
  %D%/unit/test_groups \
  %D%/unit/test_fier \
  %D%/unit/test_attention \
  %D%/unit/test_counts \
  %D%/unit/test_toy \
  %D%/unit/test_h2o \
  %D%/unit/test_snapkv \
  %D%/unit/test_tova \
  %D%/unit/test_store \
  %D%/unit/test_quantized \
  %D%/unit/test_block_ops \
  %D%/unit/test_budget \
  %D%/unit/test_actqkv \
  %D%/unit/test_reference \
  %D%/unit/test_reference_kept \
  %D%/unit/test_parity \
  %D%/unit/test_session \
  %D%/unit/test_batch \
  %D%/unit/test_session_file \
  %D%/unit/test_sampler \
  %D%/unit/test_reply \
  %D%/unit/test_tokenizer \
  %D%/unit/test_tokenizer_bad \
  %D%/unit/test_tokenizer_real \
  %D%/unit/test_chat \
  %D%/unit/test_stats \
  %D%/unit/test_passkey \
  %D%/unit/test_recall \
  %D%/unit/test_together \
  %D%/unit/test_results \
  %D%/unit/test_metrics \
  %D%/unit/test_segment \
  %D%/unit/test_longbench \
  %D%/unit/test_longbench_prompt \
  %D%/unit/test_infinitebench \
  %D%/unit/test_longbench2
tests_unit_test_metrics_SOURCES = %D%/unit/test_metrics.c %D%/unit/metric_rows.h
nodist_EXTRA_tests_unit_test_metrics_SOURCES = link-as-cxx.cc
tests_unit_test_segment_SOURCES = %D%/unit/test_segment.c %D%/unit/metric_rows.h
nodist_EXTRA_tests_unit_test_segment_SOURCES = link-as-cxx.cc
tests_unit_test_longbench_SOURCES = %D%/unit/test_longbench.c %D%/unit/metric_rows.h
nodist_EXTRA_tests_unit_test_longbench_SOURCES = link-as-cxx.cc
tests_unit_test_sha256_SOURCES = %D%/unit/test_sha256.c
nodist_EXTRA_tests_unit_test_sha256_SOURCES = link-as-cxx.cc
tests_unit_test_reader_SOURCES = %D%/unit/test_reader.c
nodist_EXTRA_tests_unit_test_reader_SOURCES = link-as-cxx.cc
tests_unit_test_utf8_SOURCES = %D%/unit/test_utf8.c
nodist_EXTRA_tests_unit_test_utf8_SOURCES = link-as-cxx.cc
tests_unit_test_nearest_SOURCES = %D%/unit/test_nearest.c
nodist_EXTRA_tests_unit_test_nearest_SOURCES = link-as-cxx.cc
tests_unit_test_comm_SOURCES = %D%/unit/test_comm.c
nodist_EXTRA_tests_unit_test_comm_SOURCES = link-as-cxx.cc
tests_unit_test_config_SOURCES = %D%/unit/test_config.c
nodist_EXTRA_tests_unit_test_config_SOURCES = link-as-cxx.cc
tests_unit_test_rope_SOURCES = %D%/unit/test_rope.c %D%/unit/rope_table.h
nodist_EXTRA_tests_unit_test_rope_SOURCES = link-as-cxx.cc
tests_unit_test_safetensors_SOURCES = %D%/unit/test_safetensors.c
nodist_EXTRA_tests_unit_test_safetensors_SOURCES = link-as-cxx.cc
tests_unit_test_weights_SOURCES = %D%/unit/test_weights.c
nodist_EXTRA_tests_unit_test_weights_SOURCES = link-as-cxx.cc
tests_unit_test_weight_quality_SOURCES = %D%/unit/test_weight_quality.c
nodist_EXTRA_tests_unit_test_weight_quality_SOURCES = link-as-cxx.cc
tests_unit_test_hold_SOURCES = %D%/unit/test_hold.c
nodist_EXTRA_tests_unit_test_hold_SOURCES = link-as-cxx.cc
tests_unit_test_ops_SOURCES = %D%/unit/test_ops.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_ops_SOURCES = link-as-cxx.cc
tests_unit_test_gemm_SOURCES = %D%/unit/test_gemm.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_gemm_SOURCES = link-as-cxx.cc
tests_unit_test_blocks_SOURCES = %D%/unit/test_blocks.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_blocks_SOURCES = link-as-cxx.cc
tests_unit_test_cpu_attn_SOURCES = %D%/unit/test_cpu_attn.c %D%/unit/attn_call.h %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_cpu_attn_SOURCES = link-as-cxx.cc
tests_unit_test_budget_SOURCES = %D%/unit/test_budget.c
nodist_EXTRA_tests_unit_test_budget_SOURCES = link-as-cxx.cc
tests_unit_test_actqkv_SOURCES = %D%/unit/test_actqkv.c %D%/unit/attention_oracle.h
nodist_EXTRA_tests_unit_test_actqkv_SOURCES = link-as-cxx.cc
tests_unit_test_block_ops_SOURCES = %D%/unit/test_block_ops.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_block_ops_SOURCES = link-as-cxx.cc
tests_unit_test_codes_SOURCES = %D%/unit/test_codes.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_codes_SOURCES = link-as-cxx.cc
tests_unit_test_paris_ops_SOURCES = %D%/unit/test_paris_ops.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_paris_ops_SOURCES = link-as-cxx.cc
tests_unit_test_pariskv_SOURCES = %D%/unit/test_pariskv.c %D%/unit/attention_oracle.h
nodist_EXTRA_tests_unit_test_pariskv_SOURCES = link-as-cxx.cc
tests_unit_test_reference_SOURCES = %D%/unit/test_reference.c %D%/unit/reference.h %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_reference_SOURCES = link-as-cxx.cc
tests_unit_test_reference_kept_SOURCES = %D%/unit/test_reference_kept.c %D%/unit/reference.h %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_reference_kept_SOURCES = link-as-cxx.cc
tests_unit_test_select_SOURCES = %D%/unit/test_select.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_select_SOURCES = link-as-cxx.cc
tests_unit_test_quest_SOURCES = %D%/unit/test_quest.c %D%/unit/ops_util.h %D%/unit/attention_oracle.h %D%/unit/retrieve_oracle.h
nodist_EXTRA_tests_unit_test_quest_SOURCES = link-as-cxx.cc
tests_unit_test_groups_SOURCES = %D%/unit/test_groups.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_groups_SOURCES = link-as-cxx.cc
tests_unit_test_fier_SOURCES = %D%/unit/test_fier.c %D%/unit/ops_util.h %D%/unit/attention_oracle.h %D%/unit/retrieve_oracle.h
nodist_EXTRA_tests_unit_test_fier_SOURCES = link-as-cxx.cc
tests_unit_test_attention_SOURCES = %D%/unit/test_attention.c %D%/unit/attention_oracle.h
nodist_EXTRA_tests_unit_test_attention_SOURCES = link-as-cxx.cc
tests_unit_test_product_SOURCES = %D%/unit/test_product.c %D%/unit/attention_oracle.h %D%/unit/spy_ops.h
nodist_EXTRA_tests_unit_test_product_SOURCES = link-as-cxx.cc
tests_unit_test_tier_SOURCES = %D%/unit/test_tier.c %D%/unit/attention_oracle.h
nodist_EXTRA_tests_unit_test_tier_SOURCES = link-as-cxx.cc
tests_unit_test_counts_SOURCES = %D%/unit/test_counts.c %D%/unit/attention_oracle.h
nodist_EXTRA_tests_unit_test_counts_SOURCES = link-as-cxx.cc
tests_unit_test_toy_SOURCES = %D%/unit/test_toy.c %D%/unit/attention_oracle.h
nodist_EXTRA_tests_unit_test_toy_SOURCES = link-as-cxx.cc
tests_unit_test_evict_ops_SOURCES = %D%/unit/test_evict_ops.c %D%/unit/ops_util.h
nodist_EXTRA_tests_unit_test_evict_ops_SOURCES = link-as-cxx.cc
tests_unit_test_h2o_SOURCES = %D%/unit/test_h2o.c %D%/unit/attention_oracle.h %D%/unit/evict_util.h
nodist_EXTRA_tests_unit_test_h2o_SOURCES = link-as-cxx.cc
tests_unit_test_snapkv_SOURCES = %D%/unit/test_snapkv.c %D%/unit/attention_oracle.h %D%/unit/evict_util.h
nodist_EXTRA_tests_unit_test_snapkv_SOURCES = link-as-cxx.cc
tests_unit_test_tova_SOURCES = %D%/unit/test_tova.c %D%/unit/attention_oracle.h %D%/unit/evict_util.h
nodist_EXTRA_tests_unit_test_tova_SOURCES = link-as-cxx.cc
tests_unit_test_store_SOURCES = %D%/unit/test_store.c %D%/unit/store_oracle.h
nodist_EXTRA_tests_unit_test_store_SOURCES = link-as-cxx.cc
tests_unit_test_quantized_SOURCES = %D%/unit/test_quantized.c %D%/unit/attention_oracle.h %D%/unit/store_oracle.h
nodist_EXTRA_tests_unit_test_quantized_SOURCES = link-as-cxx.cc
tests_unit_test_parity_SOURCES = %D%/unit/test_parity.c
nodist_EXTRA_tests_unit_test_parity_SOURCES = link-as-cxx.cc
tests_unit_test_tokenizer_SOURCES = %D%/unit/test_tokenizer.c %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_tokenizer_SOURCES = link-as-cxx.cc
tests_unit_test_tokenizer_bad_SOURCES = %D%/unit/test_tokenizer_bad.c %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_tokenizer_bad_SOURCES = link-as-cxx.cc
tests_unit_test_tokenizer_real_SOURCES = %D%/unit/test_tokenizer_real.c %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_tokenizer_real_SOURCES = link-as-cxx.cc
tests_unit_test_chat_SOURCES = %D%/unit/test_chat.c %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_chat_SOURCES = link-as-cxx.cc
tests_unit_test_stats_SOURCES = %D%/unit/test_stats.c
nodist_EXTRA_tests_unit_test_stats_SOURCES = link-as-cxx.cc
tests_unit_test_passkey_SOURCES = %D%/unit/test_passkey.c
nodist_EXTRA_tests_unit_test_passkey_SOURCES = link-as-cxx.cc
tests_unit_test_recall_SOURCES = %D%/unit/test_recall.c
nodist_EXTRA_tests_unit_test_recall_SOURCES = link-as-cxx.cc
tests_unit_test_together_SOURCES = %D%/unit/test_together.c
nodist_EXTRA_tests_unit_test_together_SOURCES = link-as-cxx.cc
tests_unit_test_results_SOURCES = %D%/unit/test_results.c
nodist_EXTRA_tests_unit_test_results_SOURCES = link-as-cxx.cc
tests_unit_test_pg19_SOURCES = %D%/unit/test_pg19.c
nodist_EXTRA_tests_unit_test_pg19_SOURCES = link-as-cxx.cc
tests_unit_test_longbench_prompt_SOURCES = %D%/unit/test_longbench_prompt.c %D%/unit/prompt_fixture.h %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_longbench_prompt_SOURCES = link-as-cxx.cc
tests_unit_test_infinitebench_SOURCES = %D%/unit/test_infinitebench.c %D%/unit/prompt_fixture.h %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_infinitebench_SOURCES = link-as-cxx.cc
tests_unit_test_longbench2_SOURCES = %D%/unit/test_longbench2.c %D%/unit/prompt_fixture.h %D%/unit/test_tokenizer_util.h
nodist_EXTRA_tests_unit_test_longbench2_SOURCES = link-as-cxx.cc
cli_tests = %D%/cli/layers.t \
  %D%/cli/cuda.t \
  %D%/cli/generate.t \
  %D%/cli/inspect.t \
  %D%/cli/chat.t \
  %D%/cli/interrupt.t \
  %D%/cli/bad_model.t \
  %D%/cli/bad_input.t \
  %D%/cli/demo.t \
  %D%/cli/recall.t \
  %D%/cli/score.t \
  %D%/cli/infinitebench.t \
  %D%/cli/longbench.t \
  %D%/cli/longbench2.t \
  %D%/cli/readme.t \
  %D%/cli/pg19.t \
  %D%/cli/weights.t \
  %D%/cli/session.t \
  %D%/cli/mpi.t \
  %D%/cli/tp.t \
  %D%/cli/tier.t
unit_tests += %D%/unit/test_pg19
tests_unit_test_batch_SOURCES = %D%/unit/test_batch.c %D%/unit/devices.h %D%/unit/session_util.h
nodist_EXTRA_tests_unit_test_batch_SOURCES = link-as-cxx.cc
tests_unit_test_session_SOURCES = %D%/unit/test_session.c
nodist_EXTRA_tests_unit_test_session_SOURCES = link-as-cxx.cc
tests_unit_test_session_file_SOURCES = %D%/unit/test_session_file.c %D%/unit/session_util.h
nodist_EXTRA_tests_unit_test_session_file_SOURCES = link-as-cxx.cc
tests_unit_test_sampler_SOURCES = %D%/unit/test_sampler.c
nodist_EXTRA_tests_unit_test_sampler_SOURCES = link-as-cxx.cc
tests_unit_test_reply_SOURCES = %D%/unit/test_reply.c
nodist_EXTRA_tests_unit_test_reply_SOURCES = link-as-cxx.cc
fuzz_targets = %D%/fuzz/fuzz_chat_template \
  %D%/fuzz/fuzz_config \
  %D%/fuzz/fuzz_infinitebench \
  %D%/fuzz/fuzz_longbench2 \
  %D%/fuzz/fuzz_metrics \
  %D%/fuzz/fuzz_recall_tensors \
  %D%/fuzz/fuzz_results \
  %D%/fuzz/fuzz_safetensors \
  %D%/fuzz/fuzz_session \
  %D%/fuzz/fuzz_tokenizer_json
nodist_EXTRA_tests_fuzz_fuzz_chat_template_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_config_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_infinitebench_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_longbench2_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_recall_tensors_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_metrics_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_results_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_safetensors_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_session_SOURCES = link-as-cxx.cc
nodist_EXTRA_tests_fuzz_fuzz_tokenizer_json_SOURCES = link-as-cxx.cc
if ENABLE_FUZZ
fuzz_main =
fuzz_tests =
fuzz_ldflags = $(AM_LDFLAGS) -fsanitize=fuzzer
else
fuzz_main = %D%/fuzz/replay.c
fuzz_tests = $(fuzz_targets)
fuzz_ldflags = $(AM_LDFLAGS)
endif
tests_fuzz_fuzz_chat_template_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_config_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_infinitebench_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_longbench2_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_metrics_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_recall_tensors_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_results_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_safetensors_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_session_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_tokenizer_json_LDFLAGS = $(fuzz_ldflags)
tests_fuzz_fuzz_chat_template_SOURCES = %D%/fuzz/fuzz_chat_template.c $(fuzz_main)
tests_fuzz_fuzz_config_SOURCES = %D%/fuzz/fuzz_config.c $(fuzz_main)
tests_fuzz_fuzz_infinitebench_SOURCES = %D%/fuzz/fuzz_infinitebench.c $(fuzz_main)
tests_fuzz_fuzz_longbench2_SOURCES = %D%/fuzz/fuzz_longbench2.c $(fuzz_main)
tests_fuzz_fuzz_recall_tensors_SOURCES = %D%/fuzz/fuzz_recall_tensors.c $(fuzz_main)
tests_fuzz_fuzz_metrics_SOURCES = %D%/fuzz/fuzz_metrics.c $(fuzz_main)
tests_fuzz_fuzz_results_SOURCES = %D%/fuzz/fuzz_results.c $(fuzz_main)
tests_fuzz_fuzz_safetensors_SOURCES = %D%/fuzz/fuzz_safetensors.c $(fuzz_main)
tests_fuzz_fuzz_session_SOURCES = %D%/fuzz/fuzz_session.c %D%/unit/session_util.h $(fuzz_main)
tests_fuzz_fuzz_tokenizer_json_SOURCES = %D%/fuzz/fuzz_tokenizer_json.c $(fuzz_main)
include tests/cushim/local.mk
include tests/cuda/local.mk
check_PROGRAMS += $(unit_tests) $(fuzz_targets)
unit_tests += %D%/unit/test_bench %D%/mpi/test_context
tests_mpi_test_context_SOURCES = %D%/mpi/test_context.c
nodist_EXTRA_tests_mpi_test_context_SOURCES = link-as-cxx.cc
tests_unit_test_bench_SOURCES = %D%/unit/test_bench.c
nodist_EXTRA_tests_unit_test_bench_SOURCES = link-as-cxx.cc
cli_tests += %D%/cli/bench.t %D%/cli/bench_compare.t %D%/cli/gpu_check.t %D%/cli/context.t %D%/cli/scaling.t %D%/cli/fetch_data.t %D%/cli/passkey.t %D%/cli/report.t
TESTS = $(unit_tests) $(fuzz_tests) $(cli_tests)
EXTRA_DIST += $(cli_tests) %D%/cli/lib.sh %D%/cli/resume.sh %D%/data %D%/fuzz/corpus %D%/fuzz/replay.c scripts/check_layers.sh
list-tests:
	@echo $(TESTS)
.PHONY: list-tests
