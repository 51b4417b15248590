# SPDX-License-Identifier: MIT

# MY_TRY(VAR, FLAGS): appends each of FLAGS to VAR if the C compiler accepts it.
AC_DEFUN([MY_TRY], [for f in $2; do AS_VAR_PUSHDEF([v], [my_cv_flag_$f])
  AC_CACHE_CHECK([whether $CC accepts $f], [v], [s=$CFLAGS; CFLAGS="$CFLAGS -Werror $f"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM()], [AS_VAR_SET([v], [yes])], [AS_VAR_SET([v], [no])]); CFLAGS=$s])
  AS_VAR_IF([v], [yes], [AS_VAR_APPEND([$1], [" $f"])]) AS_VAR_POPDEF([v]) done])

# MY_NATIVE: sets with_simd to the best level of this machine's CPU, or to all levels if the CPU flags are unavailable.
AC_DEFUN([MY_NATIVE], [
  has() { for f in $[]@; do AS_CASE([" $cpu_flags "], [*" $f "*], [], [return 1]); done; }
  cpu_flags=`sed -n '/^flags/{s/.*: //p;q;}' /proc/cpuinfo 2>/dev/null`
  with_simd=
  AS_IF([test -z "$cpu_flags" || test "$cross_compiling" = yes], [with_simd=$levels],
    [has avx2 fma f16c], [with_simd=avx2
     AS_IF([has avx512f avx512bw avx512vl avx512dq], [with_simd=avx512
       AS_IF([has avx512_bf16 avx512_vnni avx512vbmi gfni], [with_simd=avx512_bf16
         AS_IF([test -n "$AMX_CFLAGS" && has amx_tile amx_bf16], [with_simd=amx])])])])])

# MY_FLAGS: sets the flags for warnings, sanitizers and each SIMD level.
AC_DEFUN([MY_FLAGS], [WARN_CFLAGS= SAN_FLAGS= AVX2_CFLAGS= AVX512_CFLAGS= AVX512BF16_CFLAGS= AMX_CFLAGS= NEON_CFLAGS= NEON_DOT_CFLAGS= simd=generic
  MY_TRY([WARN_CFLAGS], [-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual -Wwrite-strings -Wformat=2 -Wundef -Wvla -Wconversion -Wno-sign-conversion -Wdouble-promotion -ffp-contract=off])
  AS_IF([test "x$enable_werror" = xyes], [WARN_CFLAGS="$WARN_CFLAGS -Werror"])
  AS_IF([test -z "$OPENMP_CFLAGS"], [WARN_CFLAGS="$WARN_CFLAGS -Wno-unknown-pragmas"])
  AS_IF([test "x$enable_sanitizers" != xno],
    [SAN_FLAGS="-fsanitize=$enable_sanitizers -fno-sanitize-recover=all -fno-omit-frame-pointer"])
  AS_IF([test "x$enable_fuzz" = xyes], [SAN_FLAGS="$SAN_FLAGS -fsanitize-coverage-ignorelist=$srcdir/tests/fuzz/ignore.txt"])
  AC_ARG_WITH([simd], [AS_HELP_STRING([--with-simd=LIST], [SIMD levels in addition to generic, e.g. avx2,avx512; native: best level of this CPU; default: all])], [], [with_simd=all])
  have_avx2=no have_avx512=no have_avx512_bf16=no have_amx=no
  AS_CASE([$host_cpu], [x86_64|amd64], [
    AVX2_CFLAGS="-mavx2 -mfma -mf16c"
    AVX512_CFLAGS="$AVX2_CFLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq"
    AVX512BF16_CFLAGS="$AVX512_CFLAGS -mavx512bf16 -mavx512vnni -mavx512vbmi -mgfni"
    levels="avx2 avx512 avx512_bf16"
    MY_TRY([AMX_CFLAGS], [-mamx-tile -mamx-bf16])
    AS_CASE([$AMX_CFLAGS], [*tile*bf16], [levels="$levels amx"], [AMX_CFLAGS=])
    AS_CASE([$with_simd], [all|yes], [with_simd=$levels], [native], [MY_NATIVE], [no], [with_simd=])
    for l in `echo "$with_simd" | tr , ' '`; do
      AS_CASE([" $levels "], [*" $l "*], [simd="$simd $l"; AS_VAR_SET([have_$l], [yes])],
        [AC_MSG_ERROR([--with-simd: '$l' is not one of $levels, all, native])])
    done
    dnl amx has the kernels of avx512_bf16 except for those of tiles
    AS_IF([test $have_amx = yes], [have_avx512_bf16=yes])
    AC_DEFINE([HAVE_X86_KERNELS], [1], [x86 SIMD levels can be built])],
    dnl the first scheduling pass ignores register pressure and spills tiles
    [aarch64], [simd="generic neon neon_dot"
    MY_TRY([NEON_CFLAGS], [-fno-schedule-insns])
    NEON_DOT_CFLAGS="$NEON_CFLAGS -march=armv8.2-a+dotprod"
    AC_DEFINE([HAVE_NEON_KERNELS], [1], [NEON kernels are built])])
  AS_IF([test $have_avx2 = yes], [AC_DEFINE([HAVE_AVX2_KERNELS], [1], [built for AVX2])])
  AS_IF([test $have_avx512 = yes], [AC_DEFINE([HAVE_AVX512_KERNELS], [1], [built for AVX-512])])
  AS_IF([test $have_avx512_bf16 = yes], [AC_DEFINE([HAVE_AVX512_BF16_KERNELS], [1], [built for AVX-512 with BF16, VNNI, VBMI and GFNI])])
  AS_IF([test $have_amx = yes], [AC_DEFINE([HAVE_AMX_KERNELS], [1], [built for AMX])])
  AM_CONDITIONAL([SIMD_AVX2], [test $have_avx2 = yes])
  AM_CONDITIONAL([SIMD_AVX512], [test $have_avx512 = yes])
  AM_CONDITIONAL([SIMD_AVX512_BF16], [test $have_avx512_bf16 = yes])
  AM_CONDITIONAL([SIMD_AMX], [test $have_amx = yes])
  AM_CONDITIONAL([SIMD_NEON], [test -n "$NEON_DOT_CFLAGS"])
  AC_SUBST([WARN_CFLAGS]) AC_SUBST([SAN_FLAGS])
  AC_SUBST([AVX2_CFLAGS]) AC_SUBST([AVX512_CFLAGS]) AC_SUBST([AVX512BF16_CFLAGS]) AC_SUBST([AMX_CFLAGS]) AC_SUBST([NEON_CFLAGS]) AC_SUBST([NEON_DOT_CFLAGS])])

