#!/bin/sh
# SPDX-License-Identifier: MIT
# TAP: includes point down only (run, commands -> serve, eval -> lens -> cli -> generate -> model, grammar -> tokenizer,
# attention -> kernels; api, the library, -> generate), files stay under 800 lines, every file names its licence.
cd "${SRCDIR:-$(dirname "$0")/../..}" || exit 1
n=0 failed=0
result() { # result LIST NAME: ok when LIST is empty
    n=$((n + 1))
    if [ -z "$1" ]; then echo "ok $n - $2"; else
        failed=1
        echo "not ok $n - $2"
        echo "$1" | sed 's/^/# /'
    fi
}
uses() { # uses FOLDER ALLOWED...: includes of project headers in FOLDER that are not in ALLOWED
    folder=$1
    shift
    allowed=$(echo "$folder $*" | tr ' ' '|')
    grep -rnE '^#include "[a-z]+/' --include='*.[ch]' --include='*.cc' --include='*.cu' --include='*.cuh' "$folder" |
        grep -vE "#include \"($allowed)/"
}
result "$(uses kernels)" "kernels/ includes kernels/ only"
result "$(uses kernels/base kernels/base | grep -v '"kernels/base/')" "kernels/base/ includes kernels/base/ only"
result "$(uses tokenizer kernels/base)" "tokenizer/ includes tokenizer/ and kernels/base/ only"
result "$(uses grammar tokenizer kernels/base)" "grammar/ includes grammar/, tokenizer/ and kernels/base/ only"
result "$(uses attention kernels)" "attention/ includes attention/ and kernels/ only"
result "$(uses model attention kernels)" "model/ includes model/, attention/ and kernels/ only"
below="model grammar attention tokenizer kernels"
# shellcheck disable=SC2086
{
    result "$(uses generate $below)" "generate/ includes only lower folders"
    result "$(uses cli generate $below)" "cli/ includes only lower folders"
    result "$(uses lens cli generate $below)" "lens/ includes only lower folders"
    result "$(uses eval lens cli generate $below)" "eval/ includes only lower folders"
    result "$(uses serve lens cli generate $below)" "serve/ includes only lower folders"
    result "$(uses commands serve eval lens cli generate $below)" "commands/ includes only lower folders"
    result "$(uses api generate $below)" "api/ includes only lower folders"
}
result "$(grep -nE '^#include ' api/kvasir.h | grep -v '<std[a-z]*\.h>')" "api/kvasir.h includes only standard headers"
result "$(grep -nE '^#include "(kernels|attention|model)/' run.c)" "run.c includes none of the engine"
names=$(sed -n 's/^    X(\([a-z0-9]*\)).*/\1/p' attention/strategies.c | grep -vxE 'full|oracle|codes' | paste -sd '|')
result "$(grep -nE "\b(${names:?})\b" model/*.c model/*.h)" "model/ names no strategy"
result "$(grep -rnE 'pragma omp |_Pragma\("omp ' --include='*.c' --include='*.h' attention model tokenizer grammar generate cli lens eval serve commands api run.c)" "OpenMP in kernels/cpu/ only"
sources=$(find run.c api attention cli commands eval examples generate grammar lens serve kernels model python tokenizer tests scripts \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.py' -o -name '*.sh' -o -name '*.t' \))
# Templates used by kernels of two files would otherwise be instantiated once, for one of two types of the same name.
result "$(grep -rhoE '^\} [a-z_0-9]+;|^(template <.*> )?(struct|class|union) [a-z_0-9]+ *\{' kernels/cuda |
    sed -E 's/.*(struct|class|union) //; s/[^a-z_0-9]//g' | sort | uniq -d)" "a type's name in kernels/cuda is used once"
# shellcheck disable=SC2086
result "$(wc -l $sources | awk '$1 > 800 && $2 != "total"')" "files stay under 800 lines"
result "$(for f in $sources; do head -n 2 "$f" | grep -q 'SPDX-License-Identifier: MIT' || echo "$f"; done)" \
    "every file has a license line"
echo "1..$n"
exit $failed
