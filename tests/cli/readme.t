# SPDX-License-Identifier: MIT
# The size of README.md, and its commands and those of doc/usage.md on the built-in model. Skips commands that need the
# user's data, a long time (bench, passkey), a downloaded model (results.t), a terminal (chat), a client (serve), MPI (mpi.t runs those) or a GPU.
. "$SRCDIR/tests/cli/lib.sh"
run tokenize
grep -q 'built without SentencePiece' "$tmp/err" && skip_all "the built-in model needs SentencePiece"
cd "$tmp" || exit 1
HOME=$tmp # where stores of prompts go
export HOME
check "README.md has at most 80 lines" test "$(wc -l <"$SRCDIR/README.md")" -le 80
check "of at most 80 columns" test -z "$(awk 'length > 80' "$SRCDIR/README.md")"
sed -n 's/^    \(\$ \)\{0,1\}\(.*\.\/run .*\)$/\2/p' "$SRCDIR/README.md" "$SRCDIR/doc/usage.md" |
    sed 's/ *#.*//' | awk '!seen[$0]++' | grep -vE 'run bench|passkey|chat|smollm2|run serve|--data|--squad|mpirun|cuda' >commands
check "they have commands" test "$(wc -l <commands)" -ge 12
while read -r line; do
    line=$(echo "$line" | sed "s#\./run#\"\$RUN\"#; s# DIR# \"\$SRCDIR/model/demo\"#; s# TEXT# \"\$SRCDIR/README.md\"#")
    if sh -c "$line" >"$tmp/out" 2>"$tmp/err" </dev/null; then pass "$line"; else fail "$line"; show; fi
done <commands
finish
