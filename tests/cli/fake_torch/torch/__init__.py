# SPDX-License-Identifier: MIT
"""Stands in for PyTorch in gpu_peer.t. Tensors have shapes only; an operation whose shapes do not fit raises ValueError,
as PyTorch's would. A device holds MEMORY bytes."""
import contextlib
import math
import os

__version__ = "0.0-shapes"
bfloat16, float32, long, bool = "bfloat16", "float32", "int64", "bool"
SIZES = {bfloat16: 2, float32: 4, long: 8, bool: 1}
MEMORY = int(os.environ.get("FAKE_TORCH_MEMORY", 1 << 30))
in_graph = False


class OutOfMemoryError(RuntimeError):
    pass


def broadcast(a, b):
    shape = []
    for i in range(1, max(len(a), len(b)) + 1):
        x, y = (a[-i] if i <= len(a) else 1), (b[-i] if i <= len(b) else 1)
        if x != y and 1 not in (x, y):
            raise ValueError(f"shapes {a} and {b} do not fit")
        shape.insert(0, max(x, y))
    return tuple(shape)


class Tensor:
    held = 0

    def __init__(self, shape, dtype, view=False):
        self.shape, self.dtype, self.bytes = tuple(shape), dtype, 0
        if view:
            return
        self.bytes = self.numel() * SIZES[dtype]
        if Tensor.held + self.bytes > MEMORY:
            self.bytes = 0
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {self.numel()} elements\nsecond line")
        Tensor.held += self.bytes

    def __del__(self):
        Tensor.held -= self.bytes

    def numel(self):
        return math.prod(self.shape)

    def same(self, *_):
        return self

    uniform_ = normal_ = tril = rsqrt = same

    def pow(self, _):
        return Tensor(self.shape, self.dtype)

    def float(self):
        return Tensor(self.shape, float32)

    def to(self, dtype):
        return Tensor(self.shape, dtype)

    def mean(self, dim, keepdim):
        assert dim == -1 and keepdim
        return Tensor((*self.shape[:-1], 1), self.dtype)

    def __add__(self, other):
        return Tensor(broadcast(self.shape, getattr(other, "shape", ())), self.dtype)

    def __mul__(self, other):
        if self.dtype != other.dtype:
            raise ValueError(f"{self.dtype} times {other.dtype} would leave {self.dtype}")
        return self + other

    def reshape(self, *shape):
        known = math.prod(n for n in shape if n != -1)
        shape = [self.numel() // known if n == -1 else n for n in shape]
        if math.prod(shape) != self.numel():
            raise ValueError(f"{self.shape} does not become {shape}")
        return Tensor(shape, self.dtype, view=True)

    view = reshape

    def transpose(self, a, b):
        shape = list(self.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return Tensor(shape, self.dtype, view=True)

    def split(self, sizes, dim):
        if sum(sizes) != self.shape[dim]:
            raise ValueError(f"{self.shape} does not split into {sizes}")
        return [Tensor((*self.shape[:dim], n, *self.shape[dim + 1:]), self.dtype, view=True) for n in sizes]

    def chunk(self, n, dim):
        assert dim == -1 and self.shape[-1] % n == 0
        return [Tensor((*self.shape[:-1], self.shape[-1] // n), self.dtype, view=True) for _ in range(n)]

    def argmax(self, dim):
        assert dim == -1
        return Tensor(self.shape[:-1], long)

    def copy_(self, other):
        if self.shape != other.shape:
            raise ValueError(f"{other.shape} is not copied to {self.shape}")

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        if len(key) > len(self.shape):
            raise ValueError(f"{len(key)} indices for {self.shape}")
        cut = []
        for n, s in zip(self.shape, key):
            if s.stop is not None and s.stop > n:
                raise ValueError(f"{s} is outside of {self.shape}")
            cut.append(len(range(*s.indices(n))))
        return Tensor((*cut, *self.shape[len(key):]), self.dtype, view=True)

    def __setitem__(self, key, value):
        self[key].copy_(value)


class Device:
    def __init__(self, name):
        self.type = name.split(":")[0]


def device(name):
    return Device(name)


def empty(*shape, dtype, device):
    assert isinstance(device, Device)
    return Tensor(shape[0] if isinstance(shape[0], tuple) else shape, dtype)


ones = zeros = empty


def rsqrt(x):
    return x


@contextlib.contextmanager
def inference_mode():
    yield


class cuda:
    class Stream:
        def wait_stream(self, other):
            assert isinstance(other, cuda.Stream)

    class CUDAGraph:
        def replay(self):
            pass

    @staticmethod
    def current_stream():
        return cuda.Stream()

    @staticmethod
    @contextlib.contextmanager
    def stream(_):
        yield

    @staticmethod
    @contextlib.contextmanager
    def graph(_):
        global in_graph
        in_graph = True
        yield
        in_graph = False

    @staticmethod
    def synchronize(_):
        if in_graph:
            raise RuntimeError("a synchronization while a graph is captured")

    @staticmethod
    def empty_cache():
        pass
