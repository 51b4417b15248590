# SPDX-License-Identifier: MIT
"""ctypes bindings of libkvasir: structs and functions of kvasir.h, with errors as exceptions."""
import ctypes
import ctypes.util
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path

__all__ = ["KvasirError", "library"]


class KvasirError(Exception):
    """Error of the library, in one line; status is the name of its status, such as "USAGE"."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


STATUS = ["OK", "USAGE", "NOMEM", "IO", "FORMAT", "UNSUPPORTED", "DEVICE", "INTERRUPTED"]
PROMPT, STEPS = 0, 1
BOS, SPECIAL = 1, 2
INFO, WARNING = 0, 1

LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
PROGRESS = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_int64)


class Sized(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


def sized(name, *fields):
    return type(name, (Sized,), {"_fields_": [("struct_size", c_size_t), *fields]})


Options = sized(
    "Options", ("device", c_char_p), ("weights", c_char_p), ("gemm", c_char_p), ("threads", c_int32),
    ("batch", c_int32), ("chunk", c_int32), ("flags", c_int32), ("ctx", c_int64), ("log", LOG),
    ("progress", PROGRESS), ("arg", c_void_p), ("draft", c_char_p), ("prefix_disk", c_char_p), ("prefix_ram", c_int64),
    ("prefix_disk_bytes", c_int64), ("prefix_min", c_int64))
Info = sized(
    "Info", ("name", c_char_p), ("architecture", c_char_p), ("weights", c_char_p), ("device", c_char_p),
    ("about", c_char_p), ("parameters", c_int64), ("weight_bytes", c_int64), ("max_positions", c_int64),
    ("ctx", c_int64), *((name, c_int32) for name in ("vocab", "layers", "heads", "kv_heads", "head_dim", "hidden",
                                                     "feed_forward", "threads", "batch", "chunk", "bos", "adds_bos")))
Plan = sized("Plan", *((name, c_int64) for name in ("kv", "index", "scratch", "available")))
Sampling = sized(
    "Sampling", ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("repeat_penalty", c_double),
    ("seed", c_uint64), ("top_k", c_int32), ("flags", c_int32), ("presence_penalty", c_double),
    ("frequency_penalty", c_double))
Stats = sized(
    "Stats", ("length", c_int64), ("limit", c_int64), ("steps", c_int64), ("attended", c_double), ("visible", c_double),
    ("kv_read_bytes", c_double), ("index_read_bytes", c_double), ("kv_bytes", c_int64), ("kv_peak_bytes", c_int64),
    ("index_bytes", c_int64), ("prompt_seconds", c_double), ("step_seconds", c_double), ("strategy", c_char_p),
    ("store", c_char_p), ("prefix_tokens", c_int64), ("drafted", c_int64), ("draft_accepted", c_int64))


class Score(ctypes.Structure):
    _fields_ = [("logprob", c_float), ("best", c_int32)]


IDS, FLOATS, SIZE, HANDLE = POINTER(c_int32), POINTER(c_float), POINTER(c_size_t), POINTER(c_void_p)

# Argument types, without the last two: the buffer for a message and its size.
CALLS = {
    "model_load": (HANDLE, c_char_p, POINTER(Options)),
    "model_info": (c_void_p, POINTER(Info)),
    "tokenize": (c_void_p, c_char_p, c_size_t, c_int32, IDS, c_size_t, SIZE),
    "detokenize": (c_void_p, IDS, c_size_t, c_int32, c_char_p, c_size_t, SIZE),
    "chat_json": (c_void_p, c_char_p, c_char_p, IDS, c_size_t, SIZE),
    "text_create": (HANDLE, c_void_p),
    "text_push": (c_void_p, c_int32, POINTER(c_void_p), SIZE),
    "text_end": (c_void_p, POINTER(c_void_p), SIZE),
    "session_plan": (c_void_p, c_char_p, c_char_p, c_int64, POINTER(Plan)),
    "session_create": (HANDLE, c_void_p, c_char_p, c_char_p, c_int64),
    "session_fork": (HANDLE, c_void_p),
    "session_rewind": (c_void_p, c_int64),
    "session_feed": (c_void_p, IDS, c_size_t, c_int32, POINTER(Score)),
    "decode": (HANDLE, c_size_t, IDS),
    "session_tokens": (c_void_p, POINTER(IDS), SIZE),
    "session_logits": (c_void_p, POINTER(FLOATS)),
    "session_sample": (c_void_p, POINTER(Sampling), IDS),
    "session_constrain": (c_void_p, c_char_p),
    "session_watch": (c_void_p, c_int32),
    "session_selection": (c_void_p, c_int32, c_int32, POINTER(IDS), SIZE),
    "session_save": (c_void_p, c_char_p),
    "session_load": (HANDLE, c_void_p, c_char_p),
    "session_stats": (c_void_p, POINTER(Stats)),
}


def find():
    """Returns the library's path: $KVASIR_LIBRARY, else in this package, in the build folder that holds the package's
    sources, or on the system's search path."""
    if named := os.environ.get("KVASIR_LIBRARY"):
        return named
    package = Path(__file__).resolve().parent
    for path in sorted(package.glob("libkvasir.so*")) + sorted(package.parent.parent.glob("libkvasir.so.*.*")):
        return str(path)
    return ctypes.util.find_library("kvasir") or "libkvasir.so.0"


class Library:
    """Functions of kvasir.h, without their prefix. Instead of returning a message they raise KvasirError."""

    def __init__(self, path):
        try:
            self.dll = ctypes.CDLL(path)
        except OSError as e:
            raise ImportError(f"libkvasir: {e} (set KVASIR_LIBRARY to its path)") from None
        for name, arguments in CALLS.items():
            setattr(self, name, self.checked(name, arguments))
        for name in ("model", "session", "text"):
            setattr(self, name + "_free", self.plain(name + "_free", None, c_void_p))
        self.is_end = self.plain("is_end", c_int32, c_void_p, c_int32)
        self.version = self.plain("version", c_char_p)().decode()

    def plain(self, name, result, *arguments):
        f = getattr(self.dll, "kvasir_" + name)
        f.restype, f.argtypes = result, arguments
        return f

    def checked(self, name, arguments):
        f = self.plain(name, c_int32, *arguments, c_char_p, c_size_t)

        def call(*values):
            message = ctypes.create_string_buffer(256)
            status = f(*values, message, len(message))
            if status:
                word = STATUS[status] if status < len(STATUS) else str(status)
                raise KvasirError(word, message.value.decode("utf-8", "replace"))

        return call


library = Library(find())
