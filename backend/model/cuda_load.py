"""From a model folder, or from shapes alone, to a runner on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from forktree.backend.cache.kv_pool import KVLayout
from forktree.backend.model.config import ModelConfig, read_config
from forktree.backend.model.cuda_graphs import LADDERS, Capture, CudaCapture, Ladders
from forktree.backend.model.cuda_llama import DeviceModel, build_device_model
from forktree.backend.model.cuda_pool import DevicePool, count_device_pages
from forktree.backend.model.cuda_runner import DeviceRunner
from forktree.backend.model.weights import open_weights
from forktree.kernels.attention_triton_plan import GPU_SPLIT
from forktree.lang.errors import ModelError

DEFAULT_PAGE_SIZE = 16
DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_device_runner(
    folder: str | Path,
    *,
    device: str = "cuda",
    dtype: str = "auto",
    kv_tokens: int | None = None,
    page_size: int | None = None,
    vocab_size: int,
) -> DeviceRunner:
    """Load a model folder to a device.

    Args:
        device: "cuda" or "cuda:0" …
        dtype: of weights, activations, keys and values: one of `DTYPES`; "auto" is bfloat16.
        kv_tokens: tokens of the KV pool; by default as many as nine tenths of the free memory hold.
        page_size: tokens of a page, a power of two; 16 by default.
        vocab_size: ids from here on are never drawn.
    Raises:
        ModelError: no such device, or the folder cannot be used.
        ValueError: an argument is out of range.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    where = find_device(device)
    config = read_config(Path(folder))
    ignored = ("rotary_emb.inv_freq", *(("lm_head.weight",) if config.tie_embeddings else ()))
    with open_weights(Path(folder)) as weights, torch.inference_mode():
        model = build_device_model(config, weights, device=where, dtype=DTYPES[dtype])
        weights.finish(ignore=ignored)
    return make_device_runner(model, kv_tokens=kv_tokens, page_size=page_size, vocab_size=vocab_size)


def make_device_runner(
    model: DeviceModel,
    *,
    kv_tokens: int | None = None,
    page_size: int | None = None,
    vocab_size: int | None = None,
    capture: Capture | None = None,
    ladders: Ladders = LADDERS,
) -> DeviceRunner:
    """A pool and draws around a model. A CUDA device gets graphs; `capture` says how on another."""
    size = DEFAULT_PAGE_SIZE if page_size is None else page_size
    if not 1 <= size <= GPU_SPLIT or GPU_SPLIT % size:
        raise ValueError(f"page_size must be a power of two from 1 to {GPU_SPLIT}, not {size}")
    config = model.config
    layout = KVLayout(config.num_layers, config.kv_heads, config.head_dim)
    pages = _count_pages(model, layout, kv_tokens, size)
    pool = DevicePool(layout, num_pages=pages, page_size=size, device=model.device, dtype=model.dtype)
    if capture is None and model.device.type == "cuda":
        capture = CudaCapture()
    return DeviceRunner(model, pool, vocab_size=vocab_size or config.vocab_size, capture=capture, ladders=ladders)


def find_device(name: str) -> torch.device:
    """Raises ModelError: torch has no such device here."""
    device = torch.device(name)
    if device.type != "cuda":
        raise ModelError(f'this runner needs a CUDA device, not {name!r}; use device="cpu" for the native kernels')
    if not torch.cuda.is_available():
        raise ModelError(f'device={name!r}: torch finds no CUDA device here; use device="cpu"')
    if (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device={name!r}: there are {torch.cuda.device_count()} CUDA devices")
    return device


class RandomWeights:
    """Random tensors of any name and shape, made on the device: for measuring a shape that nobody has at hand.

    Scaled so that activations keep their size: what is computed is as finite as a trained model's.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def has(self, name: str) -> bool:
        return True

    def take_to(self, name: str, *shape: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=device, dtype=dtype)
        self._seed += 1
        generator = torch.Generator(device).manual_seed(self._seed)
        weight = torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator)
        return weight.mul_(0.5 * shape[1] ** -0.5)


def random_model(config: ModelConfig, *, device: torch.device, dtype: torch.dtype, seed: int = 0) -> DeviceModel:
    """A model of this shape with random weights."""
    with torch.inference_mode():
        return build_device_model(config, RandomWeights(seed), device=device, dtype=dtype)


def _count_pages(model: DeviceModel, layout: KVLayout, kv_tokens: int | None, page_size: int) -> int:
    if kv_tokens is not None:
        if kv_tokens < 1:
            raise ValueError(f"kv_tokens must be at least 1, not {kv_tokens}")
        return -(-kv_tokens // page_size)
    if model.device.type != "cuda":
        raise ValueError("kv_tokens must be given where the device is not CUDA")
    free, _ = torch.cuda.mem_get_info(model.device)
    return count_device_pages(free, layout, model.dtype, page_size)
