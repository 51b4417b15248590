# SPDX-License-Identifier: MIT
# Runs the commands of the README's tour on the built-in model, but those that need a model of the user's
# (DIR) or data of theirs, or long (bench, passkey at 4096), or MPI (mpi.t has those) or a GPU.
. "$SRCDIR/tests/cli/lib.sh"
run tokenize
grep -q 'built without SentencePiece' "$tmp/err" && skip_all "the built-in model needs SentencePiece"
cd "$tmp" || exit 1
sed -n 's/^    \(\$ \)\{0,1\}\(.*\.\/run .*\)$/\2/p' "$SRCDIR/README.md" | sed 's/ *#.*//' | grep -vE 'run bench|passkey|chat|--data|mpirun|cuda' >commands
check "the README has commands" test "$(wc -l <commands)" -ge 4
while read -r line; do
    line=$(echo "$line" | sed "s#\./run#\"\$RUN\"#; s# DIR# \"\$SRCDIR/model/demo\"#")
    if sh -c "$line" >"$tmp/out" 2>"$tmp/err" </dev/null; then pass "$line"; else fail "$line"; show; fi
done <commands
finish
