# SPDX-License-Identifier: MIT
# scripts/gpu_check without a GPU: what it says, its plan, and its whole flow with a card, a build and results that are
# not real: nvidia-smi, the program and the tests are small scripts here.
. "$SRCDIR/tests/cli/lib.sh"
perl -MJSON::PP -e 1 2>/dev/null || skip_all "perl with its core modules is not there"
data="$SRCDIR/tests/data/gpu_check"
bin="$tmp/bin" pre="$tmp/prebuilt"
mkdir -p "$bin" "$pre/tests/cuda"
PATH="$bin:$PATH"
gpu() { ran "$SRCDIR/scripts/gpu_check" "$@"; } # gpu ARGS...: as run of lib.sh
program() { cat >"$1"; chmod +x "$1"; }

# ---- usage, no card ----

program "$bin/nvidia-smi" <<'END'
#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
exit 9
END
refused_by gpu 1 "no CUDA device: nvidia-smi -i 0: NVIDIA-SMI has failed" "without a GPU" --out "$tmp/none"
check "nothing is made" test ! -e "$tmp/none"
printf '#!/bin/sh\necho kvasir 1.2.3\n' | program "$pre/run"
gpu --out "$tmp/none" --prebuilt "$pre"
is_refusal 1 "(the program reports: kvasir 1.2.3)" "a pack says whether its program starts"
refused_by gpu 1 "no program 'run' in this folder" "a build that is not there" test --out "$tmp/none" --prebuilt "$tmp/nowhere"
refused_by gpu 2 "unknown option or stage 'tset'" "an unknown stage" tset
refused_by gpu 2 "--out: a value is expected" "an option without its value" --out
refused_by gpu 2 "a number from 1 to 9" "more time than a stage has" --minutes 10
refused_by gpu 2 "--device x" "a device that is no number" --device x
refused_by gpu 2 "pack requires --prebuilt DIR" "pack without a place" pack
refused_by gpu 2 "--tool memchek" "a tool that is none" sanitize --tool memchek
refused_by gpu 2 "a name that ends in .tar.xz" "a pack of another kind" pack --prebuilt "$tmp/there" -o pack.zip
gpu pack --prebuilt "$tmp/there" --build "$tmp/nowhere"
is_refusal 1 "/nowhere/run does not exist; run stage build first" "a pack of nothing"
gpu --help
check "--help" test "$status" -eq 0 -a ! -s "$tmp/err"

# ---- the plan ----

gpu --dry-run first second third
check "the first calls, in their order" test "$(grep '^#' "$tmp/out" | tr -d '\n')" = \
    "# library# ops# memcheck# decode# profile# racecheck# kernel# far# texts# prompt# tier# peer"
out_has "ncu --clock-control none --kernel-name regex:gemv" "products in detail"
gpu --dry-run bench
check "bench: one shape, four strategies, one budget" sh -c \
    "! grep -e '--phase' '$tmp/out' | grep -vE -- '--shape llama-3.1-8b .*--budget 1024 .*--attn (full|full,quest,fier,pariskv) --device cuda:0'"
for c in 16 1k 128k; do check "bench: decode at $c" grep -qE -- "--phase decode --fill --ctx $c --" "$tmp/out"; done
for c in 512 2048; do check "bench: prompts in chunks of $c" grep -qE -- "--phase prefill --ctx 8k --chunk $c --" "$tmp/out"; done
gpu --dry-run build library test sanitize rows --host-gb 100
check "a plan needs no GPU" test "$status" -eq 0 -a ! -s "$tmp/err"
check "stages in their order" test "$(grep '^#' "$tmp/out" | tr -d '\n')" = "# build# library# test# sanitize# rows"
check "every command has a limit within the stage's time" sh -c \
    "grep -v '^#' '$tmp/out' | grep -vE '^(build: |perl )' | awk '\$1 != \"timeout\" || \$2 < 1 || \$2 > 540 { bad = 1 } END { exit bad || NR < 40 }'"
