# SPDX-License-Identifier: MIT
"""An adapter for lm-evaluation-harness (0.4.5 or later), without PyTorch and without a server:

    python -m kvasir.lm_eval run --model kvasir --model_args model=DIR,attn=quest:budget=64:skip=0 --tasks arc_easy

The context is a prompt and the scored continuation is fed as decode steps, because retrieval strategies use full
attention in prompts. decode=N feeds at least the last N tokens of each text as steps, and always the whole continuation
(like `@decode=N` in requests to the server, where N covers it). decode=0 feeds no steps: texts are scored as prompts.
"""
import lm_eval.models  # noqa: F401: the harness registers its own models only if no others exist
import numpy as np
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from . import Model

__all__ = ["KvasirLM"]

MAX_NEW = 256  # tokens of a generation if its task sets no number


@register_model("kvasir")
class KvasirLM(TemplateLM):
    """model: model folder. attn, kv: strategy and store. max_length: tokens of context. add_bos: begin texts with BOS
    (default: as the model's own tokenizer does). template: chat template. run_on: "cpu" or "cuda". Other arguments:
    see Model.from_pretrained. The harness's --device and --batch_size are ignored: sequences run one at a time."""

    def __init__(self, model, attn="full", kv=None, decode=None, max_length=None, add_bos=None, template=None,
                 run_on=None, weights=None, gemm=None, threads=0, chunk=0, device=None, batch_size=None,
                 max_batch_size=None):
        super().__init__()
        self.model = Model.from_pretrained(str(model), device=run_on, weights=weights, gemm=gemm, threads=int(threads),
                                           chunk=int(chunk))
        self.attn, self.kv, self.template = attn, kv, template
        self.n_steps = None if decode is None else int(decode)
        self.max_length = int(max_length or self.model.info["max_positions"])
        self.add_bos = bool(self.model.info["adds_bos"]) if add_bos is None else str(add_bos).lower() in ("true", "1")
        self._ends = [i for i in range(self.model.info["vocab"]) if self.model.is_end(i)]

    @property
    def eot_token_id(self):
        return self._ends[0] if self._ends else self.model.info["bos"]

    @property
    def prefix_token_id(self):
        bos = self.model.info["bos"]
        return bos if bos >= 0 else self.eot_token_id

    @property
    def tokenizer_name(self):
        return self.model.info["name"]

    def tok_encode(self, string, add_special_tokens=None, **_):
        ids = self.model.encode(string, bos=False, special=True)
        bos = self.add_bos if add_special_tokens is None else add_special_tokens
        first = self.model.info["bos"]
        return [first] + ids if bos and first >= 0 and ids[:1] != [first] else ids

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        if not add_generation_prompt:
            raise NotImplementedError("continuing a reply is not supported")
        return self.model.decode(self.model.chat(chat_history, template=self.template), special=True)

    # ---- scores ----

    def _split(self, context, continuation):
        """Returns all ids and the number of ids that form the prompt; the others are steps."""
        ids = context + continuation
        if self.n_steps is None:
            return ids, len(context)
        if self.n_steps == 0:
            return ids, len(ids)
        return ids, max(1, min(len(context), len(ids) - self.n_steps))

    def _score(self, session, ids, n_scored):
        """Returns the log-probability of the last n_scored ids, and whether each of them is the most likely."""
        done = len(session)
        logprobs, best = (part[-n_scored:] for part in session.feed(ids[done:], steps=done > 0, scores=True))
        return float(logprobs.astype(np.float64).sum()), bool((best == np.array(ids[-n_scored:])).all())

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
        results = []
        base = prompt = None  # last prompt, shared by the choices of a question
        for key, context, continuation in tqdm(requests, disable=disable_tqdm, desc="Scoring"):
            context = context[-max(1, self.max_length - len(continuation)):]
            ids, n_prompt = self._split(context, continuation)
            if n_prompt == len(ids):
                session = self.model.session(self.attn, store=self.kv, limit=len(ids))
            else:
                if base is None or prompt != ids[:n_prompt]:
                    prompt = ids[:n_prompt]
                    base = self.model.session(self.attn, store=self.kv, limit=self.max_length)
                    base.feed(prompt)
                session = base.fork()
            results.append(self._score(session, ids, len(continuation)))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, results[-1])
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        results = []
        for (text,) in (r.args for r in requests):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = utils.get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1)
            pairs = [(None, *utils.make_disjoint_window(w)) for w in windows]
            results.append(sum(r[0] for r in self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), results[-1])
        return results

    # ---- generation ----

    def generate_until(self, requests, disable_tqdm=False):
        results = []
        for context, options in tqdm([r.args for r in requests], disable=disable_tqdm, desc="Generating"):
            o = dict(options)
            until = o.pop("until", None) or []
            max_new = int(o.pop("max_gen_toks", None) or o.pop("max_tokens", None) or MAX_NEW)
            sampling = {k: o[k] for k in ("temperature", "top_k", "top_p", "min_p", "seed") if o.get(k) is not None}
            if not o.get("do_sample", False):
                sampling = {}
            ids = self.tok_encode(context)[-max(1, self.max_length - max_new):]
            session = self.model.session(self.attn, store=self.kv, limit=len(ids) + max_new)
            n_prompt = self._split(ids, [])[1] if self.n_steps else len(ids)
            session.feed(ids[:n_prompt])
            session.feed(ids[n_prompt:], steps=True)
            results.append("".join(session.generate(None, max_new, stop=until, **sampling)))
            self.cache_hook.add_partial("generate_until", (context, options), results[-1])
        return results


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
