# SPDX-License-Identifier: MIT
EXTRA_DIST += %D%/build \
    %D%/check \
    %D%/check_aarch64 \
    %D%/check_ptxas \
    %D%/demo \
    %D%/demo_net.py \
    %D%/demo_tasks.py \
    %D%/infinitebench_cases.py \
    %D%/install_deps \
    %D%/make_golden.py \
    %D%/make_infinitebench_fixtures.py \
    %D%/make_infinitebench_prompts.py \
    %D%/make_infinitebench_samples.py \
    %D%/make_longbench2_fixtures.py \
    %D%/make_longbench_fixtures.py \
    %D%/make_longbench_samples.py \
    %D%/make_metric_fixtures.py \
    %D%/make_pg19_fixture.py \
    %D%/make_reference.py \
    %D%/make_rope_table.py \
    %D%/make_tokens.py \
    %D%/metric_cases.py \
    %D%/reference_tokenizers.py \
    %D%/train_demo.py
EXTRA_DIST += %D%/reference/README.md %D%/reference/common.py %D%/reference/attention.py %D%/reference/gqa.py %D%/reference/quest.py \
    %D%/reference/fier.py %D%/reference/paris.py %D%/reference/actqkv.py %D%/reference/h2o.py \
    %D%/reference/snapkv.py %D%/reference/tova.py %D%/reference/kivi.py %D%/reference/logquant.py
EXTRA_DIST += %D%/bench_compare %D%/gpu_check %D%/gpu_peer.py %D%/gpu_table %D%/scaling %D%/fetch_data %D%/report %D%/report_pictures.pl %D%/report_speed.pl
