# SPDX-License-Identifier: MIT
engine_sources += %D%/cli.h %D%/cli.c %D%/weights.c %D%/options.c %D%/options.h %D%/ranks.h %D%/ranks.c %D%/output.c %D%/generate.h %D%/generate.c %D%/chat.c %D%/inspect.c \
  %D%/stats.h %D%/stats.c %D%/passkey_prompt.h %D%/passkey_prompt.c %D%/passkey_run.h %D%/passkey_report.c %D%/passkey.c \
  %D%/together.h %D%/together.c %D%/lineup.h %D%/lineup.c \
  %D%/results.h %D%/results.c %D%/provenance.h %D%/provenance.c \
  %D%/bench_sample.h %D%/bench_sample.c %D%/bench_run.h %D%/bench_run.c %D%/bench_kernel.h %D%/bench_kernel.c \
  %D%/bench.c \
  %D%/recall_score.h %D%/recall_score.c %D%/recall_run.h %D%/recall_follow.h %D%/recall_follow.c %D%/recall_text.c \
  %D%/recall_tensors.c %D%/recall.c \
  %D%/metrics/text.h %D%/metrics/text.c %D%/metrics/dictionary.h %D%/metrics/dictionary.c %D%/metrics/hmm.h \
  %D%/metrics/hmm.c %D%/metrics/segment.h %D%/metrics/segment.c %D%/metrics/metrics.h %D%/metrics/impl.h \
  %D%/metrics/lcs.h %D%/metrics/lcs.c %D%/metrics/rouge_sum.c %D%/metrics/infinitebench.c %D%/metrics/infinitebench_math.c \
  %D%/metrics/metrics.c %D%/metrics/f1.c %D%/metrics/rouge.c %D%/metrics/exact.c %D%/metrics/code_sim.c \
  %D%/scores.h %D%/scores.c %D%/samples.h %D%/samples.c %D%/sample_files.h %D%/sample_files.c %D%/prompter.h %D%/prompter.c %D%/evaluation.h %D%/evaluation.c \
  %D%/evaluation_table.h %D%/evaluation_table.c \
  %D%/prediction.h %D%/prediction.c %D%/score_cmd.c %D%/longbench.h %D%/longbench_table.c %D%/longbench_score.c %D%/longbench_cmd.c \
  %D%/prompt.h %D%/prompt.c %D%/longbench_data.h %D%/longbench_data.c %D%/longbench_prompt.h %D%/longbench_prompt.c \
  %D%/infinitebench.h %D%/infinitebench_tasks.c %D%/infinitebench_data.c %D%/infinitebench_generate.c \
  %D%/infinitebench_run.h %D%/infinitebench_run.c %D%/infinitebench_report.c \
  %D%/longbench_run.h %D%/longbench_run.c %D%/longbench_report.c \
  %D%/longbench2.h %D%/longbench2_data.c %D%/longbench2_prompt.c %D%/longbench2_run.h %D%/longbench2_run.c %D%/longbench2_report.c
engine_sources += %D%/perplexity.h %D%/perplexity.c %D%/pg19.h %D%/pg19_data.c %D%/pg19_pass.c %D%/pg19_report.c %D%/pg19_cmd.c
evaldatadir = $(pkgdatadir)/eval
dist_evaldata_DATA = %D%/data/README.md
longbenchdir = $(evaldatadir)/longbench
dist_longbench_DATA = %D%/data/longbench/datasets.json %D%/data/longbench/prompts.json %D%/data/longbench/samples.jsonl
longbench2dir = $(evaldatadir)/longbench2
dist_longbench2_DATA = %D%/data/longbench2/0shot.txt %D%/data/longbench2/0shot_no_context.txt %D%/data/longbench2/0shot_cot.txt \
  %D%/data/longbench2/0shot_cot_ans.txt %D%/data/longbench2/samples.jsonl
infinitebenchdir = $(evaldatadir)/infinitebench
dist_infinitebench_DATA = %D%/data/infinitebench/official_prompts.json %D%/data/infinitebench/official_max_new_tokens.json \
  %D%/data/infinitebench/infllm_dataset2prompt.json %D%/data/infinitebench/infllm_dataset2maxlen.json \
  %D%/data/infinitebench/samples.jsonl
jiebadir = $(evaldatadir)/jieba
dist_jieba_DATA = %D%/data/jieba/dict.txt %D%/data/jieba/hmm.tsv %D%/data/jieba/LICENSE
pg19dir = $(evaldatadir)/pg19
dist_pg19_DATA = %D%/data/pg19/10146.txt
