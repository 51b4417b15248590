# SPDX-License-Identifier: MIT
"""Models and sessions."""
import ctypes
import json
import os
import weakref
from ctypes import byref, c_char_p, c_int32, c_size_t, c_void_p

import numpy as np

from . import _library as lib
from ._library import KvasirError, library

__all__ = ["Model", "Session", "decode"]

PRIME = 16  # number of last prompt tokens that determine whether the text after them begins with a space


def _bytes(text):
    return None if text is None else os.fsencode(text)


def _fields(struct):
    """Returns a struct as a dictionary, with texts as str."""
    values = {name: getattr(struct, name) for name, _ in struct._fields_[1:]}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()}


def _ids(ids):
    """Returns token ids as an array of the library's type, and a pointer to it."""
    a = np.ascontiguousarray(ids, dtype=np.int32)
    if a.ndim != 1:
        raise ValueError(f"token ids: {a.ndim} dimensions, expected 1")
    return a, a.ctypes.data_as(lib.IDS)


def _list(call):
    """Returns the ids written by a function that also reports their number."""
    n = c_size_t()
    room = 256
    while True:
        a = np.empty(room, np.int32)
        call(a.ctypes.data_as(lib.IDS), room, byref(n))
        if n.value <= room:
            return a[: n.value].tolist()
        room = n.value


def _view(pointer, n, owner):
    """Returns a read-only array over memory of a session, which it keeps alive."""
    a = (pointer._type_ * n).from_address(ctypes.addressof(pointer.contents)) if n else (pointer._type_ * 0)()
    a._owner = owner
    view = np.frombuffer(a, dtype=np.dtype(pointer._type_)) if n else np.empty(0, np.dtype(pointer._type_))
    view.flags.writeable = False
    return view


class _Callbacks:
    """Python functions that the library calls. An exception stops the library call, which then raises it."""

    def __init__(self, log, progress):
        self.error = None
        self.log = lib.LOG(self._guarded(lambda _, level, line: log(level, line.decode("utf-8", "replace")), None)) \
            if log else lib.LOG()
        self.progress = lib.PROGRESS(self._guarded(lambda _, done, total: int(progress(done, total) is not False), 0)) \
            if progress else lib.PROGRESS()

    def _guarded(self, f, otherwise):
        def call(*arguments):
            try:
                return f(*arguments)
            except BaseException as e:  # cannot propagate through C
                self.error = self.error or e
                return otherwise

        return call

    def run(self, call, *arguments):
        try:
            call(*arguments)
        finally:
            error, self.error = self.error, None
            if error:
                raise error