out_has "--with-cuda --with-cuda-arch=ARCH" "configured for the card"
out_has "generate -m $(cd "$SRCDIR" && pwd)/model/demo" "texts"
out_has "--tool racecheck --error-exitcode 86" "races"
for c in 1k 32k 128k 512k; do
    check "decode at $c" grep -qE -- "--shape llama-3.1-8b .* --phase decode --fill --ctx $c --budget 512,1024,2048 --batch 1,8 --attn all --device cuda:0" "$tmp/out"
done
for c in 1k 8k 32k 128k; do
    check "prefill at $c" grep -qE -- "--shape qwen3-8b .* --phase prefill --ctx $c .* --attn all" "$tmp/out"
done
check "rows on the host, as far as f16 fits there" grep -qE -- "--shape llama-3.1-8b .* --ctx 512k .* --kv f16 --kv-tier host" "$tmp/out"
check "and in 4 bits beyond" grep -qE -- "--shape llama-3.1-8b .* --ctx 1M .* --kv kivi4 --kv-tier host" "$tmp/out"
out_has "gpu_peer.py --device cuda:0" "the peer"
gpu --dry-run sanitize
check "a stage alone" test "$(grep -c '^#' "$tmp/out")" -eq 1
check "the program's list of strategies is the script's" test \
    "$("$RUN" --help-attn list | sed -n 's/^  \([a-z0-9][a-z0-9]*\) .*/\1/p' | grep -vxE 'all|auto' | tr '\n' ' ')" = \
    "$(sed -n "s/^strategies='\(.*\)'\$/\1/p" "$SRCDIR/scripts/gpu_check") "

# ---- a card ----

