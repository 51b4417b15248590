# SPDX-License-Identifier: MIT
"""Reads result files and computes statistics of their numbers, for scripts/report and scripts/bench_compare."""
import argparse
import gzip
import hashlib
import json
import math
import os
import sys
import zlib
from collections import Counter, defaultdict, namedtuple
from statistics import quantiles

RESAMPLES, SEED = 10_000, 42
LENGTHS = ('passkey', 'eval niah')  # commands whose columns are lengths, and whose samples have a depth
PROBLEMS = ('eval gsm8k', 'eval math', 'eval aime', 'eval gpqa', 'eval mmlu')
NUMBERS = set('score index turn needles trial ctx depth generated n temp differences batch tokens_per_s spread loss nll'
              ' windows tokens book accept single_tokens_per_s times drafted accepted_length sample new_tokens budget'
              ' recall mass out_err selected newest attended correct stopped loop enough dense'.split())
# Results of one strategy in which these keys are equal are one result.
IDENTITY = 'dataset task ctx length book trial index turn sample generated pass'.split()
Row = namedtuple('Row', 'name attn budget')
Cell = namedtuple('Cell', 'score ci fewer')
Group = namedtuple('Group', 'command files results only')  # only: datasets to report, empty for all
noted = set()


def say(text):
    print(f'{os.path.basename(sys.argv[0])}: {text}', file=sys.stderr)


def note(text):
    if text not in noted:
        say(text)
    noted.add(text)


def fail(text, status=1):
    say(text)
    sys.exit(status)


class Parser(argparse.ArgumentParser):
    def error(self, text):
        fail(f'{text} (--help explains)', 2)


def compact(value):
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(',', ':'))


def shortened(text):
    return text if len(text) <= 40 else text[:37] + '...'


def show(value):
    return shortened(json.dumps(value, ensure_ascii=False, sort_keys=True))


class Result(dict):
    """JSON object of a file; a missing key is an error."""

    def __init__(self, value, where):
        self.where = where
        if not isinstance(value, dict):
            fail(f'{where}: not a JSON object')
        for key, v in value.items():
            if key in NUMBERS and not isinstance(v, (int, float, type(None))):
                fail(f"{where}: '{key}' is {show(v)}, expected a number")
        super().__init__(value)

    def __missing__(self, key):
        fail(f"{self.where}: '{key}' is missing")

    @property
    def row(self):
        return Row(self['attn'] if self['budget'] is None else f"{self['attn']} {self['budget']}", self['attn'],
                   self['budget'])


def parse(data, where):
    try:
        return json.loads(data.decode(), parse_constant=int)  # NaN is refused
    except (ValueError, RecursionError):
        fail(f'{where}: not valid JSON')


def read_file(path):
    """Returns (configuration, results) of JSON lines or of a report of --json."""
    try:
        with open(path, 'rb') as f:
            data = gzip.decompress(f.read()) if path.endswith('.gz') else f.read()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        fail(f'{path}: not a complete gzip file')
    except OSError as e:
        fail(f'{path}: {e.strerror}')
    if data.startswith(b'{"kvasir"'):
        *lines, rest = data.split(b'\n')
        if rest:
            note(f'{path}: incomplete last line ignored')
        lines = [(x, f'{path} line {n}') for n, x in enumerate(lines, 1)] or fail(f'{path}: no complete line')
        head, *results = [Result(parse(x, where), where) for x, where in lines]
        return head, results
    if not data.lstrip().startswith(b'{') or b'"command"' not in data:
        fail(f"{path}: {'not a result file' if data else 'empty'}")
    head = Result(parse(data, path), path)
    head['config'] = {key: head.get(key) for key in ('version', 'model', 'device', 'threads', 'cpu')}
    options = head.get('options') or {}
    results = [Result(r, f'{path} results[{n}]') for n, r in enumerate(head['results'])]
    for r in results:
        r.text = options.get('text_sha256') or str(head['results']), options.get('seed')
    return head, results


def flat(value, path=''):
    """Yields (path, value) of the leaves of objects and of lists of objects with names."""
    if isinstance(value, list) and any(isinstance(v, dict) and 'name' in v for v in value):
        value = {v['name']: v for v in value}
    if isinstance(value, dict):
        for k, v in value.items():
            yield from flat(v, f'{path}.{k}' if path else k)
    else:
        yield path, value


def check_same(command, first, other):
    """Fails unless two files of a command agree in all settings that affect numbers."""
    free = {'runs', {'passkey': 'ctx', 'eval pg19': 'lengths', 'eval ruler': 'lengths'}.get(command)}
    x, y = dict(flat(first['config'])), dict(flat(other['config']))
    for key in sorted({*x, *y}):
        part = key.split('.')[0]
        in_one = part in ('data', 'samples') and not (key in x and key in y)  # a dataset in only one of the files
        if part not in free and not in_one and x.get(key) != y.get(key):
            fail(f"{other.where} and {first.where} cannot share a table: '{key}' is {show(y.get(key))} and"
                 f' {show(x.get(key))}')


