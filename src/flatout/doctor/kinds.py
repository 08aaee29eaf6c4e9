"""Which row of the ledger the time of an operator, a kernel or a CUDA runtime call belongs to."""

from __future__ import annotations

import re
from functools import lru_cache

MATMUL, CONVOLUTION, ATTENTION, MEMORY, OTHER = "matmul", "convolution", "attention", "memory-bound", "other compute"
LAUNCH, SYNC, COPY, COMMUNICATION, COMPILE = "launch-bound", "sync wait", "host-device copy", "communication", "compile"
ALLOCATION = "device memory"

COMPUTE = (MATMUL, CONVOLUTION, ATTENTION, MEMORY, OTHER)

_OPERATORS = (
    (COMMUNICATION, re.compile(r"^(c10d|gloo|nccl|mpi|record_param_comms|DistributedDataParallel\.reduc)")),
    (COMPILE, re.compile(r"dynamo_timed|^compile_fx|^_compile\b")),
    (ATTENTION, re.compile(r"attention|_flash|sdpa", re.I)),
    (CONVOLUTION, re.compile(r"conv(?!ert)", re.I)),
    (MATMUL, re.compile(r"^aten::(addmm|mm|bmm|baddbmm|matmul|linear|addmv|mv|dot|einsum|_scaled_mm|_addmm_activation|"
                        r"addbmm)\b|mkldnn_(reorder_)?linear|mkl_linear|mkldnn_rnn|_lstm|_gru", re.I)),
)  # fmt: skip
# these allocate memory, make views or return metadata: they compute nothing
_FREE = re.compile(
    r"^aten::(empty|as_strided|view|_unsafe_view|reshape|_reshape_alias|t$|transpose|permute|expand|squeeze|unsqueeze|select|"
    r"slice|detach|alias|resize_|set_|to$|narrow|split|chunk|unbind|flatten|item|_local_scalar_dense|is_nonzero|result_type|"
    r"resolve_conj|resolve_neg|lift_fresh|contiguous|type_as|numpy_T|unflatten|movedim|swapaxes|size|stride|is_)|"
    r"^(detach|autograd::|torch::autograd|.*Backward\d*$|Optimizer\.|TorchDynamo|Pregraph|ProfilerStep|enumerate\()",
)
# memory is freed to the driver after the device has finished all its work
_RUNTIME_WAITS = re.compile(r"^(cuda|hip)((Stream|Device|Event)Synchronize|Memcpy(?!.*Async)|Free$)")
_RUNTIME_MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free)$")
_RUNTIME = re.compile(r"^(cuda|cu|hip|cudnn|cublas)[A-Z]")
_COMPILED = re.compile(r"CompiledFxGraph|Torch-Compiled Region|CompiledFunction")
_KERNELS = (
    (COMMUNICATION, re.compile(r"nccl|rccl|AllReduce|ReduceScatter|AllGather", re.I)),
    (ATTENTION, re.compile(r"flash|fmha|attention|sdpa|mha_", re.I)),
    (CONVOLUTION, re.compile(r"conv(?!ert)|wgrad|dgrad|fprop|winograd|implicit_gemm|cudnn.*(nhwc|nchw)", re.I)),
    (MATMUL, re.compile(r"gemm|gemv|cutlass|cublas|nvjet|_mm_|splitK|ampere_|hopper_|sm\d\d_xmma|matmul|triton_tem|lstm|gru",
                        re.I)),
    (COPY, re.compile(r"^Memcpy (HtoD|DtoH)", re.I)),
    (MEMORY, re.compile(r"elementwise|reduce|norm|softmax|Memcpy DtoD|Memset|triton_|cat|index|copy|scatter|gather|embedding|"
                        r"dropout|fill|multi_tensor|foreach|adam|sgd|pool|bn_|batch_norm|transpose|nchwToNhwc|nhwcToNchw|vectorized|sort|"
                        r"scan|loss|upsample|pad|rand|distribution", re.I)),
)  # fmt: skip


@lru_cache(maxsize=4096)
def of_operator(name: str) -> str | None:
    """The row of an innermost operator on a CPU; None if it computes nothing and is call overhead."""
    if is_driver_memory(name):
        return ALLOCATION
    if is_wait(name):
        return SYNC
    if _RUNTIME.search(name) or _FREE.search(name):
        return None
    for row, pattern in _OPERATORS:
        if pattern.search(name):
            return row
    if _COMPILED.search(name):
        return OTHER
    return MEMORY if name.startswith(("aten::", "torchvision::", "quantized::")) else OTHER if "::" in name else None


@lru_cache(maxsize=4096)
def is_runtime(name: str) -> bool:
    """Is this a call of the device's runtime or driver, such as cudaLaunchKernel?"""
    return _RUNTIME.search(name) is not None


@lru_cache(maxsize=4096)
def of_kernel(name: str) -> str:
    for row, pattern in _KERNELS:
        if pattern.search(name):
            return row
    return OTHER


@lru_cache(maxsize=4096)
def is_driver_memory(name: str) -> bool:
    """Does this call allocate memory from the driver, or free it?"""
    return _RUNTIME_MEMORY.search(name) is not None


@lru_cache(maxsize=4096)
def is_wait(name: str) -> bool:
    """Does the host wait here until the device is done?"""
    return _RUNTIME_WAITS.search(name) is not None
