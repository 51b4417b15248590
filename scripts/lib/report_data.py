# SPDX-License-Identifier: MIT
"""Reads result files and collects their numbers, for scripts/report."""
import gzip
import hashlib
import json
import math
import sys
import zlib
from collections import Counter, defaultdict, namedtuple

RESAMPLES, SEED = 10_000, 42
LENGTHS = ('passkey', 'eval niah')  # commands whose columns are lengths, and whose samples have a depth
PROBLEMS = ('eval gsm8k', 'eval math', 'eval aime', 'eval gpqa', 'eval mmlu')
SCORES = ('eval longbench', 'eval longbench2', 'eval infinitebench', 'eval scbench', 'eval mrcr', 'eval ruler',
          *LENGTHS)
LINES = (*SCORES, *PROBLEMS, 'eval drift', 'eval pg19')
COMMANDS = (*LINES, 'eval recall', 'eval accept', 'bench')
KINDS = {'a boolean': bool, 'a number': (int, float), 'a string': str, 'an object': dict, 'a list': list,
         'null': type(None)}
KEYS = dict.fromkeys('score index turn needles trial ctx depth generated n temp differences batch tokens_per_s '
    'spread loss nll'
                     ' windows tokens book accept single_tokens_per_s times drafted accepted_length sample'
                     ' new_tokens'.split(),
                     'a number')
KEYS |= dict.fromkeys('attn dataset task difficulty draft phase model'.split(), 'a string')
KEYS |= dict.fromkeys('dense correct stopped loop enough'.split(), 'a boolean')
KEYS |= dict.fromkeys('budget recall mass out_err selected newest attended'.split(), 'a number or null')
KEYS |= {'scores': 'an object', 'answer': 'an object', 'curve': 'an object', 'samples': 'an object', 'right': 'a list'}
Row = namedtuple('Row', 'name attn budget')
Cell = namedtuple('Cell', 'score ci fewer')
noted = set()


def note(text):
    if text not in noted:
        print(f'report: {text}', file=sys.stderr)
    noted.add(text)


def fail(text):
    print(f'report: {text}', file=sys.stderr)
    sys.exit(1)


def show(value):
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 40 else text[:37] + '...'


class Result(dict):
    """An object of a file. Known keys of results have values of their kinds; a missing key is an error."""

    def __init__(self, value, where, keys=KEYS):
        self.where = where
        if not isinstance(value, dict):
            fail(f'{where}: not a JSON object')
        for key, v in value.items():
            kind = next(kind for kind, types in KINDS.items() if isinstance(v, types))
            if kind not in keys.get(key, kind):
                fail(f"{where}: '{key}' is {show(v)}, expected {keys[key]}")
        super().__init__({k: Result(v, where, {'enough': 'a boolean'}) if isinstance(v, dict) else v for k,
                          v in value.items()})

    def __missing__(self, key):
        fail(f"{self.where}: '{key}' is missing")


def parse(data, where):
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        fail(f'{where}: not valid JSON')


def read_file(path):
    """Reads JSON lines (the configuration, then results) or a report of --json."""
    try:
        with open(path, 'rb') as f:
            data = gzip.decompress(f.read()) if path.endswith('.gz') else f.read()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        fail(f'{path}: not a complete gzip file')
    except OSError as e:
        fail(f'{path}: {e.strerror}')
    if not data:
        fail(f'{path}: empty')
    lines = data.startswith(b'{"kvasir"')
    if lines:
        *data, rest = data.split(b'\n')
        if rest:
            note(f'{path}: incomplete last line ignored')
        if not data:
            fail(f'{path}: no complete line')
        head = Result(parse(data[0], f'{path} line 1'), f'{path} line 1', {})
        results = [Result(parse(x, f'{path} line {n}'), f'{path} line {n}') for n, x in enumerate(data[1:], 2)]
        if not results:
            note(f'{path}: no results yet')
    elif not data.lstrip().startswith(b'{') or b'"command"' not in data:
        fail(f'{path}: not a result file')
    else:
        head = Result(parse(data, path), path, {})
        results = [Result(r, f'{path} results[{n}]') for n, r in enumerate(head['results'])]
        head['config'] = {key: head.get(key) for key in ('version', 'model', 'device', 'threads', 'cpu')}
    command = head['kvasir' if lines else 'command']
    if command not in COMMANDS:
        fail(f"{path}: no tables of '{command}' are known")
    if not lines and command in LINES:
        fail(f'{path}: the --json of {command} has no samples; give the file of its -o')
    return {'path': path, 'command': command, 'config': head['config'], 'started': head.get('started'),
            'options': head.get('options') or {}, 'results': results}