class Model:
    """An open model. Threads may share a model; its sessions run one at a time."""

    def __init__(self, handle, callbacks):
        self._handle = handle
        self._callbacks = callbacks
        self._free = weakref.finalize(self, library.model_free, handle)
        info = lib.Info()
        library.model_info(handle, byref(info))
        self.info = _fields(info)

    @classmethod
    def from_pretrained(cls, folder, *, device=None, weights=None, gemm=None, threads=0, batch=0, chunk=0, ctx=0,
                        log=None, progress=None, draft=None, prefix_disk=None, prefix_ram=0, prefix_disk_bytes=0,
                        prefix_min=0):
        """Opens a Hugging Face model folder (config.json, safetensors, tokenizer) or a GGUF file. Downloads nothing.

        weights: "q8", "q4", "f16", ... gemm: "builtin" gives the same bits on every machine. batch: maximum number of
        sessions in one decode(). log(level, line): level 0 is information, 1 a warning. progress(done, total) is called
        after each chunk of a prompt; returning False stops. draft: "ngram", a strategy, or both; speeds up steps of one
        session without changing bits. prefix_ram, prefix_disk: bytes of memory and a folder for the prefix cache. Later
        prompts compute only what follows a cached prefix. A prompt is cached if at least prefix_min tokens are new.
        """
        callbacks = _Callbacks(log, progress)
        options = lib.Options(device=_bytes(device), weights=_bytes(weights), gemm=_bytes(gemm), threads=threads,
                              batch=batch, chunk=chunk, ctx=ctx, log=callbacks.log, progress=callbacks.progress,
                              draft=_bytes(draft), prefix_disk=_bytes(prefix_disk), prefix_ram=prefix_ram,
                              prefix_disk_bytes=prefix_disk_bytes, prefix_min=prefix_min)
        handle = c_void_p()
        callbacks.run(library.model_load, byref(handle), _bytes(folder), byref(options))
        return cls(handle.value, callbacks)

    def encode(self, text, *, bos=None, special=False):
        """Returns token ids. bos: begin with BOS; None: as the model's own tokenizer does. special: encode spellings of
        special tokens as these tokens."""
        data = text.encode()
        bos = self.info["adds_bos"] if bos is None else bos
        flags = (lib.BOS if bos else 0) | (lib.SPECIAL if special else 0)
        return _list(lambda *room: library.tokenize(self._handle, data, len(data), flags, *room))

    def decode(self, ids, *, special=False):
        """Returns the text of token ids; special: including special tokens."""
        a, p = _ids(ids)
        n = c_size_t()
        call = lambda text, room: library.detokenize(self._handle, p, len(a), lib.SPECIAL if special else 0, text, room,
                                                     byref(n))
        call(None, 0)
        text = ctypes.create_string_buffer(n.value + 1)
        call(text, len(text))
        return text.raw[: n.value].decode("utf-8", "replace")

    def chat(self, messages, *, template=None, tools=None, **variables):
        """Returns token ids of a conversation, [{"role": ..., "content": ...}], up to the start of the reply. A last
        message from the assistant is continued. template: a template of the model or a built-in one, a file, or a
        Jinja text. variables: of the template, such as enable_thinking=False."""
        conversation = json.dumps({**variables, "messages": messages, "tools": tools}).encode()
        return _list(lambda *room: library.chat_json(self._handle, _bytes(template), conversation, *room))

    def is_end(self, token):
        return bool(library.is_end(self._handle, token))

    def plan(self, strategy="full", *, store=None, limit=0):
        """Returns the bytes that such a session would need."""
        plan = lib.Plan()
        library.session_plan(self._handle, _bytes(strategy), _bytes(store), limit, byref(plan))
        return _fields(plan)

    def session(self, strategy="full", *, store=None, limit=0):
        """Creates a session. strategy: what its cache keeps and reads, such as "quest:budget=1024". store: format of
        keys and values, such as "f16". limit: maximum number of tokens (0: the model's context)."""
        handle = c_void_p()
        library.session_create(byref(handle), self._handle, _bytes(strategy), _bytes(store), limit)
        return Session(self, handle.value)

    def load_session(self, path):
        """Loads a saved session."""
        handle = c_void_p()
        library.session_load(byref(handle), self._handle, _bytes(path))
        return Session(self, handle.value)

    def __repr__(self):
        return f"<kvasir.Model {self.info['name']}: {self.info['architecture']}>"


