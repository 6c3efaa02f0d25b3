"""The few places where a CPU-only PyTorch on fake CUDA tensors differs from a CUDA build."""

import math
from typing import Any

import torch
import transformers.masking_utils
from torch.distributed import GradBucket

aten = torch.ops.aten


class Null:
    """A CUDA stream, event or logger whose every method does nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def record_event(self, *args: Any) -> "Null":
        return self

    def __enter__(self) -> "Null":
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class Reducer:
    """DDP's reducer, except that buckets keep their first order.

    Finding the new order reads tensor data; the buckets' total size is the same.
    """

    def __init__(self, real: Any):
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _rebuild_buckets(self) -> bool:
        return False


def reduced_in_place(_state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: NCCL reduces in place, the fake process group returns nothing."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def attention(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """`scaled_dot_product_attention` with the kernel that a CUDA build picks.

    Flash for half types without a mask, else the memory-efficient kernel, which cannot do grouped
    queries nor, in fp32, head sizes that are not multiples of 4 (`minimum_gemm_alignment` on
    Ampere and later): there PyTorch falls back, silently, to the quadratic composite.
    """
    if torch.is_autocast_enabled("cuda"):
        q, k, v = (t.to(torch.get_autocast_dtype("cuda")) for t in (q, k, v))
    args = (dropout_p, is_causal)
    if attn_mask is None and q.dtype in (torch.bfloat16, torch.float16):
        size = q.shape[-1]
        scale = 1 / math.sqrt(size) if scale is None else scale
        if size % 8:  # the kernel's head sizes are multiples of 8
            padded = [torch.nn.functional.pad(t, (0, 8 - size % 8)) for t in (q, k, v)]
        else:
            padded = [q, k, v]
        out = aten._scaled_dot_product_flash_attention(*padded, *args, scale=scale)[0]
        return out[..., :size] if size % 8 else out
    if q.shape[1] != k.shape[1] or q.shape[-1] % 4:
        return aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, *args, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        q, k, v, attn_mask, True, *args, scale=scale
    )[0]


def flash_backward_scratch(q: torch.Tensor, k: torch.Tensor) -> int:
    """Return the bytes that flash attention's backward kernel allocates and frees inside one call.

    An fp32 accumulator of dq and the softmax row sums, both padded as in FlashAttention-2's
    `mha_bwd`, and with grouped queries dk and dv at the full head count.
    """
    batch, heads, length, size = q.shape
    rows = 128 * math.ceil(length / 128)
    multiple = 32 if size <= 128 else 64
    columns = multiple * math.ceil(size / multiple)
    scratch = 4 * batch * heads * rows * (columns + 1)
    if k.shape[1] != heads:
        scratch += 2 * batch * heads * k.shape[2] * size * k.element_size()
    return scratch


def patch(device: str) -> None:
    """Put the differences right, for the rest of the process."""
    # Reads token positions to find packed sequences. Plain positions give None in a real run, and
    # then no mask is built and attention runs with is_causal.
    transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None
    if device != "cuda":
        return
    cuda = torch.cuda
    cuda.Stream = cuda.Event = Null
    cuda.stream = cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: Null()
    torch.accelerator.current_stream = cuda.current_stream  # awaits a gather that nobody used
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.set_device = cuda.synchronize = lambda *args: None
    cuda.get_device_capability = lambda *args: (9, 0)
    cuda.is_bf16_supported = lambda *args, **kwargs: True
    cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.nn.functional.scaled_dot_product_attention = attention
    # Without a CUDA kernel the dispatcher runs silu_backward's composite definition, five tensors
    # where CUDA has one kernel. Naming any kernel prevents that; the library must stay alive.
    patch.kernels = torch.library.Library("aten", "IMPL")
    patch.kernels.impl("silu_backward", lambda grad, x: torch.empty_like(x), "CUDA")