def flat(value, path):
    """Yields (path, value) of the leaves of objects and of lists of objects with names."""
    if isinstance(value, list) and any(isinstance(v, dict) and 'name' in v for v in value):
        value = {v['name']: v for v in value}
    if isinstance(value, dict):
        for k, v in value.items():
            yield from flat(v, f'{path}.{k}' if path else k)
    else:
        yield path, value


def check_same(first, other):
    """Fails unless everything that numbers depend on is the same in two files of a command."""
    free = {'runs', {'passkey': 'ctx', 'eval pg19': 'lengths', 'eval ruler': 'lengths'}.get(first['command'])}
    x, y = dict(flat(first['config'], '')), dict(flat(other['config'], ''))
    for key in sorted({*x, *y}):
        part = key.split('.')[0]
        if part in free or part in ('data', 'samples') and not (key in x and key in y):  # datasets of one file
            continue
        if x.get(key) != y.get(key):
            fail(f"{other['path']} and {first['path']} cannot share a table: '{key}' is {show(y.get(key))} and"
                 f' {show(x.get(key))}')


# ---- rows and statistics ----

def row_of(r):
    name = r['attn'] if r['budget'] is None else f"{r['attn']} {r['budget']}"
    return Row(name, r['attn'], r['budget'])


def label(n):
    """Returns a length as text, with 1k for 1,024."""
    return f'{n // 1024}k' if n >= 1024 and n % 1024 == 0 else str(n)


def size(text):
    return int(text[:-1]) * 1024 if text.endswith('k') else int(text)


def results_of(files, key=None):
    """Yields the results of files; of those with equal keys, the first."""
    seen = set()
    for r in (r for f in files for r in f['results']):
        k = key(r) if key else id(r)
        if k in seen:
            note('duplicate results are counted once')
        else:
            seen.add(k)
            yield r


def interval(values):
    x = sorted(values)

    def quantile(q):
        at = q * (len(x) - 1)
        i = int(at)
        return x[i] + ((at - i) * (x[i + 1] - x[i]) if i + 1 < len(x) else 0)
    return quantile(0.025), quantile(0.975)


def draws(name, n):
    """Yields RESAMPLES lists of n indices below n, by the generator of drand48: the same on every machine. The seed
    depends on the name: rows of a column share its draws, which keeps comparisons between rows paired."""
    x = int.from_bytes(hashlib.md5(f'{SEED} {n} {name}'.encode()).digest()[:4], 'big') << 16 | 0x330E
    for _ in range(RESAMPLES):
        drawn = []
        for _ in range(n):
            x = (x * 0x5DEECE66D + 11) & 0xFFFFFFFFFFFF
            drawn.append(n * x >> 48)
        yield drawn


def resample(name, lists):
    """Returns the means, in percent, of resamples of lists of one length."""
    n = len(lists[0])
    means = [[100 * x[0]] * RESAMPLES for x in lists]
    varies = [k for k, x in enumerate(lists) if any(v != x[0] for v in x)]
    for b, drawn in enumerate(draws(name, n) if varies else ()):
        for k in varies:
            means[k][b] = 100 * sum(map(lists[k].__getitem__, drawn)) / n
    return means