program "$bin/nvidia-smi" <<'END'
#!/bin/sh
echo "NVIDIA Test 9000, 9.0, 999.1, 1000"
END
program "$bin/python3" <<'END'
#!/bin/sh
exit 1
END
# Answers as the program does; $tmp/bad names a strategy that fails, calls are counted.
program "$pre/run" <<END
#!/bin/sh
echo "\$*" >>"$tmp/calls"
case "\$*" in
*--attn*h2o*cuda*) echo "run: h2o: does not run on cuda:0 yet (missing operations: evict)" >&2; exit 1 ;;
generate*tova*cuda* | generate*--attn\ kivi\ *cuda*) echo "a test"; exit ;;
generate*--attn\ infllm\ *) echo "infllm: budget 640 is too small" >&2; exit 1 ;;
generate*snapkv*) exit ;;
generate*-n\ 1\ *) cat "$tmp/library" >&2; exit ;;
generate*) echo "a text"; exit ;;
passkey*cpu*) echo "full  -  4/4  100 %  12.5 MB"; exit ;;
passkey*) echo "full  -  4/4  100 %  12.9 MB"; exit ;;
esac
bad=\$(cat "$tmp/bad")
case "\$*" in *"--attn \$bad"* | *--phase\ decode*--attn\ all*) echo "run: a fault of \$bad" >&2; exit 1 ;; esac
kind=decode
case "\$*" in *--phase\ prefill*) kind=prefill ;; *--phase\ kernel*) kind=kernel ;; esac
while [ \$# -gt 1 ]; do shift; [ "\$1" != --json ] || cp "$data/\$kind.json" "\$2"; done
END
echo fier >"$tmp/bad"
# The tests, one program: what each says is a file; its calls are counted.
program "$pre/tests/cuda/devices" <<END
#!/bin/sh
[ \$# -gt 0 ] || { cd "$tmp/taps" && ls; exit; }
echo "\$1" >>"$tmp/calls"
cat "$tmp/taps/\$1"
! grep -q '^not ok' "$tmp/taps/\$1"
END
mkdir "$tmp/taps"
printf 'ok 1 - a\nok 2 # SKIP b\n1..2\n' >"$tmp/taps/device_ops"
o="$tmp/results"

echo "cuda:0: cublasLt was not found: prompts are computed 8 rows at a time" >"$tmp/library"
gpu library --prebuilt "$pre" --out "$o"
out_has "library: FAILED: cublasLt is not in use: cuda:0: cublasLt was not found" "without cublasLt all that is measured is slow"
echo "on cuda:0 (NVIDIA Test 9000, cublasLt 13.1)" >"$tmp/library"
gpu library --prebuilt "$pre" --out "$o"
out_has "library: cublasLt 13.1 is in use" "with it"
gpu build test --prebuilt "$pre" --out "$o" --results "$tmp/all.tar.gz"
check "a text that differs is a failure" test "$status" -eq 1
out_has "test device_ops: 2 ok, 1 skipped" "tests are counted"
out_has "generate, full: as on the CPU" "the CPU's text"
out_has "generate, infllm: as on the CPU" "a strategy whose usual parts exceed the budget"
out_has "generate, snapkv: FAILED: printed nothing" "no text is no result"
out_has "generate, tova: FAILED: differs from the CPU's" "and another one"
out_has "generate, kivi: differs from byte 5 on, as rounding may" "a text that rounding may change is reported"
check "all results are one file" test "$(tar tzf "$tmp/all.tar.gz" | grep -c '^results/\(log\|test.jsonl\|system.json\)$')" -eq 2
out_has "generate, h2o: skipped, run: h2o: does not run on cuda:0 yet" "what the backend lacks is skipped"
out_has "generate --tp 1: as on the CPU" "ranks, too"
out_has "passkey, full: as on the CPU" "passkeys: what was found counts, not bytes"
out_has "gpu_check: 2 failed, 0 cut" "a count"
sed -i '/^generate\*snapkv/d' "$pre/run"
sed -i 's/^generate\*tova\*cuda. |/xxx |/' "$pre/run"
: >"$tmp/calls"
gpu test --prebuilt "$pre" --out "$o"
check "all is well" test "$status" -eq 0
check "what passed is not run again" test "$(wc -l <"$tmp/calls")" -eq 4 -a "$(grep -c tova "$tmp/calls")" -eq 2
printf 'ok 1 - a\n1..2\n' >"$tmp/taps/device_attn"
gpu test --prebuilt "$pre" --out "$o"
out_has "test device_attn: FAILED: 1 ok, 0 not ok of 2" "a test that ends early"
printf 'not ok 1 - a sum\n1..1\n' >"$tmp/taps/device_attn"
gpu test --prebuilt "$pre" --out "$o"
out_has "test device_attn: FAILED: 0 ok, 1 not ok of 1, status 1: not ok 1 - a sum" "a test that fails"
printf '1..0 # SKIP no usable GPU\n' >"$tmp/taps/device_attn"
gpu test --prebuilt "$pre" --out "$o"
out_has "test device_attn: FAILED: skipped itself: 1..0 # SKIP no usable GPU" "where there is a card, no test may skip itself"
rm "$tmp/taps/device_attn"
program "$bin/compute-sanitizer" <<'END'
#!/bin/sh
case "$*" in *racecheck*"--attn full"*) echo "========= ERROR SUMMARY: 3 errors"; exit 86 ;; esac
echo "========= ERROR SUMMARY: 0 errors"
END
gpu sanitize --prebuilt "$pre" --out "$o"
out_has "memcheck device_ops: ERROR SUMMARY: 0 errors" "sanitize: no error"
out_has "racecheck generate full: FAILED: ERROR SUMMARY: 3 errors" "sanitize: errors"
gpu sanitize --tool racecheck --prebuilt "$pre" --out "$o"
check "a tool alone, and only what failed" test "$(grep -c check "$tmp/out")" -eq 3 -a "$(grep -c 'racecheck generate' "$tmp/out")" -eq 1
check "whole models first" test "$(grep -o '"test": "[^"]*' "$o/sanitize.jsonl" | head -n 1)" = '"test": "memcheck generate full'

: >"$tmp/calls"
gpu rows --prebuilt "$pre" --out "$o" --shape llama-3.1-8b --host-gb 100
check "bench: a strategy that fails is a failure" test "$status" -eq 1
out_has "bench decode-llama-3.1-8b-1k: run: a fault of fier" "all together fail"
check "then each runs alone" test -e "$o/decode-llama-3.1-8b-1k.quest.json" -a -e "$o/decode-llama-3.1-8b-1k.fier.failed"
out_has "bench peer: skipped" "no PyTorch"
out_has "card NVIDIA Test 9000, driver 999.1" "the table names the card"
check "a row of the table" grep -qE '^decode +tiny +device +f16 +1k +8 +quest +64 +11911\.4 +0\.672 +0\.1 +- +- +- +1\.41 +2\.0 +0\.9 +1\.5 +0\.7 +1\.3$' "$tmp/out"
check "prompts" grep -qE '^prefill +tiny +device +f16 +1k +1 +full +- +89772\.4\? +- +- +- +- +- +1\.00' "$tmp/out"
check "single kernels" grep -qE '^decode attention +tiny +1k +64 +15\.9469' "$tmp/out"
check "what was left out, with its reason" grep -qE '^decode .* actqkv +64 +actqkv: budget 64 is too small' "$tmp/out"
check "what failed" grep -qE '^decode-llama-3.1-8b-32k.fier +run: a fault of fier$' "$tmp/out"
cp "$tmp/out" "$tmp/first"
gpu table --out "$o"
check "the table alone" test "$status" -eq 0 -a "$(grep -c tiny "$tmp/out")" -eq "$(grep -c tiny "$tmp/first")"
: >"$tmp/calls"
gpu rows --prebuilt "$pre" --out "$o" --shape llama-3.1-8b --host-gb 100
check "what was measured is not measured again" test "$(grep -c -- --json "$tmp/calls")" -eq 0

# Each look at the clock adds ten seconds: the stage is cut, and the next call continues it.
rm -rf "$o"
program "$bin/date" <<END
#!/bin/sh
case "\$*" in +%s) ;; *) echo 2026-01-01; exit ;; esac
t=\$(cat "$tmp/clock" 2>/dev/null || echo 1000)
echo \$((t + 10)) >"$tmp/clock"
echo \$t
END
gpu rows --minutes 1 --prebuilt "$pre" --out "$o" --shape llama-3.1-8b
check "no time is left" test "$status" -eq 1
out_has ": cut, the time of the stage is up" "which is said"
check "some were measured" test "$(find "$o" -name '*.json' | wc -l)" -gt 1
rm "$bin/date"
echo none >"$tmp/bad"
sed -i 's/| \*--phase\\ decode\*--attn\\ all\*//' "$pre/run"
before=$(find "$o" -name '*.json' | wc -l)
find "$o" \( -name '*.failed' -o -name '*.split' \) -exec rm {} +
: >"$tmp/calls"
gpu rows --prebuilt "$pre" --out "$o" --shape llama-3.1-8b
check "the next call continues" test "$status" -eq 0 -a "$(find "$o" -name '*.json' | wc -l)" -gt "$before"
check "rows on the host are their own" grep -qE '^decode +tiny +host +f16 ' "$tmp/out"

