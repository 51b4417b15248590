# SPDX-License-Identifier: MIT
# Views of reports for scripts/reproduce. Each prints lines "source, row, column, value" for a report of --json, or for
# an array of JSON lines (pages, steps, datasets, longbench2).

def digits($n): if . == null then null else . * pow(10; $n) | round / pow(10; $n) end;
def cell($source; $row; $column; $value): select($value != null) | [$source, $row, $column, $value] | map(tostring) | @tsv;
def mean: if length == 0 or any(.[]; . == null) then null else add / length end;
# Distinct values of `f`, in order of appearance.
def distinct(f): reduce (.[] | f) as $x ([]; if index([$x]) then . else . + [$x] end);
def name: if .budget == null then .attn else "\(.attn) \(.budget)" end;
# A row without a budget appears in the column of every budget; if no row has one, the column is `what`.
def budgets($all; $what): if .budget != null then [.budget] elif $all == [] then [$what] else $all end;
def by_budgets($what; f): ([.results[].budget | select(. != null)] | unique) as $all | .results[] | budgets($all; $what)[] as $b |
    cell("here"; .attn; $b; f);

# ---- passkey, agree ----

def found: by_budgets("found, %"; 100 * .accuracy | digits(1));
def agreement: by_budgets("agreement, %"; 100 * .score | digits(1));
def access: .results[] | cell("here"; .attn; "keys read, %"; 100 * .key_access | digits(1));
# Ratio of index bytes to key bytes; half of the rows' bytes are keys.
def load: .results[] | (.kv_read / 2 + .index_read) as $read | cell("here"; .attn; "load ratio";
    .index_read * .key_access / $read | digits(3));
def settings: .results[] | (.params | capture(" local=(?<local>[0-9]+) .*u=(?<u>[0-9]+) full_thr=(?<full_thr>[0-9]+)")) as $p |
    cell("here"; .attn; "local"; $p.local), cell("here"; .attn; "u"; $p.u), cell("here"; .attn; "full_thr"; $p.full_thr),
    cell("here"; .attn; "attended"; .attended | digits(1)), cell("here"; .attn; "found, %"; 100 * .accuracy);
def attended: .results[] | cell("here"; name; .ctx; .attended | digits(1));

# ---- eval recall: means over the layers that are not dense ----

def key: [.attn, .budget, .ctx];
def rows: [.results[] | select(.dense | not)] as $all | $all | distinct(key)[] as $k |
    {attn: $k[0], budget: $k[1], ctx: $k[2], layers: map(select(key == $k))};
def of($what): .layers | map(.[$what]) | mean;
def by_budget($what): rows | cell("here"; .attn; .budget; of($what) | digits(4));
def by_layer($what): rows | . as $r | .layers[] | cell("here"; $r.attn; "layer \(.layer)"; .[$what] | digits(1));
def under($column; $what): rows | cell("here"; .attn; $column; of($what) | digits(4));
# Adds the budget to the name if there are several.
def recall: ([.results[].budget] | unique | length > 1) as $several | rows | (if $several then name else .attn end) as $row |
    cell("here"; $row; "recall"; of("recall") | digits(4)), cell("here"; $row; "mass"; of("mass") | digits(4)),
    cell("here"; $row; "output error"; of("out_err") | digits(4));
# L1 error with quantized rows, and without the quantized tokens.
def quantized: ([.results[].ctx] | unique | length) as $lengths | rows |
    (if $lengths > 1 then "\(.ctx) tokens" else "here" end) as $w | . as $r |
    of("out_err_l1") as $codes | of("evicted_err_l1") as $gone |
    cell($w; $r.attn; "L1, in codes"; $codes | digits(4)), cell($w; $r.attn; "L1, evicted"; $gone | digits(4)),
    cell($w; $r.attn; "evicted / in codes"; $gone / $codes | digits(2));
