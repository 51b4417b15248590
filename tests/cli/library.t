# SPDX-License-Identifier: MIT
# libkvasir as others find it: installed, through pkg-config. Its names, and the examples in C11, C17 and C++17.
. "$SRCDIR/tests/cli/lib.sh"
build=$(dirname "$RUN")
[ "$(find "$build" -maxdepth 1 -name 'libkvasir.so.*' | wc -l)" -gt 0 ] || skip_all "built without a shared library"
command -v pkg-config >/dev/null || skip_all "no pkg-config"
export PKG_CONFIG_SYSROOT_DIR="$tmp/root"
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$build" DESTDIR="$tmp/root" install-includeHEADERS install-libkvasirDATA \
    install-pkgconfigDATA install-data-hook >"$tmp/out" 2>"$tmp/err"
check "it is installed" test $? -eq 0
PKG_CONFIG_LIBDIR=$(dirname "$(find "$tmp/root" -name kvasir.pc)")
lib=$(dirname "$PKG_CONFIG_LIBDIR")
export PKG_CONFIG_LIBDIR
check "under three names, next to libkvasir-wait" test -e "$lib/libkvasir.so" -a -e "$lib/libkvasir.so.0" -a "$(find "$lib" -maxdepth 1 -type f | wc -l)" -eq 2
"$RUN" --version | sed 's/.* //' >"$tmp/out"
check "in the program's version" test "$(pkg-config --modversion kvasir)" = "$(cat "$tmp/out")"

# ---- names ----
grep -oE '^KVASIR_API [^(]*\(' "$SRCDIR/api/kvasir.h" | sed 's/($//; s/.*[ *]//' | sort >"$tmp/declared"
nm -D --defined-only "$lib/libkvasir.so" | sed 's/.* //; s/@.*//' | grep -v '^KVASIR_0$' | sort >"$tmp/out"
check "the header has functions" test "$(wc -l <"$tmp/declared")" -ge 25
check "no name is visible but the header's" cmp "$tmp/declared" "$tmp/out"
nm -D --undefined-only "$lib/libkvasir.so" | sed 's/.* //; s/@.*//' >"$tmp/out"
for f in exit _exit sigaction signal printf puts putchar perror; do
    check "it does not call $f" sh -c "! grep -qx $f '$tmp/out'"
done
# Else it cannot be loaded into a Python that has libstdc++ already.
if command -v readelf >/dev/null; then
    check "it has no place in the static TLS block" sh -c "! readelf -d '$lib/libkvasir.so' | grep -q STATIC_TLS"
else
    skip "readelf is not there"
fi

# ---- examples ----
command -v "${CC%% *}" >/dev/null 2>&1 || CC=cc
command -v "${CXX%% *}" >/dev/null 2>&1 || CXX=c++
# shellcheck disable=SC2046,SC2086
compile() { # compile NAME COMMAND...: to $tmp/NAME; flags of pkg-config come last
    name=$1
    shift
    "$@" -Wall -Wextra -Werror -o "$tmp/$name" $(pkg-config --cflags --libs kvasir) >"$tmp/out" 2>"$tmp/err"
}
# shellcheck disable=SC2086
{
    compile c11 $CC -std=c11 "$SRCDIR/examples/complete.c"
    check "the example is C11" test -x "$tmp/c11"
    compile c17 $CC -std=c17 -pedantic "$SRCDIR/examples/complete.c"
    check "and C17 without extensions" test -x "$tmp/c17"
    compile as_cxx $CXX -std=c++17 -pedantic -x c++ "$SRCDIR/examples/complete.c" -x none
    check "and C++17" test -x "$tmp/as_cxx"
    compile compare $CXX -std=c++17 -pedantic "$SRCDIR/examples/compare.cc"
    check "that in C++ is C++17" test -x "$tmp/compare"
}
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
m="$models/llama31-f32-tied" text="one two three four five six seven"
"$RUN" generate -m "$m" --attn quest:budget=32:page=4 -p "$text" -n 24 --temp 0.7 --top-p 1 --seed 1 --quiet >"$tmp/want" 2>"$tmp/err"
for example in c11 c17 as_cxx; do
    "$tmp/$example" "$m" quest:budget=32:page=4 "$text" >"$tmp/out" 2>"$tmp/err"
    check "$example runs" test $? -eq 0
    err_has "of them attended" "$example tells what was attended"