# A command that takes too long, and a broken file.
rm -rf "$o"
program "$bin/timeout" <<'END'
#!/bin/sh
case "$*" in
*memcheck*"--attn quest"*) echo "========= Invalid __global__ read of size 4"; exit 124 ;;
*memcheck*"--attn fier"*) echo "========= COMPUTE-SANITIZER"; exit 124 ;;
*--phase\ prefill* | *generate*quest*cuda*) exit 124 ;;
esac
shift 3
exec "$@"
END
gpu rows --prebuilt "$pre" --out "$o" --shape llama-3.1-8b
check "what takes too long" grep -qE '^prefill-llama-3.1-8b-8k.quest +took more than 200 s$' "$tmp/out"
gpu test --prebuilt "$pre" --out "$o"
out_has "generate, quest: FAILED: took more than 120 s" "a text too"
gpu memcheck --prebuilt "$pre" --out "$o"
out_has "memcheck generate quest: FAILED: stopped after: Invalid __global__ read of size 4" "errors before the limit count"
out_has "memcheck generate fier: stopped after 120 s: COMPUTE-SANITIZER" "no error before it"
rm "$bin/timeout"
echo '{"results": [{"model": 1}]}' >"$o/decode-broken.json"
gpu table --out "$o"
check "a report that is none" test "$status" -eq 1
out_has "table: FAILED: gpu_table: $o/decode-broken.json: a row without" "and says which"
finish
