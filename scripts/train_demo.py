#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Train the built-in demo model: a small Llama that reads English books and finds things in its context.

  train_demo.py --data BOOKS --heldout HELDOUT --work SCRATCH --out model/demo --minutes 200 [--resume]
  train_demo.py ... --export     evaluate the checkpoint in SCRATCH and write the Hugging Face directory
  train_demo.py ... --probe      measure which layers carry retrieval, and what key selection does to it

BOOKS holds *.txt or *.txt.xz, one paragraph a line. The curriculum: copy random tokens; passkeys at 256
tokens with jumps in the positions (PoSE); longer and longer real sequences; then mostly books.
"""
import argparse
import csv
import functools
import io
import json
import math
import os
import random
import re
import sys
import time

import numpy as np
import sentencepiece as spm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

from demo_net import Model, Muon, seed_copying
from demo_tasks import (BOS, Corpus, EOS, LENGTHS, SEED, SHAPE, STD_G, STD_Q, STD_T, book_files, copy_batch, encode_task, read_text,
    task_batch, task_standard)

# share: of the whole time; until: go on early once the check at that length reaches 95 %; book, task: tokens of
# one step; mix: weights of 128 and LENGTHS for the tasks; jump: largest position; lr: factor at the start and the end.
PHASES = [
    dict(name="copy", share=.034, until=0, book=0, task=2048, mix=None, jump=1024, lr=(1, 1)),
    dict(name="first tasks", share=.098, until=256, book=2048, task=2048, mix=(0, 4, 3, 2, 0, 0), jump=4600, lr=(1, 1)),
    dict(name="to 256", share=.055, until=256, book=1024, task=3072, mix=(4, 5, 1, 0, 0, 0), jump=4600, lr=(.6, .6)),
    dict(name="to 4096", share=.026, until=4096, book=3072, task=2048, mix=(1, 3, 3, 3, 2, 1), jump=6000, lr=(.6, .6)),
    dict(name="books", share=.115, until=0, book=3072, task=2048, mix=(1, 4, 3, 3, 2, 1), jump=8100, lr=(.6, .03)),
    dict(name="finish", share=.098, until=0, book=2048, task=3072, mix=(1, 4, 3, 3, 2, 2), jump=8100, lr=(.4, .02)),
    dict(name="more books", share=.44, until=0, book=6144, task=1024, mix=(1, 4, 4, 3, 2, 1), jump=8100, lr=(.7, .2)),
    dict(name="settle", share=.134, until=0, book=5120, task=2048, mix=(1, 3, 3, 3, 2, 2), jump=8100, lr=(.2, 0)),
]


# ---------------------------------------------------------------- training

def make_step(phase, step, corpus, level, rank, world):
    """One worker's batches of one step: (ids, kinds, positions, local layers)."""
    n = random.Random(SEED + step).choices((128,) + LENGTHS, phase["mix"])[0] if phase["mix"] else 0
    rng = random.Random((SEED * 1000003 + step) * world + rank)
    if phase["mix"] is None:
        out = [copy_batch(rng, phase["task"] // world, level)]
    else:
        out = [task_batch(rng, corpus, n, max(1, phase["task"] // world // n))]
        if rng.random() < .1:
            out.append(copy_batch(rng, 1024 // world, level))
    made = []
    for ids, kinds in out:
        pos = torch.arange(ids.shape[1] - 1).repeat(len(ids), 1)
        if rng.random() < .7 and level > 1:
            for row in pos:
                for at in rng.sample(range(ids.shape[1] - 1), 3):
                    room = phase["jump"] - int(row[-1])
                    if room > 0:
                        row[at:] += int(room * rng.random() ** 3)
        near = rng.choice((16, 32, 64)) if phase["mix"] else 16
        local = ((0, 1), near) if ids.shape[1] <= 1025 and rng.random() < .6 else None
        made.append((ids, kinds, pos, local))
    left = phase["book"] // world
    while left > 0:
        made.append((*corpus.book_batch(rng, min(4096, left)), None, None))
        left -= 4096
    return made


def train_step(model, batches):
    """Gradients of (mean over book tokens) + (mean over answer tokens); returns both means."""
    n = [max(1, sum(int((k[:, 1:] == kind).sum()) for _, k, _, _ in batches)) for kind in (1, 2)]
    sums = [0., 0.]
    for ids, kinds, pos, local in batches:
        ce = F.cross_entropy(model(ids[:, :-1], pos, local).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = 0.
        for i in (0, 1):
            part = (ce * (kinds[:, 1:].flatten() == i + 1)).sum() / n[i]
            sums[i] += part.item()
            loss = loss + part
        loss.backward()
    return sums


@torch.no_grad()
def quick_check(model, corpus, rank, world, trials=12):
    """Passkey accuracy by length, keys of the test's range, answers checked without generating them."""
    rng, out = random.Random(7), {}
    for n in LENGTHS:
        rows, good = [], 0
        for t in range(trials if n < 2048 else trials // 2):
            parts = task_standard(rng, corpus, int((n - 60) * 2.82) - 250, str(rng.randint(1, 50000)), rng.random(), True)
            ids, kinds = encode_task(corpus.sp, parts, 400)
            rows.append((ids, kinds.index(2)))
        mine = rows[rank::world]
        for i in range(0, len(mine), max(1, 4096 // n)):
            part = mine[i:i + max(1, 4096 // n)]
            longest = max(len(r) for r, _ in part)
            guess = model(torch.tensor([r + [EOS] * (longest - len(r)) for r, _ in part])).argmax(-1)
            good += sum(guess[j, a - 1:len(r) - 2].tolist() == r[a:-1] for j, (r, a) in enumerate(part))
        out[n] = sum_over(good) / len(rows)
        if out[n] < .2:
            break
    return out


def sum_over(*values):
    """The sums of some numbers over all workers."""
    x = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(x)
    return x.tolist() if len(values) > 1 else float(x)


def rounded(model):
    """A copy with the weights rounded to bfloat16, as they are exported."""
    copy = Model()
    copy.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    return copy.eval()


def save(state, path):
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def train(rank, args):
    world, corpus = args.workers, Corpus(args.data, args.work)
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(args.work, "meet"), rank=rank, world_size=world)
    torch.manual_seed(SEED)
    model = Model()
    seed_copying(model)
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    opts = [Muon(matrices, lr=args.lr), torch.optim.AdamW(others, lr=args.lr / 6, betas=(.9, .95), weight_decay=0.)]
    base = [o.param_groups[0]["lr"] for o in opts]
    state = dict(phase=0, step=0, tokens=0, spent=0., phase_spent=0., level=2, mean=8., log=[], checks=[], phases=[])
    path = os.path.join(args.work, "last.pt")
    say = (lambda *a: print(*a, flush=True)) if rank == 0 else (lambda *a: None)
    if args.resume:
        loaded = torch.load(path, weights_only=False)
        model.load_state_dict(loaded["model"])
        for o, s in zip(opts, loaded["opts"]):
            o.load_state_dict(s)
        state = loaded["state"]
    total, tick, saved = args.minutes * 60, time.time(), time.time()
    while state["phase"] < len(PHASES):
        phase = PHASES[state["phase"]]
        last = phase is PHASES[-1]
        length = total * phase["share"] if not last else total - (state["spent"] - state["phase_spent"])
        done = min(1., state["phase_spent"] / max(length, 1))
        factor = phase["lr"][0] + (phase["lr"][1] - phase["lr"][0]) * done
        for o, lr in zip(opts, base):
            o.param_groups[0]["lr"] = lr * factor * min(1, (state["step"] + 1) / 20)
        batches = make_step(phase, state["step"], corpus, state["level"], rank, world)
        losses = train_step(model, batches)
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        for p, g in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad.copy_(g.view_as(p) / world)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.))
        for o in opts:
            o.step()
            o.zero_grad()
        *losses, spent, tokens = sum_over(*losses, time.time() - tick, sum(b[0].numel() for b in batches))
        tick, losses = time.time(), [x / world for x in losses]
        state["spent"] += spent / world
        state["phase_spent"] += spent / world
        state["step"] += 1
        state["tokens"] += int(tokens)
        row = [state["step"], state["tokens"], round(state["spent"]), phase["name"], *losses]
        state["log"].append(row)
        end = state["phase_spent"] >= length
        state["mean"] = .9 * state["mean"] + .1 * losses[1]
        if phase["mix"] is None and state["mean"] < 1:
            say("copy: longer", state["step"])
            state["level"], state["mean"] = state["level"] + 1, 3.
            end = end or state["level"] > 4
        if state["step"] % (50 if phase["until"] else 300) == 0 or end:
            acc = quick_check(rounded(model), corpus, rank, world) if phase["mix"] else {}
            state["checks"].append([state["step"], acc])
            say(*row[:4], *(f"{x:.3f}" for x in losses), f"norm {norm:.2f} lr {factor:.3f}", acc)
            end = end or acc.get(phase["until"], 0) >= .95
        elif state["step"] % 10 == 0:
            say(*row[:4], *(f"{x:.3f}" for x in losses), f"norm {norm:.2f}")
        if end:
            state["phases"].append(dict(name=phase["name"], steps=state["step"], tokens=state["tokens"],
                                        seconds=round(state["spent"])))
            state["phase"], state["phase_spent"] = state["phase"] + 1, 0.
        if rank == 0 and (end or time.time() - saved > 180):
            saved = time.time()
            save(dict(model=model.state_dict(), opts=[o.state_dict() for o in opts], state=state), path)
            if end:
                save(dict(model=model.state_dict(), state=state), os.path.join(args.work, phase["name"] + ".pt"))


# ---------------------------------------------------------------- evaluation

def test_prompt(n, n_pre, key):
    g = STD_G + " "
    g = g * (n // len(g) + 1)
    info = f"The pass key is {key}. Remember it. {key} is the pass key."
    return "\n".join((STD_T, g[:n_pre], info, g[:n - n_pre], STD_Q))


def filler_length(sp, ctx):
    """The largest multiple of 128 characters with which prompt, BOS, 10 new and 8 spare tokens fit in ctx."""
    n = 0
    while len(sp.encode(test_prompt(n + 128, (n + 128) // 2, 50000))) + 1 + 18 <= ctx:
        n += 128
    return n


def causal(q, k):
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])


def pick_recent(budget, q, k):
    """StreamingLLM: the first four positions and the latest ones."""
    i = torch.arange(k.shape[2])
    near = i[None] > torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - (budget - 4)
    return (causal(q, k) & (near | (i < 4))).expand(1, q.shape[1], -1, -1)


def pick_top(budget, q, k):
    """The exact largest q k."""
    s = (q @ k.mT).masked_fill(~causal(q, k), -1e9)
    best = s.topk(min(budget, s.shape[-1]), -1).indices
    return torch.zeros_like(s, dtype=torch.bool).scatter_(-1, best, True) & causal(q, k)


def pick_pages(budget, q, k, page=16):
    """Quest: whole pages by the upper bound of q k, at least three."""
    n = -(-k.shape[2] // page)
    full = F.pad(k, (0, 0, 0, n * page - k.shape[2]), mode="replicate").unflatten(2, (n, page))
    high, low = full.amax(3)[:, :, None], full.amin(3)[:, :, None]
    bound = torch.maximum(q[:, :, :, None] * high, q[:, :, :, None] * low).sum(-1)
    bound = bound.masked_fill(~causal(q, k)[:, ::page], -1e9)
    best = bound.topk(min(n, max(3, budget // page)), -1).indices
    keep = torch.zeros_like(bound, dtype=torch.bool).scatter_(-1, best, True)
    return keep.repeat_interleave(page, -1)[..., :k.shape[2]] & causal(q, k)


PICKS = {"StreamingLLM": pick_recent, "Quest, page 16": pick_pages, "exact top-k": pick_top}
SHARED = {}


def load_shared(path, tokenizer):
    """What every worker of the evaluation needs."""
    torch.set_num_threads(1)
    model = Model()
    model.load_state_dict(torch.load(path, weights_only=False)["model"])
    SHARED.update(model=rounded(model), sp=spm.SentencePieceProcessor(model_file=tokenizer))


@torch.no_grad()
def passkey(ctx, t, trials, ways):
    """Trial t of the standard test, once for each way (method, budget, layers) of attending while decoding.

    The last 400 characters are tokenized alone; the way counts from there on. The newest page's bound sees the rest
    of that page, otherwise the 400 characters are treated as if they were fed one token at a time.
    """
    model, sp = SHARED["model"], SHARED["sp"]
    n, key = filler_length(sp, ctx), random.Random(f"{SEED}/{ctx}/{t}").randint(1, 50000)
    text = test_prompt(n, n * (100 * (t + 1) // trials) // 100, key)
    before = [{} for _ in model.layers]
    model(torch.tensor([[BOS] + sp.encode(text[:-400])]), cache=before)
    right = []
    for method, budget, layers in ways:
        cache, new, ids = [dict(c) for c in before], [], sp.encode(text[-400:])
        picks = [functools.partial(PICKS[method], budget) if i in layers else None for i in range(len(cache))]
        while len(new) < 10:
            new.append(int(model(torch.tensor([ids]), cache=cache, picks=picks)[0, -1].argmax()))
            ids = new[-1:]
            if ids[0] == EOS:
                break
        digits = re.search(r"\d+", sp.decode(new))
        right.append(digits is not None and int(digits.group()) == key)
    return right


@torch.no_grad()
def perplexity(path, window=1024):
    """Windows that do not overlap, each of BOS and window - 1 tokens of the book; every token is scored once."""
    text, nll = read_text(path), 0.
    ids, size = SHARED["sp"].encode(text), len(text.encode())
    for a in range(0, len(ids), window - 1):
        x = torch.tensor([[BOS] + ids[a:a + window - 1]])
        nll += float(F.cross_entropy(SHARED["model"](x[:, :-1])[0], x[0, 1:], reduction="sum"))
    return dict(tokens=len(ids), bytes=size, ppl=round(math.exp(nll / len(ids)), 2),
                bits_per_byte=round(nll / math.log(2) / size, 3))


def evaluate(pool, args):
    """Passkey by length with full attention, and perplexity of the held-out books."""
    out = dict(trials=args.trials, passkey={}, books={})
    names = args.books.split(",")
    paths = [p for p in book_files(args.heldout) if os.path.basename(p).split(".")[0] in names] if args.heldout else []
    for ctx in LENGTHS[2:]:
        few = args.trials
        got = pool.starmap(passkey, [(ctx, t, few, [("", 0, ())]) for t in range(few)], chunksize=1)
        out["passkey"][ctx] = [sum(r[0] for r in got), few]
        print("passkey", ctx, out["passkey"][ctx], "missed:", [t for t in range(few) if not got[t][0]], flush=True)
    for path, r in zip(paths, pool.map(perplexity, paths, chunksize=1)):
        out["books"][os.path.basename(path).split(".")[0]] = r
        print("book", path, r, flush=True)
    return out


def probe(pool, ctx=1500, trials=10):
    """Passkey where decoding attends to 64 positions in some layers only, and with key selection."""
    n = SHAPE["num_hidden_layers"]
    sets = [[i] for i in range(n)] + [list(range(i)) for i in range(2, n + 1)] + [list(range(i, n)) for i in range(1, n - 1)]
    ways = {f"layers {s[0]}-{s[-1]}" if len(s) > 1 else f"layer {s[0]}": ("StreamingLLM", 64, s) for s in sets}
    for name in PICKS:
        for skip in (0, 2):
            ways.update({f"{name}, skip={skip}, {b}": (name, b, list(range(skip, n))) for b in (32, 64, 128, 256)})
    got = pool.starmap(passkey, [(ctx, t, trials, list(ways.values())) for t in range(trials)], chunksize=1)
    out = {name: sum(r[i] for r in got) for i, name in enumerate(ways)}
    print("probe", out, flush=True)
    return dict(ctx=ctx, trials=trials, right=out)


# ---------------------------------------------------------------- export

def write_model(model, work, out):
    """The Hugging Face files, each written beside its place and then renamed."""
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    put = lambda name, data: (open(os.path.join(out, name + ".tmp"), "wb").write(data),
                              os.replace(os.path.join(out, name + ".tmp"), os.path.join(out, name)))
    dump = lambda name, obj: put(name, (json.dumps(obj, indent=2) + "\n").encode())
    tensors = {"model." + k: v.bfloat16().contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, os.path.join(work, "model.safetensors"), metadata={"format": "pt"})
    put("model.safetensors", open(os.path.join(work, "model.safetensors"), "rb").read())
    put("tokenizer.model", open(os.path.join(work, "tokenizer.model"), "rb").read())
    dump("config.json", dict(architectures=["LlamaForCausalLM"], model_type="llama", **SHAPE, hidden_act="silu",
                             attention_bias=False, attention_dropout=0.0, mlp_bias=False, initializer_range=0.02,
                             bos_token_id=BOS, eos_token_id=EOS, pad_token_id=None, pretraining_tp=1, rope_scaling=None,
                             tie_word_embeddings=True, torch_dtype="bfloat16", use_cache=True))
    dump("generation_config.json", dict(bos_token_id=BOS, eos_token_id=EOS, do_sample=False))
    dump("tokenizer_config.json", dict(
        tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=False, bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", pad_token=None, legacy=True, add_prefix_space=True, clean_up_tokenization_spaces=False,
        model_max_length=SHAPE["max_position_embeddings"], sp_model_kwargs={}))
    return put, dump


def write_loss(log, put):
    """loss.csv: means over ten steps; loss.png: the same, smoothed, against tokens."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    rows = []
    for i in range(0, len(log) - 9, 10):
        part = log[i:i + 10]
        rows.append([*part[-1][:4], *(round(float(np.mean([r[c] for r in part])), 4) for c in (4, 5))])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["step", "tokens", "seconds", "phase", "books", "answers"], *rows])
    put("loss.csv", text.getvalue().encode())
    fig, ax = plt.subplots(figsize=(7, 3.6), dpi=100)
    x = [r[1] / 1e6 for r in rows]
    ax.plot([a for a, r in zip(x, rows) if r[4] > 0], [r[4] for r in rows if r[4] > 0], lw=1, label="books")
    ax.plot(x, [r[5] for r in rows], lw=1, label="answers (copying, passkeys, look-ups, quotations)")
    for i in range(len(rows)):
        if i == 0 or rows[i][3] != rows[i - 1][3]:
            ax.axvline(x[i], color="0.8", lw=.8, zorder=0)
            ax.text(x[i], 8.4, " " + rows[i][3], fontsize=7, rotation=90, va="top")
    ax.set(xlabel="million tokens", ylabel="loss (nats a token)", ylim=(0, 9.6))
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(.5, -.17), ncol=2, frameon=False)
    fig.tight_layout()
    png = io.BytesIO()
    fig.savefig(png, format="png")
    put("loss.png", png.getvalue())


def export(args, corpus):
    """Write everything that model/demo holds but README.md's tables, from the checkpoint in the work folder."""
    loaded = torch.load(os.path.join(args.work, args.checkpoint), weights_only=False)
    state, model = loaded["state"], Model()
    model.load_state_dict(loaded["model"])
    put, dump = write_model(model, args.work, args.out)
    write_loss(state["log"], put)
    path = os.path.join(args.work, "results.json")
    results = json.load(open(path)) if os.path.exists(path) else {}
    if args.trials or args.probe:
        shared = [os.path.join(args.work, n) for n in (args.checkpoint, "tokenizer.model")]
        with mp.get_context("spawn").Pool(args.workers, load_shared, shared) as pool:
            if args.trials:
                results["evaluation"] = evaluate(pool, args)
            if args.probe:
                results["probe"] = probe(pool)
    open(path, "w").write(json.dumps(results))
    dump("train.json", dict(
        seed=SEED, parameters=sum(p.numel() for p in model.parameters()), steps=state["step"], tokens=state["tokens"],
        seconds=round(state["spent"]), minutes=args.minutes, learning_rate=args.lr, phases=PHASES, phase_ends=state["phases"],
        checks=state["checks"], versions=dict(python=sys.version.split()[0], torch=torch.__version__,
                                                      sentencepiece=spm.__version__, numpy=np.__version__),
        results=results, books=corpus.names))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True)
    ap.add_argument("--heldout")
    ap.add_argument("--work", required=True)
    ap.add_argument("--out")
    ap.add_argument("--minutes", type=float, default=200)
    ap.add_argument("--lr", type=float, default=.02)
    ap.add_argument("--workers", type=int, default=2, help="processes that share every step")
    ap.add_argument("--threads", type=int, default=1, help="threads of each")
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--export", action="store_true")
    ap.add_argument("--probe", action="store_true")
    ap.add_argument("--checkpoint", default="last.pt")
    ap.add_argument("--trials", type=int, default=100, help="of the passkey test; 0: leave it out")
    ap.add_argument("--books", default="10146,58,860", help="held-out books to measure")
    args = ap.parse_args()
    os.makedirs(args.work, exist_ok=True)
    corpus = Corpus(args.data, args.work)
    if not args.export:
        if os.path.exists(os.path.join(args.work, "meet")):
            os.remove(os.path.join(args.work, "meet"))
        mp.spawn(train, (args,), nprocs=args.workers)
    if args.out:
        export(args, corpus)


if __name__ == "__main__":
    sys.exit(main())