class Session:
    """A sequence of tokens with its keys and values. Created by Model.session."""

    def __init__(self, model, handle):
        self.model = model
        self.finish_reason = None
        self._handle = handle
        self._free = weakref.finalize(self, library.session_free, handle)

    def fork(self):
        """Returns a copy of the session, which continues with the same bits."""
        handle = c_void_p()
        library.session_fork(byref(handle), self._handle)
        return Session(self.model, handle.value)

    def rewind(self, n):
        """Drops the tokens from position n on, if the strategy still can."""
        library.session_rewind(self._handle, n)

    def save(self, path):
        library.session_save(self._handle, _bytes(path))

    def feed(self, ids, *, steps=False, scores=False):
        """Feeds token ids as a prompt, or with steps=True one by one as if they had been generated. Most retrieval
        strategies select in steps only. A text is encoded first, with BOS at the session's start.

        scores=True returns two arrays: log-probabilities of the ids, and the most likely id at each position. The first
        token of a session has NaN and -1."""
        if isinstance(ids, str):
            ids = self.model.encode(ids, bos=None if len(self) == 0 else False)
        a, p = _ids(ids)
        room = (lib.Score * len(a))() if scores else None
        how = lib.STEPS if steps else lib.PROMPT
        self.model._callbacks.run(library.session_feed, self._handle, p, len(a), how, room)
        if scores:
            both = np.frombuffer(room, dtype=[("logprob", np.float32), ("best", np.int32)])
            return both["logprob"].copy(), both["best"].copy()
        return None

    @property
    def logits(self):
        """Logits of the next token: a read-only view, valid until the session's next call."""
        p = lib.FLOATS()
        library.session_logits(self._handle, byref(p))
        return _view(p, self.model.info["vocab"], self)

    @property
    def tokens(self):
        """Tokens fed so far."""
        p, n = lib.IDS(), c_size_t()
        library.session_tokens(self._handle, byref(p), byref(n))
        return p[: n.value]

    def sample(self, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, presence_penalty=0.0,
               frequency_penalty=0.0, seed=0):
        """Samples the next token from the logits without feeding it. temperature=0 and top_p=0 are greedy.
        repeat_penalty divides the logits of all tokens of the session. presence_penalty and frequency_penalty are
        OpenAI's, for the tokens fed as steps since the last prompt."""
        if repeat_penalty == 0:  # the library's default
            raise KvasirError("USAGE", "repeat_penalty 0: must be in (0, 10]")
        if not 0 <= seed < 2**63:  # ctypes would take its lowest bits
            raise KvasirError("USAGE", f"seed {seed}: must be from 0 to {2**63 - 1}")
        if top_p == 0:
            temperature, top_p = 0.0, 1.0
        o = lib.Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty,
                         presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, seed=seed)
        token = c_int32()
        library.session_sample(self._handle, byref(o), byref(token))
        return token.value

    def constrain(self, schema):
        """Constrains the tokens of sample() and generate() to JSON of a schema: a dict, the text of one, or None for no
        constraint. The tokens fed as steps since the last prompt belong to the value, and a prompt begins another one."""
        text = json.dumps(schema) if isinstance(schema, dict) else schema
        library.session_constrain(self._handle, None if text is None else text.encode())

    def watch(self, on=True):
        """Makes steps record what they read, for selection()."""
        library.session_watch(self._handle, on)

    def selection(self, layer, head):
        """Positions that a query head read in the last step: a read-only view, valid until the session's next call."""
        p, n = lib.IDS(), c_size_t()
        library.session_selection(self._handle, layer, head, byref(p), byref(n))
        return _view(p, n.value, self)

    def generate_tokens(self, prompt=None, max_new=256, *, stop_at_end=True, **sampling):
        """Feeds the prompt (text or ids), if any, and yields tokens as they are sampled. Each token is fed when the
        next one is requested. Closing the generator stops it. Then finish_reason is "stop" (end of text), "length"
        (max_new) or "context" (the session is full)."""
        self.finish_reason = None
        if prompt is not None:
            self.feed(prompt)
        limit = self.stats["limit"]
        for _ in range(max_new):
            token = self.sample(**sampling)
            if stop_at_end and self.model.is_end(token):
                self.finish_reason = "stop"
                return
            yield token
            if len(self) >= limit:
                self.finish_reason = "context"
                return
            decode([self], [token])
        self.finish_reason = "length"

    def generate(self, prompt=None, max_new=256, *, stop=(), **sampling):
        """Like generate_tokens, but yields pieces of text, up to the first text of `stop`. sampling: see sample()."""
        if prompt is not None:
            self.feed(prompt)
        stop = [stop] if isinstance(stop, str) else list(stop)
        text = _Text(self.model)
        for token in self.tokens[-PRIME:]:
            text.push(token)
        kept = ""
        for token in self.generate_tokens(None, max_new, **sampling):
            kept += text.push(token)
            found = min((at for at in (kept.find(s) for s in stop) if at >= 0), default=-1)
            if found >= 0:
                self.finish_reason = "stop"
                yield kept[:found]
                return
            # Holds back a possible beginning of a stop text.
            wait = max((k for s in stop for k in range(1, len(s)) if kept.endswith(s[:k])), default=0)
            ready, kept = kept[: len(kept) - wait], kept[len(kept) - wait:]
            if ready:
                yield ready
        kept += text.end()
        if kept:
            yield kept

    @property
    def stats(self):
        """Counts: tokens, bytes held and read, seconds."""
        s = lib.Stats()
        library.session_stats(self._handle, byref(s))
        return _fields(s)

    def __len__(self):
        n = c_size_t()
        library.session_tokens(self._handle, byref(lib.IDS()), byref(n))
        return n.value

    def __repr__(self):
        return f"<kvasir.Session {self.stats['strategy'].split(':')[0]}, {len(self)} tokens>"


class _Text:
    """Converts tokens to text one by one."""

    def __init__(self, model):
        handle = c_void_p()
        library.text_create(byref(handle), model._handle)
        self._handle = handle.value
        self._free = weakref.finalize(self, library.text_free, self._handle)

    def _call(self, f, *arguments):
        p, n = c_void_p(), c_size_t()
        f(self._handle, *arguments, byref(p), byref(n))
        return ctypes.string_at(p, n.value).decode("utf-8", "replace")

    def push(self, token):
        return self._call(library.text_push, token)

    def end(self):
        return self._call(library.text_end)


def decode(sessions, tokens):
    """Runs one step of several sessions of one model in a batch: feeds tokens[i] to sessions[i]."""
    a, p = _ids(tokens)
    if len(sessions) != len(a):
        raise ValueError(f"{len(a)} tokens for {len(sessions)} sessions")
    library.decode((c_void_p * len(sessions))(*(s._handle for s in sessions)), len(sessions), p)
