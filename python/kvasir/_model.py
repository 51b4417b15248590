# SPDX-License-Identifier: MIT
"""Models and sessions."""
import ctypes
import os
import weakref
from ctypes import byref, c_char_p, c_int32, c_size_t, c_void_p

import numpy as np

from . import _library as lib
from ._library import library

__all__ = ["Model", "Session", "decode"]

PRIME = 16  # last tokens of a prompt, which say whether the text behind it begins with a space


def _bytes(text):
    return None if text is None else os.fsencode(text)


def _fields(struct):
    """A struct as a dictionary, its texts as str."""
    values = {name: getattr(struct, name) for name, _ in struct._fields_[1:]}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()}


def _ids(ids):
    """Any list of token ids as an array of the library's type, and a pointer to it."""
    a = np.ascontiguousarray(ids, dtype=np.int32)
    if a.ndim != 1:
        raise ValueError(f"token ids: {a.ndim} dimensions, expected 1")
    return a, a.ctypes.data_as(lib.IDS)


def _list(call):
    """Ids of a function that tells how many there are."""
    n = c_size_t()
    room = 256
    while True:
        a = np.empty(room, np.int32)
        call(a.ctypes.data_as(lib.IDS), room, byref(n))
        if n.value <= room:
            return a[: n.value].tolist()
        room = n.value


def _view(pointer, n, owner):
    """A read-only array over memory of a session, which it keeps alive."""
    a = (pointer._type_ * n).from_address(ctypes.addressof(pointer.contents)) if n else (pointer._type_ * 0)()
    a._owner = owner
    view = np.frombuffer(a, dtype=np.dtype(pointer._type_)) if n else np.empty(0, np.dtype(pointer._type_))
    view.flags.writeable = False
    return view


