"""All remedies, by name."""

from __future__ import annotations

from flatout.boost.remedies.aligned import Aligned
from flatout.boost.remedies.async_copies import AsyncCopies
from flatout.boost.remedies.autocast import Autocast
from flatout.boost.remedies.channels_last import ChannelsLast
from flatout.boost.remedies.compile import CompileRemedy
from flatout.boost.remedies.cuda_graphs import CudaGraphs
from flatout.boost.remedies.cudnn_benchmark import CudnnBenchmark
from flatout.boost.remedies.early_reads import EarlyReads
from flatout.boost.remedies.fused import Fused
from flatout.boost.remedies.fused_attention import FusedAttention
from flatout.boost.remedies.fused_loss import FusedLoss
from flatout.boost.remedies.keep_memory import KeepMemory
from flatout.boost.remedies.no_grad import NoGrad
from flatout.boost.remedies.own_convolutions import OwnConvolutions
from flatout.boost.remedies.quick_dropout import QuickDropout
from flatout.boost.remedies.remedy import Remedy
from flatout.boost.remedies.resident import Resident
from flatout.boost.remedies.tf32 import Tf32
from flatout.boost.remedies.threads import Threads
from flatout.boost.remedies.workers import WorkersRemedy

REMEDIES: dict[str, Remedy] = {
    remedy.name: remedy
    for remedy in (
        Resident(), WorkersRemedy(), AsyncCopies(), Autocast(), Tf32(), ChannelsLast(), CudnnBenchmark(), Fused(), Threads(),
        Aligned(), EarlyReads(), CudaGraphs(), CompileRemedy(), NoGrad(), KeepMemory(), QuickDropout(),
        OwnConvolutions(), FusedAttention(), FusedLoss(),
    )
}  # fmt: skip
# a kept remedy makes these pointless
INSTEAD = {"resident_data": {"workers", "async_copies"}}
# if one of the values is kept, the key can shorten only the device's computing
LEAVES_COMPUTING = {"compile": {"cuda_graphs"}}
PRECISIONS = ("fp32", "tf32", "bf16")  # from strict to loose
