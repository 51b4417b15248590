# SPDX-License-Identifier: MIT
"""Prints tables of our numbers and the published ones, for scripts/reproduce."""


def print_table(columns, rows):
    lines = [['row', 'source', *columns]]
    for (_, _, source, name), values in rows:
        lines.append([name, source, *(values.get(c, '-') for c in columns)])
    width = [max(map(len, column)) for column in zip(*lines)]
    for name, source, *values in lines:
        values = [v.rjust(w) for v, w in zip(values, width[2:])]
        print('  '.join([name.ljust(width[0]), source.ljust(width[1]), *values]))


def show_tables(paper, item, published, ours):
    """Prints one table if both have a column in common, else two. published: lines of published.tsv; ours: (source,
    row, column, value)."""
    theirs, rows = [], {}  # rows: {(published, group, source, name): {column: value}}
    for key, source, *fields in ((x[:2], *x[2:]) for x in (line.rstrip('\n').split('\t') for line in published)):
        if key == [paper, item] and source == 'columns':
            theirs = fields
        elif key == [paper, item]:
            group = f'- {fields[1]}' if fields[0] == '-' else fields[0].removeprefix('=')
            rows[True, group, source, fields[1]] = dict(zip(theirs, fields[2:]))
    for source, row, column, value in ours:
        rows.setdefault((False, row, source, row), {})[column] = value
    groups = list(dict.fromkeys(group for _, group, _, _ in rows))
    order = sorted(rows.items(), key=lambda row: (groups.index(row[0][1]), row[0][0]))  # ours first in each group
    of = {which: [row for row in order if row[0][0] == which] for which in (False, True)}
    mine = list(dict.fromkeys(c for (is_published, *_), values in rows.items() if not is_published for c in values))
    if {*mine} & {*theirs}:
        print_table(theirs + [c for c in mine if c not in theirs], order)
        return
    if mine:
        print_table(mine, of[False])
    if theirs:
        print(('\n' if mine else '') + 'published:')
        print_table(theirs, of[True])