def label(n):
    """Returns a length as text, with 1k for 1,024."""
    return f'{n // 1024}k' if n >= 1024 and n % 1024 == 0 else str(n)


def size(text):
    return int(text[:-1]) * 1024 if text.endswith('k') else int(text)


def mean_of(results, key):
    x = [r[key] for r in results if isinstance(r.get(key), (int, float))]
    return sum(x) / len(x) if x else None


def grouped(results, key):
    """Returns {key(result): its results}."""
    groups = defaultdict(list)
    for r in results:
        groups[key(r)].append(r)
    return groups


# ---- statistics ----

def interval(values):
    x = quantiles(values, n=40, method='inclusive')
    return x[0], x[-1]


def below(seed):
    """Returns a function that draws a number below n, by the generator of drand48: the same on every machine."""
    x = int.from_bytes(hashlib.md5(seed.encode()).digest()[:4], 'big') << 16 | 0x330E

    def draw(n):
        nonlocal x
        x = (x * 0x5DEECE66D + 11) & 0xFFFFFFFFFFFF
        return n * x >> 48
    return draw


def draws(name, n):
    """Yields RESAMPLES lists of n indices below n. The seed depends on the name: rows of a column share its draws."""
    draw = below(f'{SEED} {n} {name}')
    for _ in range(RESAMPLES):
        yield [draw(n) for _ in range(n)]


def wilson(k, n):
    """Returns Wilson's 95 % interval of k in n. k: also the sum of n scores in [0, 1], which vary less than right and
    wrong answers of the same mean: the interval is then wider than necessary."""
    p, z2 = k / n, 1.959963984540054 ** 2
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    return tuple((p + z2 / (2 * n) + h) / (1 + z2 / n) for h in (-half, half))


def mean_interval(cells):
    """Returns the interval of the mean of independent cells: distances from the scores to their limits add up as
    squares (Newcombe 1998, method 10)."""
    mean = sum(c.score for c in cells) / len(cells)
    low, high = (math.sqrt(sum((c.ci[k] - c.score) ** 2 for c in cells)) / len(cells) for k in (0, 1))
    return mean - low, mean + high


def fit_line(points):
    """Returns (value at 0, slope) of the line with the least sum of squared relative errors."""
    p = [(1 / (y * y) if y > 0 else 1, x, y) for x, y in points]
    s, sx, sy = sum(w for w, x, y in p), sum(w * x for w, x, y in p), sum(w * y for w, x, y in p)
    sxx, sxy = sum(w * x * x for w, x, y in p), sum(w * x * y for w, x, y in p)
    slope = (s * sxy - sx * sy) / (s * sxx - sx * sx)
    return (sy - slope * sx) / s, slope


# ---- scores ----

def scores_of(command, r):
    """Returns (column, sample, score) for each column in which a result counts."""
    if command in PROBLEMS:
        return [(rule, r['index'], score) for rule, score in sorted(r['scores'].items())]
    if command in LENGTHS:
        return [(label(r['ctx']), str(r['trial']), int(r['correct']) if command == 'passkey' else r['score'])]
    if command == 'eval longbench2':
        return [(column, str(r['index']), r['score']) for column in ('overall', r['difficulty'], r['length'])]
    if command == 'eval mrcr':
        return [(f"{r['needles']} needles", str(r['index']), r['score'])]
    column = r['task' if command == 'eval ruler' else 'dataset']
    return [(column, (str(r['index']), str(r['turn']) if command == 'eval scbench' else ''), r['score'])]


def wanted(command, config, columns):
    """Returns {column: number of samples} of a complete run."""
    if command in PROBLEMS:
        return dict.fromkeys(columns, config.get('problems') or 0)
    if command in LENGTHS:
        return {label(n): config['trials'] for n in config['ctx'] if n != 'max'}
    return config['samples'] if isinstance(config.get('samples'), dict) else {}


