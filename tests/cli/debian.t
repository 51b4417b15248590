# SPDX-License-Identifier: MIT
# debian/ agrees with the tree: version, soname, what is installed, what is needed. scripts/dev/check_debian builds and
# tries the packages themselves.
. "$SRCDIR/tests/cli/lib.sh"
build=$(dirname "$RUN")
[ "$(find "$build" -maxdepth 1 -name 'libkvasir.so.*' | wc -l)" -gt 0 ] || skip_all "built without a shared library"
cd "$SRCDIR/debian" || exit 1

# ---- names and versions ----
version=$("$RUN" --version | sed 's/.* //')
check "the changelog begins with the program's version" grep -q "^kvasir (${version}) " changelog
soname=$(sed -n 's/^api_current = //p' ../api/local.mk)
check "the library's package is named by its soname" grep -qx "Package: libkvasir$soname" control
check "the symbols are those of libkvasir.map" sh -c \
    "grep -q '^libkvasir.so.$soname libkvasir$soname ' libkvasir$soname.symbols &&
     grep -qF '*@'\"\$(sed -n '1s/ .*//p' ../api/libkvasir.map)\"' ' libkvasir$soname.symbols"
sed -n 's/^Package: //p' control | sort >"$tmp/packages"
for f in *.install; do echo "${f%.install}"; done | sort >"$tmp/out"
check "each package has its list of files" cmp "$tmp/packages" "$tmp/out"

# ---- what make install installs is in a package, and what a package has is installed ----
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$build" DESTDIR="$tmp/a root" prefix=/usr libdir=/usr/lib/any install \
    >"$tmp/out" 2>"$tmp/err"
check "make install" test $? -eq 0
cut -d ' ' -f 1 ./*.install >"$tmp/patterns"
check "packages list files" test "$(wc -l <"$tmp/patterns")" -ge 10
while read -r pattern; do
    # shellcheck disable=SC2086
    found=$(cd "$tmp/a root" && find $pattern ! -type d 2>/dev/null || :)
    # shellcheck disable=SC2086
    [ -n "$found" ] || (cd "$SRCDIR" && ls $pattern >/dev/null 2>&1) || echo "$pattern"
    echo "$found" >>"$tmp/taken"
done <"$tmp/patterns" >"$tmp/out"
check "all that they list is there" test ! -s "$tmp/out"
[ ! -s "$tmp/out" ] || show
(cd "$tmp/a root" && find . ! -type d | sed 's:^\./::') | sort >"$tmp/installed"
grep -vxFf "$tmp/taken" "$tmp/installed" >"$tmp/out"
check "all that is installed is in one" test ! -s "$tmp/out" -a "$(wc -l <"$tmp/installed")" -ge 50
[ ! -s "$tmp/out" ] || show
for f in share/bash-completion/completions/kvasir.bash share/zsh/site-functions/_kvasir share/man/man1/kvasir.1 \
    share/man/man3/kvasir.3 share/kvasir/demo/model.safetensors share/kvasir/eval/DATA.md include/kvasir.h; do
    check "$f is" grep -qx "usr/$f" "$tmp/taken"
done
while read -r f; do check "$f is there" test -e "$SRCDIR/$f"; done <libkvasir-dev.examples

# ---- what is needed ----
for p in $(sed -n 's/^packages="\(.*\)"$/\1/p' ../scripts/install_deps | tr ' ' '\n' | grep -e '-dev$'); do
    check "packages are built with $p" grep -qE "(^| )$p( \[.*\])?,?$" control
done
check "the server's library is the one that is opened" sh -c \
    "grep -q 'dlopen(\"libmicrohttpd.so.12\"' ../serve/http.c && grep -qx 'Recommends: libmicrohttpd12' control"

# ---- tests of the packages ----
sed -n 's/^Tests: //p' tests/control >"$tmp/tests"
check "there are tests" test "$(wc -l <"$tmp/tests")" -ge 3
while read -r t; do check "$t is a script" sh -c "test -x tests/$t && sh -n tests/$t"; done <"$tmp/tests"
for f in tests/*; do
    [ "$f" = tests/control ] || check "$f is run" grep -qx "${f#tests/}" "$tmp/tests"
done
(cd "$SRCDIR" && GIT_DIR="$tmp/none" scripts/dev/check_debian) >"$tmp/out" 2>"$tmp/err"
check "without git there is nothing to build" test $? -eq 0
out_has "skipped: no git checkout" "and check_debian says so"
finish
