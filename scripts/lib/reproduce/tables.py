# SPDX-License-Identifier: MIT
"""Tables of our numbers and the published ones, for scripts/reproduce."""


def print_table(columns, rows):
    lines = [['row', 'whose', *columns]]
    for (_, _, whose, name), values in rows:
        lines.append([name, whose, *(values.get(c, '-') for c in columns)])
    width = [max(map(len, column)) for column in zip(*lines)]
    for name, whose, *values in lines:
        values = [v.rjust(w) for v, w in zip(values, width[2:])]
        print('  '.join([name.ljust(width[0]), whose.ljust(width[1]), *values]))


def show_tables(paper, item, published, ours):
    """Prints one table where both have a column in common. published: lines as in published.tsv; ours: (whose numbers,
    row, column, value)."""
    theirs, rows = [], {}  # rows: {(published, group, whose numbers, name): {column: value}}
    for key, whose, *fields in ((x[:2], *x[2:]) for x in (line.rstrip('\n').split('\t') for line in published)):
        if key == [paper, item] and whose == 'columns':
            theirs = fields
        elif key == [paper, item]:
            group = f'- {fields[1]}' if fields[0] == '-' else fields[0].removeprefix('=')
            rows[True, group, whose, fields[1]] = dict(zip(theirs, fields[2:]))
    for whose, row, column, value in ours:
        rows.setdefault((False, row, whose, row), {})[column] = value
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
