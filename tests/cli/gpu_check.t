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
refused_by gpu 1 "no CUDA device: nvidia-smi: NVIDIA-SMI has failed" "without a GPU" --out "$tmp/none"
check "nothing is made" test ! -e "$tmp/none"
refused_by gpu 1 "no program 'run' in this folder" "a build that is not there" ops --out "$tmp/none" --prebuilt "$tmp/nowhere"
refused_by gpu 2 "unknown option or stage 'tset'" "an unknown stage" tset
refused_by gpu 2 "--out: a value is expected" "an option without its value" --out
refused_by gpu 2 "a number from 1 to 9" "more time than a stage has" --minutes 10
refused_by gpu 2 "pack requires --prebuilt DIR" "pack without a place" pack
refused_by gpu 2 "a name that ends in .tar.xz" "a pack of another kind" pack --prebuilt "$tmp/there" -o pack.zip
gpu pack --prebuilt "$tmp/there" --build "$tmp/nowhere"
is_refusal 1 "/nowhere/run does not exist; run stage build first" "a pack of nothing"
gpu --help
check "--help" test "$status" -eq 0 -a ! -s "$tmp/err"

# ---- the plan ----

gpu --dry-run
check "a plan needs no GPU" test "$status" -eq 0 -a ! -s "$tmp/err"
check "the build, then the first calls, in their order" test "$(grep '^#' "$tmp/out" | tr -d '\n')" = \
    "# build# library# ops# memcheck# decode# profile# racecheck# kernel# far# texts# prompt# tier# peer# every"
check "every step has a limit within the stage's time" sh -c \
    "grep -v '^#' '$tmp/out' | awk '\$2 != \"s,\" || \$1 < 1 || \$1 > 540 { bad = 1 } END { exit bad || NR < 40 }'"
out_has "ncu --clock-control none --kernel-name regex:gemv" "products in detail"
# shellcheck disable=SC2016
out_has '--with-cuda --with-cuda-arch=$capability' "configured for the card"
out_has "--tool racecheck --error-exitcode 86" "races"
for c in 16 1k 128k; do check "decode at $c" grep -qE -- "--phase decode --fill --ctx $c " "$tmp/out"; done
for c in 512 2048; do check "prompts in chunks of $c" grep -qE -- "--phase prefill --ctx 8k --chunk $c " "$tmp/out"; done
check "rows on the host" grep -qE -- "--ctx 128k --kv-tier host --attn fier" "$tmp/out"
# shellcheck disable=SC2016
out_has 'gpu_peer.py" --device $device --shape llama-3.1-8b' "the peer"
"$RUN" --help-attn list | sed -n 's/^  \([a-z0-9][a-z0-9]*\) .*/\1/p' | grep -vxE 'all|auto' >"$tmp/attn"
check "a text of every strategy of the program" test \
    "$(sed -n 's/.*, text-\([a-z0-9]*\):.*/\1/p' "$tmp/out" | grep -vxE 'tp|kv' | sort | tr '\n' ' ')" = "$(sort "$tmp/attn" | tr '\n' ' ')"
mkfifo "$tmp/fifo"
check "a dry run ends if nobody reads its output" sh -c "timeout 60 sh '$SRCDIR/scripts/gpu_check' --dry-run first --out '$tmp/closed' >'$tmp/fifo' & \
    head -n 1 <'$tmp/fifo' && wait \$! ; test \$? -ne 124"