# Mass by distance band, from the mass of the newest tokens at growing budgets.
def bands: [rows | {n: (.budget + 1), mass: of("mass")}] | [{n: 0, mass: 0}] + . + [{n: null, mass: 1}] | . as $m |
    range(1; length) as $i | (($m[$i].n // 0) - 1) as $last |
    cell("here"; if $m[$i].n == null then "\($m[$i - 1].n) and more" else "\($m[$i - 1].n) to \($last)" end; "share of attention, %";
        100 * ($m[$i].mass - $m[$i - 1].mass) | digits(2)),
    (select($m[$i].n != null) | cell("here"; "\($m[$i - 1].n) to \($last)"; "a token, %";
        100 * ($m[$i].mass - $m[$i - 1].mass) / ($m[$i].n - $m[$i - 1].n) | digits(3)));
# By head: the first rows are two sinks and the newest two tokens, the newest two, and the newest 128.
def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
def sinks: [rows | [.layers[].mass_heads]] as [$with, $two, $newest] |
    [range(0; $with | length) as $l | [range(0; $with[$l] | length) as $h | {layer: $l, sinks: ($with[$l][$h] - $two[$l][$h]),
        newest: $newest[$l][$h]}]] as $x | (($x[] | {row: "layer \(.[0].layer)", heads: .}),
    {row: "all layers", heads: ($x | add)}) | .row as $row | .heads |
    cell("here"; $row; "tokens 0 and 1, median"; map(.sinks) | median | digits(4)),
    cell("here"; $row; "newest 128, median"; map(.newest) | median | digits(4)),
    cell("here"; $row; "heads with more on 0 and 1"; "\(map(select(.sinks > .newest)) | length) of \(length)");
# Attention on the float rows, without tokens 0 and 1; means over several lengths.
def coverage: [rows] as $all | $all | distinct(.attn)[] as $a | [$all[] | select(.attn == $a)] |
    cell("here"; $a; "tokens"; map(of("exact_tokens")) | mean | digits(1)),
    cell("here"; $a; "a token, %"; map(of("coverage")) | mean * 100 | digits(4)),
    cell("here"; $a; "share of attention, %"; map(of("exact_mass")) | mean * 100 | digits(2));
# L1 distances of attention distributions from the exact ones: of a head, and summed over layers and heads.
def distances: ([.results[].ctx] | unique | length) as $lengths | rows |
    (if $lengths > 1 then "\(.ctx) tokens" else "here" end) as $w | . as $r | (.layers | length) as $layers |
    (.layers[0].mass_heads | length) as $heads | of("attn_l1") as $l1 | of("attn_l1_evicted") as $gone |
    cell($w; $r.attn; "a head"; $l1 | digits(4)), cell($w; $r.attn; "sum"; $l1 * $layers * $heads | digits(2)),
    (select($gone != null) | cell($w; $r.attn; "a head, evicted"; $gone | digits(4)),
        cell($w; $r.attn; "sum, evicted"; $gone * $layers * $heads | digits(2)),
        cell($w; $r.attn; "sum, evicted / sum"; $gone / $l1 | digits(2)));

# One stage of pariskv; removes beta from the name.
def stage($source; $what): rows | cell($source; .attn | sub(":beta=[0-9]+"; ""); $what; of("recall") | digits(3));

# ---- JSON lines of paris_drift.py ----

def drifted($column): .[] | cell("here"; .row; $column; .reranked | digits(4)),
    (select(.missed_reply) | cell("here"; "\(.row): missed, %"; $column; 100 * .missed_reply | digits(1)));
def ablation($source): .[] | cell($source; .row; "coarse"; .coarse | digits(3)), cell($source; .row; "reranked"; .reranked | digits(3)),
    cell($source; .row; "missed of the prompt, %"; 100 * .missed_prompt | digits(1)),
    cell($source; .row; "of the reply, %"; 100 * .missed_reply | digits(1));

# ---- JSON lines of eval recall --dump ----

# Number of pages of n tokens that the lists touch, and the fraction of these pages that they fill.
def pages($n): . as $all | (distinct(.layer) | map({row: "layer \(.)", layer: .})) + [{row: "all layers"}] | .[] as $k |
    [$all[] | select($k.layer == null or .layer == $k.layer) | {k: (.positions | length),
        p: (.positions | map(. / $n | floor) | unique | length)}] |
    cell("here"; $k.row; "pages with best tokens"; map(.p) | mean | digits(1)),
    cell("here"; $k.row; "pages that could hold them"; map(.k / $n | ceil) | mean | digits(1)),
    cell("here"; $k.row; "best among their tokens, %"; map(100 * .k / ($n * .p)) | mean | digits(1));
# Fraction of a list that is in the list of the same head 1, 2 and 3 queries later.
def steps: (map({key: "\(.layer) \(.head) \(.query)", value: .positions}) | from_entries) as $at | . as $all |
    (distinct(.layer) | map({row: "layer \(.)", layer: .})) + [{row: "all layers"}] | .[] as $k | (1, 2, 3) as $d |
    [$all[] | select($k.layer == null or .layer == $k.layer) | $at["\(.layer) \(.head) \(.query + $d)"] as $later |
        select($later) | 1 - ((.positions - $later | length) / (.positions | length))] |
    cell("here"; $k.row; "\($d) later, %"; map(100 * .) | mean | digits(1));

# ---- benchmarks ----

def perplexity: .results as $all | $all | distinct([.attn, .budget])[] as $k | $all | map(select([.attn, .budget] == $k)) |
    . as $books | [.[].curve.length[]] | unique | map(select(. >= 512 and pow(2; (log2 | round)) == .))[] as $n |
    [$books[] | .curve | .ppl[(.length | index($n)) // empty] | log] |
    cell("here"; {attn: $k[0], budget: $k[1]} | name; "\($n)"; mean | exp | digits(3));
def longbench: ([.results[].budget | select(. != null)] | unique) as $all | .results[] | budgets($all; "score")[] as $b |
    cell("here, \(.dataset)"; .attn; $b; .score | digits(2));
def longbench_datasets: (.results[] | cell("here"; .dataset; .attn; .score | digits(2))),
    (.averages[] | cell("here"; "average"; .attn; .average | digits(2)));
def longbench_groups: .averages[] | . as $r | (.groups // {} | to_entries[] | cell("here"; $r.attn; .key; .value | digits(2))),
    cell("here"; .attn; "average"; .average | digits(2));
def longbench2: map(select(has("judge") and .judge != null and (.pass == null or .pass == "answer"))) as $all |
    def percent: if length == 0 then null else 100 * (map(select(.judge)) | length) / length | digits(2) end;
    $all | distinct(.attn)[] as $a | $all | map(select(.attn == $a)) | . as $mine | cell("here"; $a; "overall"; percent),
    (("short", "medium", "long") as $length | ("easy", "hard") as $difficulty | $mine |
        map(select(.length == $length and .difficulty == $difficulty)) | cell("here"; $a; "\($length) \($difficulty)"; percent));
def infinitebench: .results[] | cell("here"; name; .dataset; .score | digits(2));
def datasets: .[] | cell("here"; .dataset; "samples"; .n), cell("here"; .dataset; "mean length"; .length | digits(0));