class Scores:
    """Scores of rows in columns: cells[row, column] and average[row] are Cells, n[column] numbers of samples."""

    def __init__(self):
        self.columns, self.lines, self.samples, self.wanted = [], defaultdict(list), defaultdict(dict), {}
        self.cells, self.average, self.n = {}, {}, {}

    def add(self, row, column, sample, score):
        if column not in self.columns:
            self.columns.append(column)
        self.samples[row, column][sample] = score

    def evaluate(self):
        sums = defaultdict(lambda: [0] * RESAMPLES)
        for c in self.columns:
            groups = defaultdict(list)
            for row in (row for row in self.lines if (row, c) in self.samples):
                groups[len(self.samples[row, c])].append((row, [x for _, x in sorted(self.samples[row, c].items())]))
            self.n[c] = max(*groups, self.wanted.get(c, 0))
            for n, group in groups.items():
                for (row, x), means in zip(group, resample(c, [x for _, x in group])):
                    score = round(100 * sum(x) / n, 2)  # as the official scripts round
                    self.cells[row, c] = Cell(score, interval(means), n < self.n[c])
                    sums[row] = [a + b for a, b in zip(sums[row], means)]
        for row in self.lines:
            of = [self.cells[row, c] for c in self.columns if (row, c) in self.cells]
            fewer = len(of) < len({*self.wanted, *self.columns}) or any(c.fewer for c in of)
            self.average[row] = Cell(sum(c.score for c in of) / len(of), interval(x / len(of) for x in sums[row]),
                                     fewer)
        return self


def wilson(k, n):
    """Returns Wilson's 95 % interval of k in n."""
    p, z2 = k / n, 1.959963984540054 ** 2
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    return tuple((p + z2 / (2 * n) + h) / (1 + z2 / n) for h in (-half, half))


def fit_line(points):
    """Returns (value at 0, slope) of the line with the least sum of squared relative errors."""
    p = [(1 / (y * y) if y > 0 else 1, x, y) for x, y in points]
    s, sx, sy = sum(w for w, x, y in p), sum(w * x for w, x, y in p), sum(w * y for w, x, y in p)
    sxx, sxy = sum(w * x * x for w, x, y in p), sum(w * x * y for w, x, y in p)
    slope = (s * sxy - sx * sy) / (s * sxx - sx * sx)
    return (sy - slope * sx) / s, slope


# ---- collected numbers, by command ----

def sample_of(command, r):
    """Returns the columns in which a sample counts, its key, and its score."""
    if command in LENGTHS:
        return [label(r['ctx'])], f"{r['ctx']} {r['trial']}", int(r['correct']) if command == 'passkey' else r['score']
    if command == 'eval longbench2':
        return ['overall', r['difficulty'], r['length']], str(r['index']), r['score']
    if command == 'eval mrcr':
        return [f"{r['needles']} needles"], str(r['index']), r['score']
    dataset = r['task' if command == 'eval ruler' else 'dataset']
    turn = f" turn {r['turn']}" if command == 'eval scbench' else ''
    return [dataset], f"{dataset} {r['index']}{turn}", r['score']


def collect_scores(command, files, only):
    # The reasoning before an answer has no score; LongBench v2 leaves out empty outputs, whose judge is null.
    files = [{**f, 'results': [r for r in f['results'] if ('pass' not in r or 'score' in r) and r.get('judge',
        0) is not None]}
             for f in files]
    t = Scores()
    for r in results_of(files, lambda r: (row_of(r), sample_of(command, r)[1])):
        columns, sample, score = sample_of(command, r)
        columns = [c for c in columns if not only or c in only]
        for c in columns:
            t.add(row_of(r), c, sample, score)
        if columns:
            t.lines[row_of(r)].append(r)
    for c in (f['config'] for f in files):
        n = {label(x): c['trials'] for x in c['ctx'] if x != 'max'} if command in LENGTHS else c.get('samples')
        t.wanted |= {k: v for k, v in n.items() if not only or k in only} if isinstance(n, dict) else {}
    if command in LENGTHS:
        t.columns.sort(key=size)
    if command == 'eval longbench2':
        known = ['overall', 'easy', 'hard', 'short', 'medium', 'long']
        t.columns.sort(key=lambda c: (known.index(c) if c in known else 9, c))
    return t.evaluate() if t.columns else fail(f'no result of {command} is left')


def by_length(files):
    """Yields (length, files) of eval ruler; 0 for prompts that were read from a file."""
    for n in sorted({r['length'] or 0 for r in results_of(files)}):
        yield n, [{**f, 'results': [r for r in f['results'] if (r['length'] or 0) == n]} for f in files]


