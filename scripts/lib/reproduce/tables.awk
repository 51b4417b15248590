# SPDX-License-Identifier: MIT
# Our numbers beside the published ones, for scripts/reproduce: awk -F '\t' -v paper= -v item= published.tsv OURS, where a
# line of OURS is "whose numbers, row, column, value".

function add_column(name, where) {
    if ((where, name) in column_of) return
    column_of[where, name] = ++columns[where]
    column[where, columns[where]] = name
}
function add_row(group, whose, name, where) {
    if (!(group in group_of)) { group_of[group] = ++groups; group_name[groups] = group }
    if ((where, group, whose, name) in row_of) return row_of[where, group, whose, name]
    rows++
    row_group[rows] = group_of[group]; row_whose[rows] = whose; row_name[rows] = name; row_from[rows] = where
    return row_of[where, group, whose, name] = rows
}
function fit(text, k) { if (length(text) > width[k]) width[k] = length(text) }
function line(r, list, n,    k, text) {
    text = sprintf("%-" width[1] "s  %-" width[2] "s", row_name[r], row_whose[r])
    for (k = 1; k <= n; k++) text = text sprintf("  %" width[k + 2] "s", ((r, list[k]) in value) ? value[r, list[k]] : "-")
    print text
}
# The rows from `from` ("": all) under the columns list[1..n], group by group.
function table(from, list, n,    k, r, g, text, printed) {
    split("", width)
    fit("row", 1); fit("whose", 2)
    for (k = 1; k <= n; k++) fit(list[k], k + 2)
    for (r = 1; r <= rows; r++) {
        if (from != "" && row_from[r] != from) continue
        fit(row_name[r], 1); fit(row_whose[r], 2)
        for (k = 1; k <= n; k++) if ((r, list[k]) in value) fit(value[r, list[k]], k + 2)
    }
    text = sprintf("%-" width[1] "s  %-" width[2] "s", "row", "whose")
    for (k = 1; k <= n; k++) text = text sprintf("  %" width[k + 2] "s", list[k])
    print text
    # Ours first in each group, as the order of the rows: published ones were read first.
    for (g = 1; g <= groups; g++) {
        for (r = 1; r <= rows; r++) if (row_group[r] == g && row_from[r] == "ours" && from != "published") line(r, list, n)
        for (r = 1; r <= rows; r++) if (row_group[r] == g && row_from[r] == "published" && from != "ours") line(r, list, n)
    }
}
function both(    k, n, list) {
    for (k = 1; k <= columns["published"]; k++) list[++n] = column["published", k]
    for (k = 1; k <= columns["ours"]; k++) if (!(("published", column["ours", k]) in column_of)) list[++n] = column["ours", k]
    table("", list, n)
}
function alone(from,    k, list) {
    for (k = 1; k <= columns[from]; k++) list[k] = column[from, k]
    table(from, list, columns[from])
}
/^#/ { next }
FILENAME == ARGV[1] {
    if ($1 != paper || $2 != item) next
    if ($3 == "columns") { for (k = 4; k <= NF; k++) add_column($k, "published"); next }
    group = $4 == "-" ? "- " $5 : $4
    sub(/^=/, "", group)
    r = add_row(group, $3, $5, "published")
    for (k = 6; k <= NF; k++) value[r, column["published", k - 5]] = $k
    next
}
{
    add_column($3, "ours")
    r = add_row($2, $1, $2, "ours")
    value[r, $3] = $4
}
END {
    for (k = 1; k <= columns["ours"]; k++) if (("published", column["ours", k]) in column_of) shared = 1
    if (shared) both()
    else {
        if (columns["ours"]) alone("ours")
        if (columns["published"]) { if (columns["ours"]) print ""; print "published:"; alone("published") }
    }
}