# MY_SHARED: adds --disable-shared and sets `shared`. Finds the flags that objects need to go into a shared library with a
# version script (PIC_FLAGS; empty for compilers that make PIE by default) by linking a test library.
AC_DEFUN([MY_SHARED], [
  AC_ARG_ENABLE([shared], [AS_HELP_STRING([--disable-shared], [do not build libkvasir.so])], [], [enable_shared=yes])
  PIC_FLAGS= shared="disabled"
  AS_IF([test "x$enable_sanitizers" != xno && test "x$enable_shared" != xno], [enable_shared=no shared="no (sanitizers)"])
  AS_IF([test "x$enable_shared" != xno], [
    shared="no; see config.log"
    echo 'K { global: probe_*; local: *; };' >conftest.map
    echo 'int outer@<:@8@:>@, inner = 1; int call(void); int call(void) { return inner++; }
      int probe_call(int i); int probe_call(int i) { return call() + outer@<:@i & 7@:>@; }' >conftest.c
    for f in "" "-fPIC -fvisibility=hidden"; do
      AS_IF([AC_TRY_COMMAND([$CC $f $CFLAGS -c conftest.c -o conftest.$ac_objext >&AS_MESSAGE_LOG_FD 2>&1]) &&
             AC_TRY_COMMAND([$CXX $f $CXXFLAGS $LDFLAGS -shared -Wl,--version-script=conftest.map -Wl,--no-undefined -o conftest.so conftest.$ac_objext >&AS_MESSAGE_LOG_FD 2>&1])],
        [PIC_FLAGS=$f shared=yes; break])
    done
    rm -f conftest.map conftest.so])
  AM_CONDITIONAL([SHARED], [test "$shared" = yes])
  AC_SUBST([PIC_FLAGS])])

# MY_OPTIONAL(NAME, VAR, PKG-CONFIG MODULES): --with-NAME=yes|no|check; sets have_VAR and why_VAR.
AC_DEFUN([MY_OPTIONAL], [AC_ARG_WITH([$1], [AS_HELP_STRING([--without-$1], [build without $1])], [], [with_$1=check])
  have_$2=no why_$2="disabled"
  AS_IF([test "x$with_$1" != xno], [PKG_CHECK_MODULES([$2], [$3], [have_$2=yes],
    [why_$2="$3 not found"
     AS_IF([test "x$with_$1" = xyes], [AC_MSG_ERROR([--with-$1: $3 not found; install it or omit the option])])])])
  AS_IF([test $have_$2 = yes], [AC_DEFINE([HAVE_$2], [1], [$1 is available])])
  AM_CONDITIONAL([HAVE_$2], [test $have_$2 = yes])])

# MY_ONEDNN: oneDNN has no .pc file in Debian 12.
AC_DEFUN([MY_ONEDNN], [
  AC_ARG_WITH([onednn], [AS_HELP_STRING([--without-onednn], [build without oneDNN])], [], [with_onednn=check])
  have_ONEDNN=no ONEDNN_LIBS= why_ONEDNN="disabled"
  AS_IF([test "x$with_onednn" != xno], [why_ONEDNN="not found"
    AC_CHECK_HEADER([oneapi/dnnl/dnnl.h],
      [AC_CHECK_LIB([dnnl], [dnnl_matmul_desc_init], [have_ONEDNN=yes ONEDNN_LIBS=-ldnnl], [why_ONEDNN="no 2.x library"])])
    AS_IF([test $have_ONEDNN = no && test "x$with_onednn" = xyes], [AC_MSG_ERROR([--with-onednn: $why_ONEDNN; install oneDNN 2.x or omit the option])])])
  AS_IF([test $have_ONEDNN = yes], [AC_DEFINE([HAVE_ONEDNN], [1], [oneDNN is available])])
  AC_SUBST([ONEDNN_LIBS])])