def collect_problems(files):
    """Returns scores by rule; a problem counts once, with the mean over its samples."""
    t, samples = Scores(), defaultdict(list)
    for r in results_of(files, lambda r: (row_of(r), r['index'], r['sample'])):
        t.lines[row_of(r)].append(r)
        for rule, score in sorted(r['scores'].items()):
            samples[row_of(r), rule, r['index']].append(score)
    for (row, rule, index), x in samples.items():
        t.add(row, rule, index, sum(x) / len(x))
    t.wanted = dict.fromkeys(t.columns, max(f['config'].get('problems') or 0 for f in files))
    return t.evaluate()


def collect_pg19(files):
    """Returns {row: {length: [(book, sum, n)]}}: sums of losses, and of what they are over."""
    t = defaultdict(lambda: defaultdict(list))
    for r in results_of(files, lambda r: (row_of(r), r['book'], r['length'])):
        if 'curve' in r:
            points = [(n, n * math.log(p), n) for n, p in zip(r['curve']['length'], r['curve']['ppl'])]
        else:
            total, n = ('loss', 'windows') if 'windows' in r else ('nll', 'tokens')
            points = [(r['length'], r[total], r[n])]
        for length, total, n in points:
            t[row_of(r)][length].append((r['book'], total, n))
    return t


def perplexity(points):
    return math.exp(sum(p[1] for p in points) / sum(p[2] for p in points))


def collect_recall(files):
    """Returns {(row, ctx): {selected, recall, mass, out_err}}: means over the layers that are not dense."""
    t = defaultdict(lambda: defaultdict(list))
    for r in (r for r in results_of(files) if not r['dense']):
        for key in ('selected', 'recall', 'mass', 'out_err'):
            t[row_of(r), r['ctx']][key] += [r[key]] if r[key] is not None else []
    return {k: {key: sum(x) / len(x) if x else None for key, x in values.items()} for k, values in t.items()}


def collect_accept(files):
    """Returns {(row, temperature): counts}, added up over texts. Pieces of one text are counted once."""
    t, seen = defaultdict(Counter), set()
    for f in files:
        text = f['options'].get('text_sha256') or json.dumps(f['results'])
        for r in (r for r in f['results'] if r['n']):
            key = row_of(r), r['temp']
            pieces = {(text, f['options'].get('seed'), key, r.get('kv'), p.get('ctx', 0))
                      for p in r.get('by_context', [{}])}
            again = pieces & seen
            seen |= pieces
            if again and again != pieces:
                fail(f'{r.where}: its pieces of {min(p[4] for p in again)} tokens are in another file too, but not '
                f'all of its pieces')
            if again:
                note('duplicate results are counted once')
            else:
                t[key].update({k: r[k] for k in ('n', 'tokens', 'differences')})
                t[key].update(dict(enumerate(r['right'])))
    return t


def collect_drift(files):
    """Returns {row: its results by the number of new tokens}."""
    t = defaultdict(list)
    for r in results_of(files, lambda r: (row_of(r), r['generated'])):
        t[row_of(r)].append(r)
    return {row: sorted(x, key=lambda r: r['generated']) for row, x in t.items()}


def collect_bench(files):
    """Returns results of speeds, and results of speeds with drafts."""
    speeds, drafts = [], []
    for r in results_of(files):
        if r['tokens_per_s'] <= 0 or r.get('single_tokens_per_s', 1) <= 0:
            fail(f"{r.where}: 'tokens_per_s' is not positive")
        if 'draft' in r:
            r['name'] = r['draft'] + (f", weights {r['draft_weights']}" if r.get('draft_weights') else '')
            r['mark'] = '' if r['enough'] else '?'
            drafts.append(r)
        elif r['phase'] in ('prefill', 'decode'):
            r |= {'name': row_of(r).name, 'mark': '' if r.get('samples', {'enough': True})['enough'] else '?',
                  'kv': r.get('kv', '-'), 'weights': r.get('weights', '-')}
            r['ms'] = 1000 * r['batch'] / r['tokens_per_s']  # of a step, which is of all sequences of a batch
            speeds.append(r)
    return speeds, drafts
