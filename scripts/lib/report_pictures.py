# SPDX-License-Identifier: MIT
"""Draws pictures of result files with matplotlib, for scripts/report."""
import io
import re
from report_data import *
try:
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
except ImportError:
    pyplot = None

# Okabe and Ito's colours, which are safe for colour-blind readers, each with a marker and dashes. A strategy of this
# list looks the same in all pictures; others use the remaining looks.
LOOKS = {'full': ('#000000', 'x', '-'), 'streaming': ('#0072B2', 'o', '-'), 'snapkv': ('#D55E00', 's', '--'),
         'quest': ('#009E73', '^', '-.'), 'fier': ('#CC79A7', 'D', ':'), 'h2o': ('#E69F00', 'v', '-.'),
         'pariskv': ('#56B4E9', 'P', '--'), 'tova': ('#999999', '*', '-')}
MARKERS, DASHES, DEPTHS = 'osD^vP*X<>', ('-', '--', '-.', ':'), 10


def looks_of(names):
    """Returns a look for each curve; the curves of one strategy share its colour."""
    free = [name for name in [*LOOKS] * 2 if name not in names and name != 'full'] + [*LOOKS][1:]
    others = list(dict.fromkeys(name for name in names if name not in LOOKS))
    looks, seen = [], Counter({name: 3 for name in others})
    for name in names:
        colour, marker, dash = LOOKS[name if name in LOOKS else free[others.index(name) % len(free)]]
        if n := seen[name]:
            marker, dash = MARKERS[(MARKERS.find(marker) + n) % len(MARKERS)], DASHES[(DASHES.index(dash) + n) % 4]
        looks.append((colour, marker, dash))
        seen[name] += 1
    return looks


def saved(figure, png):
    out = io.BytesIO()
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': 'report'}):
        figure.savefig(out, format='png' if png else 'svg', dpi=160, metadata={} if png else {'Date': None})
    pyplot.close(figure)
    return out.getvalue()