gpu --dry-run first
check "ten minutes on a card that is not there" test "$(grep -c '^#' "$tmp/out")" -eq 5

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
generate*tova*cuda* | generate*--attn\ kivi\ *cuda*) echo "a test"; exit ;;
generate*--attn\ infllm\ *) echo "infllm: budget 640 is too small" >&2; exit 1 ;;
generate*snapkv*) exit ;;
generate*-n\ 1) cat "$tmp/library" >&2; exit ;;
generate*) echo "a text"; exit ;;
esac
bad=\$(cat "$tmp/bad")
case "\$*" in *"--attn \$bad"*) echo "run: a fault of \$bad" >&2; exit 1 ;; esac
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
out_has "library: failed: status 1: cuda:0: cublasLt was not found" "without cublasLt all that is measured is slow"
echo "on cuda:0 (NVIDIA Test 9000)" >"$tmp/library"
gpu library --prebuilt "$pre" --out "$o"
out_has "library: failed: status 1: cublasLt is not in use" "without a word of it too"
echo "on cuda:0 (NVIDIA Test 9000, cublasLt 13.1 without batches)" >"$tmp/library"
gpu library --prebuilt "$pre" --out "$o"
out_has "library: passed: cublasLt 13.1 without batches" "with it, but for several products at once"
rm "$o/library.passed"
echo "on cuda:0 (NVIDIA Test 9000, cublasLt 13.1)" >"$tmp/library"
gpu library --prebuilt "$pre" --out "$o"
out_has "library: passed: cublasLt 13.1" "with it"
check "all is well" test "$status" -eq 0
gpu build ops texts --prebuilt "$pre" --out "$o" --results "$tmp/all.tar.gz"
check "a text that differs is a failure" test "$status" -eq 1
out_has "build: skipped, using $pre" "a finished build"
out_has "device_ops: passed: 2 ok of 2, 1 skipped" "tests are counted"
out_has "text-full: passed: as on the CPU" "the CPU's text"
out_has "text-infllm: passed: as on the CPU" "a strategy whose usual parts exceed the budget"
out_has "text-snapkv: failed: status 1: printed nothing" "no text is no result"
check "and another one" grep -q '^text-tova: failed: status 1: .*differ' "$tmp/out"
out_has "text-kivi: passed: differs, as rounding may" "a text that rounding may change is reported"
out_has "text-tp-1: passed: as on the CPU" "ranks, too"
check "all results are one file" test "$(tar tzf "$tmp/all.tar.gz" | grep -c '^results/\(log\|device_ops.passed\|system.json\)$')" -eq 3
out_has "gpu_check: 2 failed, 0 cut" "a count"
sed -i '/^generate\*snapkv/d' "$pre/run"
sed -i 's/^generate\*tova\*cuda. |/xxx |/' "$pre/run"
: >"$tmp/calls"
gpu ops texts --prebuilt "$pre" --out "$o"
check "all is well again" test "$status" -eq 0
check "what passed is not run again" test "$(grep -c generate "$tmp/calls")" -eq 4 -a "$(grep -c tova "$tmp/calls")" -eq 2
printf 'ok 1 - a\n1..2\n' >"$tmp/taps/device_attn"
gpu ops --prebuilt "$pre" --out "$o"
out_has "device_attn: failed: 1 ok of 2" "a test that ends early"
printf 'not ok 1 - a sum\n1..1\n' >"$tmp/taps/device_attn"
gpu ops --prebuilt "$pre" --out "$o"
out_has "device_attn: failed: status 1: not ok 1 - a sum" "a test that fails"
printf '1..0 # SKIP no usable GPU\n' >"$tmp/taps/device_attn"
gpu ops --prebuilt "$pre" --out "$o"
out_has "device_attn: failed: 0 ok of 0, 0 skipped 1..0 # SKIP no usable GPU" "where there is a card, no test may skip itself"
rm "$tmp/taps/device_attn" "$o"/device_attn.*
gpu memcheck --prebuilt "$pre" --out "$o"
out_has "memcheck-full: skipped: compute-sanitizer is not installed" "without the sanitizer"
program "$bin/compute-sanitizer" <<END
#!/bin/sh
echo "\${KVASIR_NO_CUBLASLT-} \${THIN-} \$*" >>"$tmp/calls"
case "\$*" in *racecheck*"--attn full"*) echo "========= ERROR SUMMARY: 3 errors"; exit 86 ;; esac
echo "========= ERROR SUMMARY: 0 errors"
END
: >"$tmp/calls"
gpu memcheck racecheck --prebuilt "$pre" --out "$o"
out_has "memcheck-device_ops: passed: ========= ERROR SUMMARY: 0 errors" "sanitize: no error"
out_has "racecheck-full: failed: ========= ERROR SUMMARY: 3 errors" "sanitize: errors"
check "without cublasLt and with fewer cases" test "$(grep -c '^1 1 --tool' "$tmp/calls")" -eq 8
: >"$tmp/calls"
gpu racecheck --prebuilt "$pre" --out "$o"
check "only what failed" test "$(grep -c racecheck "$tmp/calls")" -eq 1
rm "$o"/*.failed

bench="kernel decode far prompt tier peer"
# shellcheck disable=SC2086
gpu $bench --prebuilt "$pre" --out "$o"
check "a strategy that fails is a failure" test "$status" -eq 1
out_has "decode-1k-fier: failed: status 1: run: a fault of fier" "and says why"
check "the others run" test -e "$o/decode-1k-quest.json" -a ! -e "$o/decode-1k-fier.json"
out_has "peer: skipped: no torch with access to the GPU" "no PyTorch"
out_has "card NVIDIA Test 9000, driver 999.1" "the table names the card"
check "a row of the table" grep -qE '^decode +tiny +device +f16 +1k +8 +quest +64 +11911\.4 +0\.672 +0\.1 +- +- +- +1\.41 +2\.0 +0\.9 +1\.5 +0\.7 +1\.3$' "$tmp/out"
check "prompts" grep -qE '^prefill +tiny +device +f16 +1k +1 +full +- +89772\.4\? +- +- +- +- +- +1\.00' "$tmp/out"
check "single kernels" grep -qE '^decode attention +tiny +1k +64 +15\.9469' "$tmp/out"
check "what was left out, with its reason" grep -qE '^decode .* actqkv +64 +actqkv: budget 64 is too small' "$tmp/out"
check "what failed" grep -qE '^decode-128k-fier +status 1: run: a fault of fier$' "$tmp/out"
check "and those of launches that wait" grep -qE '^decode +tiny +alone +f16 ' "$tmp/out"
check "rows on the host are their own" grep -qE '^decode +tiny +host +f16 ' "$tmp/out"
cp "$tmp/out" "$tmp/first"
gpu table --out "$o"
check "the table alone" test "$status" -eq 0 -a "$(grep -c tiny "$tmp/out")" -eq "$(grep -c tiny "$tmp/first")"
echo none >"$tmp/bad"
: >"$tmp/calls"
# shellcheck disable=SC2086
gpu $bench --prebuilt "$pre" --out "$o"
check "what was measured is not measured again" test "$status" -eq 0 -a "$(grep -c -- --json "$tmp/calls")" -eq 3

# Each look at the clock adds ten seconds: the stage is cut, and the next call continues it.
rm -rf "$o"
program "$bin/date" <<END
#!/bin/sh
case "\$*" in +%s) ;; *) echo 2026-01-01; exit ;; esac
t=\$(cat "$tmp/clock" 2>/dev/null || echo 1000)
echo \$((t + 10)) >"$tmp/clock"
echo \$t
END
gpu far prompt --minutes 1 --prebuilt "$pre" --out "$o"
check "each stage has its own time" test "$status" -eq 0
gpu third --minutes 1 --prebuilt "$pre" --out "$o"
check "no time is left" test "$status" -eq 1
out_has ": cut: the time of the stage is up" "a group shares one"
check "some were measured" test -e "$o/host-128k-full.json" -a ! -e "$o/every-device_ops.passed"
rm "$bin/date"
gpu far third --prebuilt "$pre" --out "$o"
check "the next call continues" test "$status" -eq 0 -a -e "$o/every-device_ops.passed"

# A command that takes too long, and a broken file.
rm -rf "$o"
program "$bin/timeout" <<'END'
#!/bin/sh
case "$*" in
*memcheck*"--attn quest"*) echo "========= Invalid __global__ read of size 4"; exit 124 ;;
*memcheck*"--attn fier"*) echo "========= COMPUTE-SANITIZER"; exit 124 ;;
*--phase\ prefill* | *"--attn quest --kv f32 --device"*) exit 124 ;;
esac
shift 3
exec "$@"
END
gpu prompt texts memcheck --prebuilt "$pre" --out "$o"
out_has "prefill-8k-512: failed: took longer than its limit" "what takes too long"
out_has "text-quest: failed: took longer than its limit" "a text too"
out_has "memcheck-quest: failed: stopped after: Invalid __global__ read of size 4" "errors before the limit count"
out_has "memcheck-fier: passed: stopped at its limit, no error so far" "no error before it"
rm "$bin/timeout"
echo '{"results": [{"model": 1}]}' >"$o/decode-broken.json"
gpu table --out "$o"
check "a report that is none" test "$status" -eq 1
err_has "gpu_table: $o/decode-broken.json: a row without" "and says which"
mv "$pre/tests/cuda/devices" "$tmp/devices"
gpu ops --prebuilt "$pre" --out "$tmp/empty"
check "no tests are a failure" grep -q '^device_ops: failed: status 127' "$tmp/out"

# ---- the command for a machine without our packages ----

sed -n '/^\*\*One command\*\*/,/^[A-Z]/s/^    //p' "$SRCDIR/kernels/cuda/README.md" >"$tmp/command"
check "it has at most 2,000 characters" test -s "$tmp/command" -a "$(wc -c <"$tmp/command")" -le 2000
pack="$tmp/kvasir-gpu"
mkdir -p "$pack/tests/data/text" "$pack/scripts/lib"
cp "$SRCDIR/scripts/gpu_check" "$pre/run" "$tmp/devices" "$pack"
cp "$SRCDIR/scripts/lib/gpu_table" "$pack/scripts/lib"
cp "$SRCDIR/tests/data/text/pioneer_days.txt" "$pack/tests/data/text"
if command -v xz >/dev/null; then
    mkdir "$tmp/there" "$tmp/there/out" "$tmp/there/tmp"
    tar -C "$tmp" -cJf "$tmp/there/kvasir-gpu.tar.xz" kvasir-gpu
    program "$bin/timeout" <<END
