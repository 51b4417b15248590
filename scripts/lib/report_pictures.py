# SPDX-License-Identifier: MIT
"""Draws curves and heat maps with matplotlib, for scripts/report."""
import io
from report_data import fail, label
try:
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
except ImportError:
    pyplot = None

# Okabe and Ito's colours, which the colour-blind tell apart, each with a marker and dashes. A strategy of this list
# looks the same in all pictures; others take what is free.
LOOKS = {'full': ('#000000', 'x', '-'), 'streaming': ('#0072B2', 'o', '-'), 'snapkv': ('#D55E00', 's', '--'),
         'quest': ('#009E73', '^', '-.'), 'fier': ('#CC79A7', 'D', ':'), 'h2o': ('#E69F00', 'v', '-.'),
         'pariskv': ('#56B4E9', 'P', '--'), 'tova': ('#999999', '*', '-')}
MARKERS, DASHES, DEPTHS = 'osD^vP*X<>', ('-', '--', '-.', ':'), 10


def need():
    return pyplot or fail('pictures need matplotlib (pip install matplotlib), tables do not')


def look_of(names):
    """Returns a look for each curve; curves of one strategy share its colour."""
    free = [LOOKS[name] for name in LOOKS if name not in names and name != 'full'] + list(LOOKS.values())[1:]
    looks, used, others = [], {}, 0
    for name in names:
        if name not in used:
            used[name] = [LOOKS.get(name) or free[others % len(free)], 0
                          if name in LOOKS or others < len(LOOKS) - len(names) else 3]
            others += name not in LOOKS
        (colour, marker, dash), n = used[name]
        looks.append((colour, MARKERS[(MARKERS.find(marker) + n) % len(MARKERS)] if n else marker,
                      DASHES[(DASHES.index(dash) + n) % 4]))
        used[name][1] += 1
    return looks


def saved(figure, png):
    out = io.BytesIO()
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': 'report'}):
        figure.savefig(out, format='png' if png else 'svg', dpi=160, metadata={} if png else {'Date': None})
    pyplot.close(figure)
    return out.getvalue()


def ticks(x):
    x = sorted(set(x))
    t = [2 ** k for k in range(41) if x[0] <= 2 ** k <= x[-1]]
    t = t if len(t) > 1 else x
    while len(t) > 10:
        t = t[::2]
    return t


def curves(png, xlabel, ylabel, lines, low=None, high=None, below=False):
    """Draws lines (label, strategy, points (x, y[, low, high])) over a logarithmic x; x = None: a level line."""
    need()
    figure, axes = pyplot.subplots(figsize=(7.2, 4 + 0.22 * len(lines) * below), layout='constrained')
    axes.set_xscale('log', base=2)
    x = [p[0] for line in lines for p in line[2] if p[0] is not None]
    for i, ((name, _, points), (colour, marker, dash)) in enumerate(zip(lines,
        look_of([line[1].split(':')[0] for line in lines]))):
        if points[0][0] is None:
            axes.axhline(points[0][1], color=colour, linestyle='--', label=name)
            continue
        points = sorted(points)
        bars = len(points[0]) == 4
        at = [p[0] * ((max(x) / min(x)) ** (0.006 * (i - len(lines) / 2)) if bars else 1) for p in points]
        y = [p[1] for p in points]
        marks = [k for k, p in enumerate(points) if len(points) <= 16 or p[0] & (p[0] - 1) == 0]
        axes.plot(at, y, color=colour, linestyle=dash, marker=marker, markevery=marks, markersize=5, label=name)
        if bars:
            axes.vlines(at, [p[2] for p in points], [p[3] for p in points], color=colour, linewidth=0.8)
    axes.set_xticks(ticks(x), [label(n) for n in ticks(x)])
    axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(low, high)
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(axis='y', color='#dddddd')
    figure.legend(loc='outside lower left' if below else 'outside right center', frameon=False)
    return saved(figure, png)


def heat_map(png, panels, lengths):
    """Draws (title, results) with the percentage found in each length and depth: light for found, also in grey."""
    need()
    across = len(panels) if len(panels) <= 4 else int((len(panels) - 1) ** 0.5) + 1
    down = -(-len(panels) // across)
    figure, grid = pyplot.subplots(down, across, sharex=True, sharey=True, squeeze=False, layout='constrained',
                                   figsize=(1 + across * max(1.7, 0.55 * len(lengths)), 0.6 + 2.2 * down))
    for axes, (title, results) in zip(grid.flat, panels):
        trials = {c: len({r['trial'] for r in results if r['ctx'] == c}) for c in lengths}
        bins = min(DEPTHS, max(trials.values()))
        cells = {}
        for r in results:  # 10 % is in the bin 0 to 10
            at = lengths.index(r['ctx']), min(bins - 1, int(max(0, r['depth'] * bins - 1e-9) / 100))
            cells.setdefault(at, []).append(100 * (r['correct'] if 'correct' in r else r['score']))
        values = [[sum(c) / len(c) if (c := cells.get((i, b))) else float('nan') for i in range(len(lengths))]
                  for b in range(bins)]
        mesh = axes.imshow(values, cmap='cividis', vmin=0, vmax=100, aspect='auto',
                           extent=(-0.5, len(lengths) - 0.5, 100, 0))
        for (i, b), c in cells.items():
            mean = sum(c) / len(c)
            axes.text(i, 100 * (b + 0.5) / bins, f'{mean:.0f}', ha='center', va='center', size=7, color='w'
                      if mean < 55 else 'k')
        axes.set_title(title, size=9)
        axes.set_xticks(range(len(lengths)), [label(n) for n in lengths])
        axes.set_yticks([0, 25, 50, 75, 100])
    for axes in grid.flat[len(panels):]:
        axes.set_visible(False)
    figure.supxlabel('Context length (tokens)', size=10)
    figure.supylabel('Depth (%)', size=10)
    figure.colorbar(mesh, ax=grid, label='Found (%)', ticks=[0, 25, 50, 75, 100])
    return saved(figure, png)