done
check "and says what the program says" cmp -s "$tmp/want" "$tmp/out"
"$tmp/c11" "$m" questt "$text" >"$tmp/out" 2>"$tmp/err"
check "a wrong strategy ends it with 1" test $? -eq 1
err_has "quest" "and a line"

# ---- a program that was compiled against the header before drafts and the prefix cache ----
mkdir "$tmp/before"
sed '/^    const char \*draft; /,/^    int64_t prefix_min; /d; /^    int64_t prefix_tokens; /,/^    int64_t drafted, /d' \
    "$SRCDIR/api/kvasir.h" >"$tmp/before/kvasir.h"
later='^    .*(draft|drafted, draft_accepted|prefix_[a-z_]*);'
check "the header has seven lines of later fields" test "$(grep -cE "$later" "$SRCDIR/api/kvasir.h")" -eq 7
check "the earlier one has none" test "$(grep -cE "$later" "$tmp/before/kvasir.h")" -eq 0
cat >"$tmp/steps.c" <<'EOF'
#include <kvasir.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    const int32_t ids[] = {5, 6, 7, 8, 5, 6, 7, 8};
    struct { kvasir_options o; unsigned char after[64]; } x;
    struct { kvasir_stats s; unsigned char after[64]; } t;
    kvasir_model *m;
    kvasir_session *s;
    int32_t id;
    char why[256];
    memset(&x, 0, sizeof x.o);
    memset(x.after, 255, 64);
    memset(t.after, 255, 64);
    x.o.struct_size = sizeof x.o;
    t.s.struct_size = sizeof t.s;
    x.o.gemm = "builtin";
    x.o.threads = 1;
    if (argc != 2 || kvasir_model_load(&m, argv[1], &x.o, why, sizeof why)) return puts(why), 1;
    if (kvasir_session_create(&s, m, "full", NULL, 64, why, sizeof why)) return puts(why), 1;
    if (kvasir_session_feed(s, ids, 8, KVASIR_PROMPT, NULL, why, sizeof why)) return puts(why), 1;
    for (int i = 0; i < 16; i++) {
        if (kvasir_session_sample(s, NULL, &id, why, sizeof why)) return puts(why), 1;
        if (kvasir_decode(&s, 1, &id, why, sizeof why)) return puts(why), 1;
        printf("%d ", (int)id);
    }
    if (kvasir_session_stats(s, &t.s, why, sizeof why)) return puts(why), 1;
    printf("%d %s %d %d\n", (int)t.s.length, t.s.store, t.after[0], t.after[63]);
    fprintf(stderr, "%d %d\n", (int)sizeof x.o, (int)sizeof t.s);
    kvasir_session_free(s);
    kvasir_model_free(m);
    return 0;
}
EOF
# shellcheck disable=SC2086
{
    compile then $CC -std=c11 "-I$tmp/before" "$tmp/steps.c"
    compile now $CC -std=c11 "$tmp/steps.c"
}
"$tmp/now" "$m" >"$tmp/want" 2>"$tmp/sizes"
check "a program of now runs" test $? -eq 0
"$tmp/then" "$m" >"$tmp/out" 2>"$tmp/err"
check "and one of then" test $? -eq 0
check "with smaller structs" sh -c "! cmp -s '$tmp/sizes' '$tmp/err'"
check "the same tokens and counts" cmp "$tmp/want" "$tmp/out"
check "and nothing past its structs is written" grep -q ' 24 f16 255 255$' "$tmp/out"

"$tmp/compare" "$m" "$text" full quest:budget=32:page=4 h2o:budget=24 >"$tmp/out" 2>"$tmp/err"
check "a line for each strategy" test "$(grep -cE '^(full|quest|h2o).*: ' "$tmp/out")" -eq 3
"$RUN" generate -m "$m" -p "$text" -n 24 --temp 0 --quiet --ignore-eos >"$tmp/want" 2>"$tmp/err"
check "that of full is the program's" sh -c "sed -n 's/^full: //p' '$tmp/out' | cmp -s - '$tmp/want'"
finish
