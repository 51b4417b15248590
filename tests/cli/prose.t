# SPDX-License-Identifier: MIT
# Words and openers that CONTRIBUTING.md rules out, in comments, messages, help and documents.
. "$SRCDIR/tests/cli/lib.sh"
perl -e 1 2>/dev/null || skip_all "perl is missing"
git -C "$SRCDIR" ls-files --error-unmatch README.md >/dev/null 2>&1 || skip_all "not a git checkout"

prose() { SRCDIR=$SRCDIR perl "$SRCDIR/scripts/dev/check_prose" "$@" >"$tmp/out" 2>&1; }
printf '/* Returns a, behind a reverse proxy. */\nint a;\n' >"$tmp/good.h"
printf '/* %s it is. */\nint a; /* the file that %s\n * on */\nconst char *b = "%s b";\n' Whether goes behind >"$tmp/bad.h"
check "plain sentences are accepted" prose "$tmp/good.h"
prose "$tmp/bad.h"
check "an opener, a phrase on two lines and a word in a string are found" test "$(grep -c 'bad.h:' "$tmp/out")" -eq 3
check "all tracked files" prose
grep '^# ' "$tmp/out" | head -40
finish