def curves(png, xlabel, ylabel, lines, low=None, high=None, below=False):
    """Draws lines (label, strategy, points (x, y[, low, high])) over a logarithmic x; x = None: a horizontal line."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4 + 0.22 * len(lines) * below), layout='constrained')
    axes.set_xscale('log', base=2)
    axes.xaxis.set_major_formatter(lambda n, _: label(round(n)))
    x = [p[0] for line in lines for p in line[2] if p[0] is not None]
    looks = looks_of([strategy.split(':')[0] for _, strategy, _ in lines])
    for i, ((name, _, points), (colour, marker, dash)) in enumerate(zip(lines, looks)):
        if points[0][0] is None:
            axes.axhline(points[0][1], color=colour, linestyle='--', label=name)
            continue
        points = sorted(points)
        bars = len(points[0]) == 4
        at = [p[0] * ((max(x) / min(x)) ** (0.006 * (i - len(lines) / 2)) if bars else 1) for p in points]
        marks = [k for k, p in enumerate(points) if len(points) <= 16 or p[0] & (p[0] - 1) == 0]
        axes.plot(at, [p[1] for p in points], color=colour, linestyle=dash, marker=marker, markevery=marks,
                  markersize=5, label=name)
        if bars:
            axes.vlines(at, [p[2] for p in points], [p[3] for p in points], color=colour, linewidth=0.8)
    axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(low, high))
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(axis='y', color='#dddddd')
    figure.legend(loc='outside lower left' if below else 'outside right center', frameon=False)
    return saved(figure, png)


def heat_map(group, png):
    """Draws the percentage found by length and depth, a panel for each row. Light means found, also in grey."""
    t = Scores(group)
    panels, lengths = t.lines.items(), [size(c) for c in t.columns]
    across = len(panels) if len(panels) <= 4 else int((len(panels) - 1) ** 0.5) + 1
    down = -(-len(panels) // across)
    figure, grid = pyplot.subplots(down, across, sharex=True, sharey=True, squeeze=False, layout='constrained',
                                   figsize=(1 + across * max(1.7, 0.55 * len(lengths)), 0.6 + 2.2 * down))
    for axes, (row, results) in zip(grid.flat, panels):
        bins = min(DEPTHS, max(len({r['trial'] for r in of}) for of in grouped(results, lambda r: r['ctx']).values()))
        values = [[float('nan')] * len(lengths) for _ in range(bins)]
        # 10 % is in the bin 0 to 10
        place = lambda r: (lengths.index(r['ctx']), min(bins - 1, int(max(0, r['depth'] * bins - 1e-9) / 100)))
        for (i, b), cell in grouped(results, place).items():
            mean = values[b][i] = sum(100 * (r['correct'] if 'correct' in r else r['score']) for r in cell) / len(cell)
            axes.text(i, 100 * (b + 0.5) / bins, f'{mean:.0f}', ha='center', va='center', size=7,
                      color='w' if mean < 55 else 'k')
        mesh = axes.imshow(values, cmap='cividis', vmin=0, vmax=100, aspect='auto',
                           extent=(-0.5, len(lengths) - 0.5, 100, 0))
        axes.set_title(row.name, size=9)
        axes.set_xticks(range(len(lengths)), [label(n) for n in lengths])
        axes.set_yticks([0, 25, 50, 75, 100])
    for axes in grid.flat[len(panels):]:
        axes.set_visible(False)
    figure.supxlabel('Context length (tokens)', size=10)
    figure.supylabel('Depth (%)', size=10)
    figure.colorbar(mesh, ax=grid, label='Found (%)', ticks=[0, 25, 50, 75, 100])
    return saved(figure, png)


# ---- lines to draw: (label, strategy, points) ----

def lines_of(points):
    """Groups (label, strategy, point) into lines."""
    lines = {}
    for name, strategy, point in points:
        lines.setdefault(name, (name, strategy, []))[2].append(point)
    return list(lines.values())


def percent_top(lines):
    return 104 if max(p[-1] for line in lines for p in line[2]) > 90 else None


def draw_lengths(group, png):
    points, tasks = [], set()
    for n, t in ((n, Scores(of)) for n, of in by_length(group) if n):
        tasks.add(t.columns[0] if len(t.columns) == 1 else f'mean of {len(t.columns)} tasks')
        points += [(row.name, row.attn, (n, t.average[row].score, *t.average[row].ci)) for row in t.lines]
    lines = lines_of(points) or fail('--plot score: no result of eval ruler with a length')
    if len(tasks) > 1:
        note('--plot score: the lengths have different numbers of tasks')
    return curves(png, 'Length (tokens)', f"RULER, {' or '.join(sorted(tasks))}", lines, 0, percent_top(lines))


def draw_scores(group, png):
    if group.command == 'eval ruler':
        return draw_lengths(group, png)
    t = Scores(group)
    one = 'overall' if group.command == 'eval longbench2' else t.columns[0] if len(t.columns) == 1 else None
    cells = {row: t.cells[row, one] if one else t.average[row] for row in t.lines}
    lines = lines_of((row.attn, row.attn, (row.budget, c.score, *c.ci)) for row, c in cells.items())
    ylabel = {'passkey': 'Passkeys found (%)', 'eval niah': 'Needle found (%)'}.get(
        group.command, f'Score, {one} (%)' if one else f'Average score, {len(t.columns)} datasets (%)')
    return curves(png, 'Budget (tokens)', ylabel, lines, 0, percent_top(lines))


def draw_recall(group, png):
    t = recall_of(group)
    several = len({ctx for _, ctx in t}) > 1
    lines = lines_of((row.attn + f', {label(ctx)}' * several, row.attn, (row.budget, mean_of(results, 'recall')))
                     for (row, ctx), results in t.items() if row.budget is not None)
    return curves(png, 'Budget (tokens)', 'Recall of the best tokens', lines, 0, 1)


def draw_accept(group, png):
    t = accepted(group)
    several = len({temp for _, temp in t}) > 1
    lines = lines_of((row.attn + f', T = {temp:g}' * several, row.attn, (row.budget, *agreement(counts)))
                     for (row, temp), counts in t.items())
    return curves(png, 'Budget (tokens)', "Tokens equal to full attention's", lines, None, 1)


def draw_drift(group, png):
    lines = lines_of((r.row.name, r.row.attn, (r['generated'], r['mass'])) for r in group.results)
    return curves(png, 'New tokens', 'Mass of exact attention', lines, 0, 1.04)


def draw_perplexity(group, png):
    lines = lines_of((row.name, row.attn, (n, perplexity(p))) for row, points in losses(group).items()
                     for n, p in points.items())
    return curves(png, 'Length (tokens)', 'Perplexity', lines)


def draw_speed(group, png):
    rows = with_context(bench_of(group)[0]) or fail('--plot speed: no result with a context')
    several = varying(rows, 'model', 'batch')
    lines = lines_of((named(r, several), r['attn'], (r['ctx'], r['ms'])) for r in rows)
    return curves(png, 'Context length (tokens)', 'Time of a decode step (ms)', lines, 0)


def draw_drafts(group, png):
    speeds, drafts = bench_of(group)
    alone = [r for r in speeds if r['phase'] == 'decode' and r['batch'] == 1]
    several = varying([r for r in alone + drafts if r['weights'] != '-'] or alone, 'model', 'weights', 'kv')
    points = [(r['attn'], r['attn'], r, r['single_tokens_per_s']) for r in drafts] or fail(
        '--plot drafts: no result of bench --draft')
    for r in drafts:
        right = f" ({r['accept']:g} right)" if varying(drafts, 'accept') else ''
        points.append((f"{r['attn']}, drafts by {r['name'].replace(':budget=', ' ')}{right}",
                       re.sub('^ngram,', '', r['draft']), r, r['tokens_per_s']))
    points += [('full' if r['attn'] == 'full' else f"{r['name']} alone", r['attn'], r, r['tokens_per_s'])
               for r in alone if r['ctx'] > 0]
    best = {}
    for name, strategy, r, speed in points:  # the fastest single steps of all files are used
        at = ''.join([name, *(f', {r[k]}' for k in several)]), r['ctx']
        best[at] = (strategy, max(speed, best[at][1])) if at in best else (strategy, speed)
    lines = lines_of((name, strategy, (ctx, speed)) for (name, ctx), (strategy, speed) in best.items())
    return curves(png, 'Context length (tokens)', 'Tokens per second', lines, 0, None, True)


DATASETS = ('eval longbench', 'eval longbench2', 'eval infinitebench', 'eval scbench', 'eval mrcr', 'eval ruler')
PLOTS = {'perplexity': (draw_perplexity, 'eval pg19'), 'score': (draw_scores, *DATASETS, *LENGTHS),
         'recall': (draw_recall, 'eval recall'), 'accept': (draw_accept, 'eval accept'),
         'drift': (draw_drift, 'eval drift'), 'passkey': (heat_map, *LENGTHS), 'speed': (draw_speed, 'bench'),
         'drafts': (draw_drafts, 'bench')}


def fitting(groups):
    """Yields (kind, group) for each picture that the results support."""
    for kind, (_, *of) in PLOTS.items():
        for group in (groups[c] for c in groups if c in of):
            speeds, drafts = bench_of(group) if group.command == 'bench' else ([], [])
            budgets = group.command == 'eval ruler' or any(r['budget'] is not None for r in group.results)
            has = {'score': budgets and group.command != 'passkey', 'drafts': drafts, 'speed': with_context(speeds)}
            if has.get(kind, True):
                yield kind, group