class Scores:
    """Scores of rows in columns: cells[row, column] and average[row] are Cells, n[column] numbers of samples,
    lines[row] results. The score of a sample with several results (a problem of mathematics) is their mean."""

    def __init__(self, group):
        command, self.lines, samples = group.command, defaultdict(list), defaultdict(lambda: defaultdict(dict))
        counts = lambda column: not group.only or column in group.only or command in PROBLEMS
        for r in group.results:
            # The reasoning before an answer has no score; LongBench v2 leaves out empty outputs, whose judge is null.
            if 'pass' in r and 'score' not in r or r.get('judge', 0) is None:
                continue
            scores = [x for x in scores_of(command, r) if counts(x[0])]
            for column, sample, score in scores:
                samples[column][r.row].setdefault(sample, []).append(score)
            if scores:
                self.lines[r.row].append(r)
        self.columns = list(samples) or fail(f'no result of {command} matches the filters')
        if command in LENGTHS:
            self.columns.sort(key=size)
        if command == 'eval longbench2':
            known = 'overall easy hard short medium long'
            self.columns.sort(key=lambda c: (known.find(c) % 99, c))
        self.wanted = {c: n for f in group.files for c, n in wanted(command, f['config'], self.columns).items()
                       if counts(c)}
        self.cells, self.average, self.n = {}, {}, {}
        self.evaluate(samples)

    def evaluate(self, samples):
        for c in self.columns:
            means = {row: [sum(x) / len(x) for _, x in sorted(of.items())] for row, of in samples[c].items()}
            self.n[c] = max(self.wanted.get(c, 0), *map(len, means.values()))
            for row, x in means.items():
                score = round(100 * sum(x) / len(x), 2)  # as the official scripts round
                ci = tuple(100 * limit for limit in wilson(sum(x), len(x)))
                self.cells[row, c] = Cell(score, ci, len(x) < self.n[c])
        for row in self.lines:
            of = [self.cells[row, c] for c in self.columns if (row, c) in self.cells]
            fewer = len(of) < len({*self.wanted, *self.columns}) or any(c.fewer for c in of)
            self.average[row] = Cell(sum(c.score for c in of) / len(of), mean_interval(of), fewer)


# ---- other numbers, for tables and pictures ----

def by_length(group):
    """Yields (length, Group) of eval ruler; the length is 0 for prompts read from a file."""
    for n, results in sorted(grouped(group.results, lambda r: r['length'] or 0).items()):
        yield n, group._replace(results=results)


def losses(group):
    """Returns {row: {length: [(book, sum, n)]}} with sums of n losses."""
    t = defaultdict(lambda: defaultdict(list))
    for r in group.results:
        total, n = ('loss', 'windows') if 'windows' in r else ('nll', 'tokens')
        points = [(r['length'], r[total], r[n])]
        if 'curve' in r:
            points = [(n, n * math.log(p), n) for n, p in zip(r['curve']['length'], r['curve']['ppl'])]
        for length, *loss in points:
            t[r.row][length].append((r['book'], *loss))
    return t


def perplexity(points):
    return math.exp(sum(p[1] for p in points) / sum(p[2] for p in points))


def recall_of(group):
    """Returns {(row, context): results of the layers that are not dense}."""
    return grouped((r for r in group.results if not r['dense']), lambda r: (r.row, r['ctx']))


def accepted(group):
    """Returns {(row, temperature): counts}, added up over texts. Pieces of one text are counted once."""
    t, seen = defaultdict(Counter), set()
    for r in (r for r in group.results if r['n']):
        key = r.row, r['temp']
        pieces = {(r.text, key, r.get('kv'), p.get('ctx', 0)) for p in r.get('by_context', [{}])}
        again = pieces & seen
        seen |= pieces
        if again and again != pieces:
            fail(f'{r.where}: its pieces of {min(p[3] for p in again)} tokens are in another file too, but not all'
                 ' of its pieces')
        if again:
            note('duplicate results are counted once')
            continue
        t[key].update({k: r[k] for k in ('n', 'tokens', 'differences')} | dict(enumerate(r['right'])))
    return t


def agreement(counts):
    return counts[0] / counts['n'], *wilson(counts[0], counts['n'])


def drift_of(group):
    return {row: sorted(x, key=lambda r: r['generated']) for row, x in grouped(group.results, lambda r: r.row).items()}


def bench_of(group):
    """Returns the results without drafts and those with drafts."""
    speeds, drafts = [], []
    for r in group.results:
        if r['tokens_per_s'] <= 0 or r.get('single_tokens_per_s', 1) <= 0:
            fail(f"{r.where}: 'tokens_per_s' is not positive")
        if 'draft' in r:
            r['name'] = r['draft'] + (f", weights {r['draft_weights']}" if r.get('draft_weights') else '')
            r['mark'] = '' if r['enough'] else '?'
            drafts.append(r)
        elif r['phase'] in ('prefill', 'decode'):
            r |= {'name': r.row.name, 'mark': '' if r.get('samples', {'enough': True})['enough'] else '?',
                  'kv': r.get('kv', '-'), 'weights': r.get('weights', '-')}
            r['ms'] = 1000 * r['batch'] / r['tokens_per_s']  # time of a step of all sequences of a batch
            speeds.append(r)
    return speeds, drafts


def with_context(speeds):
    return [r for r in speeds if r['phase'] == 'decode' and r['ctx'] > 0]


def varying(rows, *keys):
    return [k for k in keys if len({r.get(k) for r in rows}) > 1]


def named(r, several):
    """Returns the name of a line: the strategy and the values of the keys that vary."""
    return ', '.join([r['name'], *(f"batch {r[k]}" if k == 'batch' else r[k] for k in several)])
