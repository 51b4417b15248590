# SPDX-License-Identifier: MIT
# SmolLM2-135M of scripts/get_model, if it is downloaded: ids of texts and the beginning of a greedy text.
. "$SRCDIR/tests/cli/lib.sh"
run info -m smollm2
[ "$status" -eq 0 ] || skip_all "smollm2 is not downloaded (scripts/get_model smollm2)"
grep -q "^parameters *134\.52 M" "$tmp/out" || skip_all "smollm2 is another model"

# ids TEXT IDS: printf's TEXT has these ids in tokenizers 0.23.3, with the vocabulary and merges of the file, Digits and
# ByteLevel, and in llama.cpp (cyllama 0.2.18).
texts=0
ids() {
    texts=$((texts + 1))
    # shellcheck disable=SC2059
    printf "$1" >"$tmp/text"
    "$RUN" tokenize -m smollm2 --special --quiet <"$tmp/text" >"$tmp/out" 2>"$tmp/err"
    check "ids of text $texts" test "$(cat "$tmp/out")" = "$2"
}
ids 'Hello world' \
    '19556 905'
ids 'The capital of France is Paris, isn\047t it?' \
    '504 3575 282 4649 314 7042 28 3247 982 357 47'
ids '  two  spaces\tand a tab\n\nand lines\n' \
    '216 827 216 5600 197 397 253 10147 198 198 397 3204 198'
ids 'In 2026 there were 1,234,567 of them (3.14159).' \
    '788 216 34 32 34 38 665 592 216 33 28 34 35 36 28 37 38 39 282 601 365 35 30 33 36 33 37 41 595'
ids 'na\303\257ve caf\303\251 \342\200\224 \303\234ber Stra\303\237e \304\215e\305\241tina' \
    '3546 46494 37366 1841 5549 246 593 19144 34878 85 24488 231 85 20848 100 1787'
ids '\344\275\240\345\245\275\357\274\214\344\270\226\347\225\214 \360\237\230\200 \360\237\221\251\342\200\215\360\237\232\200' \
    '18645 250 48392 138 12831 7906 240 178 239 230 40303 218 15107 235 119 321 231 10813 244 218'
ids 'int main(void) { return x[i++] != 0 ? -1 : ~y; }' \
    '591 1085 24 32439 25 1662 1003 1792 75 89 11444 77 6541 216 32 9148 731 33 1577 11417 105 43 4029'
ids '<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n' \
    '1 4093 198 1780 314 216 34 27 34 47 2 198 1 520 9531 198'
ids 'WE\047LL she\047d I\047m don\047t \047twas' \
    '23342 23 16421 1041 6737 339 5248 1326 982 637 10372 292'
ids '\320\237\321\200\320\270\320\262\320\265\321\202 \331\205\330\261\330\255\330\250\330\247 \340\270\252\340\270\247\340\270\261\340\270\252\340\270\224\340\270\265' \
    '155 249 46879 16464 32547 36395 20602 44626 31462 10805 216 10283 120 10283 117 10283 126 10283 120 10283 238 10283 130'

# Weights in float32: the first 20 tokens of llama.cpp's greedy text.
text() { run generate -m smollm2 -p "The history of the printing press begins" -n 20 --temp 0 --attn full --no-weights-cache "$@"; }
llama=" with the invention of the printing press in 1453 by Johannes Gutenberg. Prior to this"
text --weights f32
check "text with float32 weights" test "$(cat "$tmp/out")" = "$llama"
text --gemm builtin
check "text with the weights as held, activations in float32" test "$(cat "$tmp/out")" = "$llama"
text
out_has "by Johannes Gutenberg" "text with the weights as held, activations in 8 bits"
finish
