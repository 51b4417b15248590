#!/bin/sh
# SPDX-License-Identifier: MIT
# Writes tests/list.mk: every test program, script and fuzz target that is there. autoconf and make call it, so that a
# new test needs no line in a makefile. A test of a backend that is built again on CUDA says so in a comment:
#   /* Builds: shim race device */     on the host's shim, in the shim's race build, on a device
# Those of tests/unit are built for the CPU too.
set -eu
cd "$(dirname "$0")/.."
list=tests/list.mk
# The longest tests first, so that they run in parallel with the others.
slow='tests/unit/test_product tests/unit/test_tier'
slow_cli='tests/cli/mpi.t tests/cli/tp.t tests/cli/cuda.t tests/cli/recall.t tests/cli/bench.t'

# programs VARIABLE NAME...: adds to a variable of make, a name a line.
programs() {
    var=$1
    shift
    [ $# -eq 0 ] || { printf '%s +=' "$var" && printf ' \\\n  %s' "$@" && echo; }
}
# without_c PATH...: the paths without their suffix; nothing for a pattern that found no file.
without_c() {
    for f; do [ ! -e "$f" ] || echo "${f%.c}"; done
}
builds() {
    sed -n 's:^/\* Builds\: \(.*\) \*/$:\1:p' "$1"
}
# variant LIBS MACROS PROGRAM SOURCE: a program that is built from another one's source.
variant() {
    name=$(echo "$3" | tr '/.-' '___')
    printf '%s_SOURCES = %s\n%s_CPPFLAGS = $(AM_CPPFLAGS) %s\n' "$name" "$4" "$name" "$2"
    [ -z "$1" ] || printf '%s_LDADD = $(%s)\n' "$name" "$1"
}
# variants KIND LIBS MACROS: the tests of one kind of build on CUDA.
variants() {
    names=''
    for f in tests/unit/test_*.c tests/cuda/test_*.c; do
        case " $(builds "$f") " in *" $1 "*) ;; *) continue ;; esac
        base=$(basename "$f" .c)
        case $1 in
        shim) p=tests/cuda/$base ;;
        race) p=tests/cuda/${base}_race ;;
        esac
        variant "$2" "$3" "$p" "$f"
        names="$names $p"
    done
    # shellcheck disable=SC2086
    programs "$1_tests" $names
}
# Those of a device are one program (tests/cuda/devices.c), which has the name of each.
device_variants() {
    names='' table=''
    for f in tests/unit/test_*.c tests/cuda/test_*.c; do
        case " $(builds "$f") " in *" device "*) ;; *) continue ;; esac
        base=device_$(basename "$f" .c | sed 's/^test_//')
        printf 'tests/cuda/%s.o: %s\n\t@$(MKDIR_P) $(@D)/$(DEPDIR)\n\t$(AM_V_CC)$(device_compile)\n' "$base" "$f"
        names="$names tests/cuda/$base" table="${table}X($base)"
    done
    echo "device_table = $table"
    # shellcheck disable=SC2086
    programs device_tests $names
}
all() {
    echo '# Written by tests/list.sh.'
    # shellcheck disable=SC2046,SC2086
    programs unit_tests $slow $(without_c tests/unit/test_*.c | grep -vxF "$(printf '%s\n' $slow)")
    # shellcheck disable=SC2046,SC2086
    programs slow_cli_tests $slow_cli
    # shellcheck disable=SC2046,SC2086
    programs cli_tests $(printf '%s\n' tests/cli/*.t | grep -vxF "$(printf '%s\n' $slow_cli)")
    # shellcheck disable=SC2046
    programs fuzz_targets $(without_c tests/fuzz/fuzz_*.c)
    for f in tests/fuzz/fuzz_*.c; do
        echo "$(without_c "$f" | tr / _)_LDFLAGS = \$(fuzz_ldflags)"
    done
    # shellcheck disable=SC2046
    programs EXTRA_DIST tests/unit/*.h tests/cuda/*.h tests/cli/*.sh $(find tests/cli/fake_torch -name "*.py" | LC_ALL=C sort)
    echo 'if CUSHIM'
    variants shim shim_libs -DCUDA_SHIM
    echo 'if CURACE'
    variants race race_libs '-DCUDA_SHIM -DCUDA_RACE'
    echo 'endif CURACE'
    echo 'endif CUSHIM'
    echo 'if HAVE_CUDA'
    device_variants
    echo 'endif HAVE_CUDA'
}
now=$(all)
[ -f $list ] && [ "$now" = "$(cat $list)" ] || echo "$now" >$list
