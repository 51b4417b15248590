# SPDX-License-Identifier: MIT
# scripts/bench_compare: reports whose samples are known, what it says of them, and bad input.
. "$SRCDIR/tests/cli/lib.sh"
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 1 2>/dev/null || skip_all "python3 is missing"
perl -MJSON::PP -e 1 2>/dev/null || skip_all "perl with its core modules is missing"

# report FILE THREADS ROW...: a row is CTX SPEED READ ENOUGH [SPREAD]: 20 samples around SPEED, within SPREAD of it.
report() {
    perl -MJSON::PP -e '
        my ($threads, @rows) = @ARGV;
        my @results = map {
            my ($ctx, $speed, $read, $enough, $spread) = split;
            $spread //= 0.01;
            my @s = map { $speed * (1 + $spread * ($_ - 9.5) / 9.5) } 0 .. 19;
            { model => "small", weights => "bf16", phase => "decode", attn => "full", budget => undef, ctx => $ctx + 0,
              batch => 1, kv => "f16", tokens_per_s => $speed + 0, spread => $spread + 0, read_gbps => $read + 0,
              limit_share => 0.5, samples => { enough => $enough ? JSON::PP::true : JSON::PP::false, taken => 20,
              tokens_per_s => \@s, read_gbps => [($read + 0) x 20], limit_gbps => [($read + 0) x 20] } };
        } @rows;
        print JSON::PP->new->canonical->encode({ command => "bench", version => "1", device => "cpu", cpu => "x",
            threads => $threads + 0, options => {}, results => \@results });' "$2" "$3" ${4:+"$4"} ${5:+"$5"} ${6:+"$6"} >"$1"
}
compare() { ran "$PYTHON" "$SRCDIR/scripts/bench_compare" "$@"; } # compare ARGS...: as run of lib.sh
wrong() { refused_by compare "$@"; } # wrong STATUS TEXT NAME ARGS...: as refused of lib.sh
# says CTX TEXT NAME: the row at this context ends so.
says() { check "$3" grep -qE "^decode full +f16 +$1 .* $2\$" "$tmp/out"; }

a="$tmp/a.json" b="$tmp/b.json"
report "$a" 2 "0 100 45 1" "1024 100 45 1" "2048 100 45 1 0.4" "4096 100 45 1"
report "$b" 2 "0 110 45 1" "1024 90 46 1" "2048 101 45 1 0.4" "4096 100.5 45 1"
compare "$a" "$b"
check "a comparison" test "$status" -eq 0 -a ! -s "$tmp/err"
says 0 faster "a tenth more, with narrow samples"
says 1024 slower "a tenth less"
says 2048 unclear "wide samples: noise is not called a change"
says 4096 same "half a percent, with narrow samples"
out_has "1.100" "the ratio of medians"
out_has "1 faster, 1 slower, 1 same, 1 unclear" "a count"
cp "$tmp/out" "$tmp/first"
compare "$a" "$b"
check "the same files give the same intervals" cmp "$tmp/out" "$tmp/first"
compare --threshold 15 "$a" "$b"
says 0 same "a change below the threshold is none"
compare --check "$a" "$b"
check "--check: a slower row is status 1" test "$status" -eq 1
compare --check "$b" "$b"
check "--check: nothing changed" test "$status" -eq 0

# Twice the speed at twice the bandwidth: the machine changed, not the program.
report "$a" 2 "0 100 45 1" "1024 100 45 1"
report "$b" 2 "0 200 90 1" "1024 150 90 1"
compare "$a" "$b"
says 0 same "another state of the memory: shares are compared"
says 1024 slower "and tell that it lost"
out_has "1.000*" "which is marked"
out_has "memory bandwidth differs" "and explained"

report "$b" 1 "0 100 45 0" "8192 100 45 1"
compare "$a" "$b"
says 0 - "too few samples: not judged"
err_has "threads differs: 2 in $a, 1 in $b" "other conditions are reported"
out_has "rows only in $a: 1" "rows of one file are counted"
compare --check "$a" "$b"
check "--check: a missing row, and none judged" test "$status" -eq 1
perl -pi -e 's/"samples":\{[^}]*\},//g' "$b"
compare "$a" "$b"
says 0 - "a report without samples is not judged"

report "$b" 2 "9 100 45 1"
wrong 1 "no row in common" "nothing to compare" "$a" "$b"
wrong 2 "two files" "one file" "$a"
wrong 2 "--threshold 100" "a threshold beyond all" --threshold 100 "$a" "$a"
wrong 1 "No such file" "no file" "$a" "$tmp/none.json"
wrong 1 "is a folder" "a folder" "$a" "$tmp"
bad() { # bad TEXT NAME CONTENT
    printf '%s' "$3" >"$tmp/bad.json"
    wrong 1 "$1" "$2" "$a" "$tmp/bad.json"
}
bad "not valid JSON" "no JSON" '{"command":'
bad "not valid JSON" "an empty file" ''
bad "not a report of bench" "another report" '{"command":"passkey","results":[]}'
bad "not a report of bench" "a list" '[1]'
bad "'results' is missing" "no results" '{"command":"bench"}'
bad "no results" "empty results" '{"command":"bench","results":[]}'
bad "results[0]: not an object" "a result that is none" '{"command":"bench","results":[7]}'
bad "results[0]: 'weights' is null" "a row without its key" '{"command":"bench","results":[{"model":"x"}]}'
row='"model":"x","weights":"bf16","phase":"decode","attn":"full","budget":null,"ctx":0,"batch":1,"kv":"f16"'
bad "'tokens_per_s' is \"fast\", expected a number" "a speed that is none" "{\"command\":\"bench\",\"results\":[{$row,\"tokens_per_s\":\"fast\"}]}"
bad "'tokens_per_s' is 0, expected" "a speed of 0" "{\"command\":\"bench\",\"results\":[{$row,\"tokens_per_s\":0}]}"
bad "'samples' is 3, expected an object" "samples that are none" "{\"command\":\"bench\",\"results\":[{$row,\"tokens_per_s\":1,\"samples\":3}]}"
bad "'tokens_per_s' is [1,\"x\"]" "a sample that is none" "{\"command\":\"bench\",\"results\":[{$row,\"tokens_per_s\":1,\"samples\":{\"tokens_per_s\":[1,\"x\"]}}]}"
bad "the same row as" "a row twice" "{\"command\":\"bench\",\"results\":[{$row,\"tokens_per_s\":1},{$row,\"tokens_per_s\":1}]}"
compare --help
out_has "Usage: scripts/bench_compare" "--help"

# Reads the reports that bench writes.
run bench --shape tiny --phase decode --ctx 0,64 --threads 1 --samples 3 --quiet --json "$a"
compare "$a" "$a"
check "reports of bench" test "$status" -eq 0
out_has "decode full  f16   64" "their rows"
finish
