# SPDX-License-Identifier: MIT
# The commands of doc/results.md and README.md for a real model, on the built-in model with tiny settings.
. "$SRCDIR/tests/cli/lib.sh"
run tokenize
grep -q 'built without SentencePiece' "$tmp/err" && skip_all "the built-in model needs SentencePiece"
cd "$tmp" || exit 1
# Lines that end with a backslash are joined. Budgets fit the prompt of 300 tokens, or bench's 600.
cat "$SRCDIR/doc/results.md" "$SRCDIR/README.md" | sed -e ':a' -e '/\\$/{N;s/\\\n *//;ta' -e '}' >joined
{ grep -E '^    \./run (eval|passkey) .*-m smollm2 ' joined; grep '^    \./run bench .*128k' "$SRCDIR/README.md" joined | tail -1 | sed 's/.*://'; } |
    sed 's/^    //; s/ -m smollm2//; s/ --weights bf16//; s/--ctx 128k/--ctx 600 --samples 3/; s/--ctx [0-9]*\( [^0-9]\)/--ctx 300\1/
        s/ -n [0-9]*/ -n 3/; s/--trials [0-9]*/--trials 1/; s/--budget [0-9,]*/--budget 160/; s/--prompt [0-9]*/--prompt 290/
        s/--shape llama-3.2-1b/--shape tiny/; s/--jobs [0-9]*//; s/--length [0-9]*/--length 1400/; s/--samples 50/--samples 1/
        s/--every [0-9]*/--every 3/; s/--judged [0-9]*/--judged 1/; s/--compare [0-9]*/--compare 3/; s/ --data DIR//; s#--essays #&"$SRCDIR"/#' | awk '!seen[$0]++' >commands
check "there are commands" test "$(wc -l <commands)" -ge 5
while read -r line; do
    if sh -c "$(echo "$line --quiet --threads 1" | sed 's#^\./run#"$RUN"#')" >out 2>err </dev/null; then pass "$line"; else fail "$line"; show; fi
done <commands

# The recording of a terminal.
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 1 2>/dev/null || { skip "python3 is missing"; finish; exit; }
recorded() { ran "$PYTHON" "$SRCDIR/scripts/record" "$@"; }
recorded 'echo "a < b"; echo' 'printf "1\n2\n"'
check "a recording" test "$status" -eq 0 -a "$(grep -c '<text ' "$tmp/out")" -eq 5
check "it is valid XML" "$PYTHON" -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$tmp/out"
check "a command's text is escaped and its line is typed" grep -q 'animation:t .*>\$ echo &quot;a &lt; b&quot;; echo<\|animation:t .*>\$ echo "a &lt; b"; echo<' "$tmp/out"
check "nothing appears after its seconds" awk 'match($0, /[0-9.]+s both/) { if (substr($0, RSTART, RLENGTH) + 0 > 20) bad = 1 } END { exit bad }' "$tmp/out"
recorded --frame 0.1 'echo x'
check "a frame has what has appeared, without animation" test "$(grep -c '<text ' "$tmp/out")" -eq 1 -a "$(grep -c 's both' "$tmp/out")" -eq 0
refused_by recorded 1 "record: exit 3: exit status 3" "a command that fails" 'exit 3'
refused_by recorded 2 "unrecognized arguments: --fast" "an unknown option" --fast
check "the picture in doc is a recording" grep -q '>\$ \./run ' "$SRCDIR/doc/pictures/terminal.svg"
finish