#!/bin/sh
echo "\$3 \$4" >>"$tmp/limits"
shift 3
exec "\$@"
END
    there() { (cd "$tmp/there" && OUT="$tmp/there/out" TMPDIR="$tmp/there/tmp" ran sh "$tmp/command"; echo "$status" >"$tmp/status"); }
    there
    check "it ends well" test "$(cat "$tmp/status")" -eq 0
    out_has "gpu_check: all passed" "its end is shown"
    # shellcheck disable=SC2016
    check "it has a limit below ten minutes" awk 'NR == 1 && $2 ~ /gpu_check$/ && $1 > 0 && $1 < 600 { good = 1 } END { exit !good }' "$tmp/limits"
    check "results in the folder that is kept" test "$(tar tzf "$tmp/there/out/first.tar.gz" | grep -c '/\(decode-16.json\|device_ops.passed\|memcheck-full.passed\)$')" -eq 3
    check "and nothing else is left" test "$(ls "$tmp/there/out")" = "$(printf 'first.tar.gz\nfirst.txt')" -a -z "$(ls "$tmp/there/tmp")"
    printf '#!/bin/sh\nexit 9\n' | program "$bin/nvidia-smi"
    there
    check "without a card it fails" test "$(cat "$tmp/status")" -eq 1
    out_has "gpu_check: no CUDA device" "and says why"
    rm "$bin/timeout"
else
    skip "xz is not installed"
fi
finish