# MY_GPU: sets gpu to yes if this machine has an NVIDIA GPU, and gpu_arch to the SM numbers of all its GPUs, if known.
AC_DEFUN([MY_GPU], [gpu=no gpu_arch=
  AS_IF([test "$cross_compiling" != yes], [
    gpu_arch=`nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | grep '^[[0-9]][[0-9]]*$' | sort -un | tr '\n' , | sed 's/,$//'`
    AS_IF([test -n "$gpu_arch" || test -e /dev/nvidia0], [gpu=yes])])])

# MY_CUDA: --with-cuda, --with-cuda-arch; sets have_cuda, have_nccl and why. By default CUDA requires a GPU in this machine.
AC_DEFUN([MY_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [build for CUDA (default: if this machine has a GPU and nvcc)])], [], [with_cuda=check])
  AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=LIST], [SM numbers, e.g. 80,90 (default: those of the GPUs in this machine; without a GPU, all)])], [], [with_cuda_arch=])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
  : ${NVCCFLAGS=-O3 -g -lineinfo}
  have_cuda=no have_nccl=no why="disabled" CUDA_CPPFLAGS= CUDA_LDFLAGS= CUDA_LIBS= NVCC_GENCODE= NVCC_CCBIN=
  MY_GPU
  AS_IF([test "x$with_cuda" = xcheck && test -z "$with_cuda_arch" && test $gpu = no],
    [why="no GPU in this machine; use --with-cuda to build anyway"],
    [test "x$with_cuda" != xno], [
    AS_CASE([$with_cuda], [yes|check], [d=${CUDA_HOME-/usr/local/cuda}], [d=$with_cuda])
    AC_PATH_PROG([NVCC], [nvcc], [], [$d/bin:$PATH])
    AS_IF([test -z "$NVCC"], [why="nvcc not found"], [why=
      d=`dirname "$NVCC"`; d=`cd "$d/.." && pwd`
      AS_IF([test "$d" != /usr], [CUDA_CPPFLAGS="-isystem $d/include" CUDA_LDFLAGS="-L$d/lib64"])
      s1=$CPPFLAGS s2=$LDFLAGS; CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS" LDFLAGS="$LDFLAGS $CUDA_LDFLAGS"
      AC_CHECK_LIB([cudart_static], [cudaGetDeviceCount], [CUDA_LIBS="-lcudart_static -lrt -ldl -lpthread"], [why="no cudart"], [-lrt -ldl -lpthread])
      AC_CHECK_HEADER([cublas_v2.h], [], [why="no cuBLAS"])
      AC_CHECK_HEADER([nccl.h], [have_nccl=yes])
      CPPFLAGS=$s1 LDFLAGS=$s2
      major=`"$NVCC" --version | sed -n 's/.*release \([[0-9]]*\).*/\1/p'`
      AS_IF([test -z "$with_cuda_arch"], [with_cuda_arch=$gpu_arch])
      AS_IF([test -z "$with_cuda_arch"], [AS_IF([test "0$major" -ge 13], [with_cuda_arch=80,86,89,90,100,120],
        [test "0$major" -ge 12], [with_cuda_arch=80,86,89,90], [with_cuda_arch=70,80,86])])
      for a in `echo "$with_cuda_arch" | tr , ' '`; do NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$a,code=sm_$a"; done
      NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$a,code=compute_$a"
      dnl -ccbin takes a program, not a command line such as "ccache g++"
      NVCC_CCBIN=
      for w in $CXX; do AS_CASE([$w], [ccache|*/ccache|distcc|*/distcc], [], [NVCC_CCBIN=$w; break]); done
      echo '__global__ void k(float *p) { *p = 1; }' > conftest.cu
      AS_IF([test -z "$why" && ! AC_TRY_COMMAND([$NVCC -ccbin "$NVCC_CCBIN" -std=c++17 $NVCC_GENCODE -c conftest.cu -o conftest.o >&AS_MESSAGE_LOG_FD 2>&1])],
        [why="nvcc fails, see config.log"])
      AS_IF([test -z "$why"], [have_cuda=yes])])])
  AS_IF([test $have_cuda = no], [CUDA_CPPFLAGS= CUDA_LDFLAGS= CUDA_LIBS= NVCC_GENCODE= have_nccl=no
    AS_CASE([$with_cuda], [no|check], [], [AC_MSG_ERROR([--with-cuda: $why])])])
  AS_IF([test $have_nccl = yes], [AC_DEFINE([HAVE_NCCL], [1], [NCCL's header is available])])
  AC_SUBST([CUDA_CPPFLAGS]) AC_SUBST([CUDA_LDFLAGS]) AC_SUBST([CUDA_LIBS]) AC_SUBST([NVCC_GENCODE]) AC_SUBST([NVCC_CCBIN])
  AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])])