class _Callbacks:
    """Python functions as the library calls them. An exception stops the call, which then raises it."""

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
            except BaseException as e:  # it cannot pass through C
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
    """A model's folder, opened. Threads may share it; its sessions take turns."""

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
        """Opens a folder as Hugging Face has them: config.json, safetensors, tokenizer. Nothing is downloaded.

        weights: "q8", "q4", "f16", ...; gemm: "builtin" for the same bits on every machine; batch: most sessions of one
        decode(). log(level, line): 0 tells, 1 warns. progress(done, total): behind each chunk of a prompt; False stops.
        draft: "ngram", a strategy, or both: speeds up steps of one session and changes no bits. prefix_ram, prefix_disk:
        bytes of memory and a folder for the prefix cache, of whose prompts later ones compute only what is new, if that
        is at least prefix_min tokens.
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
        """Token ids. bos: begin with BOS; None: as the model's own tokenizer does. special: spellings of special tokens
        become these tokens."""
        data = text.encode()
        bos = self.info["adds_bos"] if bos is None else bos
        flags = (lib.BOS if bos else 0) | (lib.SPECIAL if special else 0)
        return _list(lambda *room: library.tokenize(self._handle, data, len(data), flags, *room))

    def decode(self, ids, *, special=False):
        """Text of token ids; special: with special tokens."""
        a, p = _ids(ids)
        n = c_size_t()
        call = lambda text, room: library.detokenize(self._handle, p, len(a), lib.SPECIAL if special else 0, text, room,
                                                     byref(n))
        call(None, 0)
        text = ctypes.create_string_buffer(n.value + 1)
        call(text, len(text))
        return text.raw[: n.value].decode("utf-8", "replace")

    def chat(self, messages, *, template=None):
        """Token ids of a conversation, [{"role": ..., "content": ...}], up to where the reply begins."""
        list_ = (lib.Message * len(messages))(*((m["role"].encode(), m["content"].encode()) for m in messages))
        return _list(lambda *room: library.chat(self._handle, _bytes(template), list_, len(list_), *room))

    def is_end(self, token):
        return bool(library.is_end(self._handle, token))

    def plan(self, strategy="full", *, store=None, limit=0):
        """Bytes that such a session would take."""
        plan = lib.Plan()
        library.session_plan(self._handle, _bytes(strategy), _bytes(store), limit, byref(plan))
        return _fields(plan)

    def session(self, strategy="full", *, store=None, limit=0):
        """A session: what its cache keeps and reads ("quest:budget=1024"), how it holds keys and values ("f16"), and
        the most tokens that it takes (0: the model's context)."""
        handle = c_void_p()
        library.session_create(byref(handle), self._handle, _bytes(strategy), _bytes(store), limit)
        return Session(self, handle.value)

    def load_session(self, path):
        """A session that was saved."""
        handle = c_void_p()
        library.session_load(byref(handle), self._handle, _bytes(path))
        return Session(self, handle.value)

    def __repr__(self):
        return f"<kvasir.Model {self.info['name']}: {self.info['architecture']}>"


class Session:
    """A sequence of tokens with its keys and values. Model.session makes it."""

    def __init__(self, model, handle):
        self.model = model
        self._handle = handle
        self._free = weakref.finalize(self, library.session_free, handle)

    def fork(self):
        """Another session that goes on from here with the same bits."""
        handle = c_void_p()
        library.session_fork(byref(handle), self._handle)
        return Session(self.model, handle.value)

    def rewind(self, n):
        """Forgets the tokens from position n on, where the strategy still can."""
        library.session_rewind(self._handle, n)

    def save(self, path):
        library.session_save(self._handle, _bytes(path))

    def feed(self, ids, *, steps=False, scores=False):
        """Feeds token ids as a prompt, or with steps=True one by one as if they had been generated: most strategies
        that retrieve do so in steps only. A text is encoded first, with BOS at the session's start.

        scores=True gives two arrays: log-probabilities of the ids, and the most likely id at each place; NaN and -1 for
        the first token of a session."""
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
        """Logits of the next token, a read-only view that is valid until the session's next call."""
        p = lib.FLOATS()
        library.session_logits(self._handle, byref(p))
        return _view(p, self.model.info["vocab"], self)

    @property
    def tokens(self):
        """All tokens fed so far."""
        p, n = lib.IDS(), c_size_t()
        library.session_tokens(self._handle, byref(p), byref(n))
        return p[: n.value]

    def sample(self, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, seed=0):
        """Chooses the next token from the logits and feeds nothing."""
        o = lib.Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty,
                         seed=seed)
        token = c_int32()
        library.session_sample(self._handle, byref(o), byref(token))
        return token.value

    def watch(self, on=True):
        """Steps note what they read, for selection()."""
        library.session_watch(self._handle, on)

    def selection(self, layer, head):
        """Positions that a query head read in the last step: a read-only view, valid until the session's next call."""
        p, n = lib.IDS(), c_size_t()
        library.session_selection(self._handle, layer, head, byref(p), byref(n))
        return _view(p, n.value, self)

    def generate_tokens(self, prompt=None, max_new=256, *, stop_at_end=True, **sampling):
        """Feeds a prompt, a text or ids, if there is one, and yields tokens as they are chosen; each is fed before the
        next one is asked for. Closing the generator stops it."""
        if prompt is not None:
            self.feed(prompt)
        for _ in range(max_new):
            token = self.sample(**sampling)
            if stop_at_end and self.model.is_end(token):
                return
            yield token
            decode([self], [token])

    def generate(self, prompt=None, max_new=256, *, stop=(), **sampling):
        """The same as pieces of text, up to the first of the texts `stop`; sampling as for sample()."""
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
                yield kept[:found]
                return
            # What could be the beginning of a stop text waits.
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
    """Text token by token."""

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
    """One step of several sessions of one model together: tokens[i] is fed to sessions[i]."""
    a, p = _ids(tokens)
    if len(sessions) != len(a):
        raise ValueError(f"{len(a)} tokens for {len(sessions)} sessions")
    library.decode((c_void_p * len(sessions))(*(s._handle for s in sessions)), len(sessions), p)
