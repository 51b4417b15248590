# SPDX-License-Identifier: MIT
"""LLM inference with KV-cache retrieval built in.

    model = kvasir.Model.from_pretrained("DIR")
    session = model.session("quest:budget=1024")
    for piece in session.generate("It was a dark night, and the", 50, temperature=0.7, seed=1):
        print(piece, end="", flush=True)
"""
from ._library import KvasirError, library
from ._model import Model, Session, decode

__all__ = ["KvasirError", "Model", "Session", "decode"]
__version__ = library.version
