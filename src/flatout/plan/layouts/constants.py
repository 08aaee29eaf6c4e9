"""Constants that can't be counted. The first five are fitted on four published rows (named in published.py), the rest assumed.

benchmarks/layouts.py fits them again and reports any difference.
"""

from __future__ import annotations

PRODUCT_SHARE = 0.705  # of the best matmul rate, in a step
POWER_500W = 0.865  # of an H100's arithmetic, if limited to 500 W
FLOAT8_GAIN = 1.511  # products with per-tensor scaling, compared with bf16
EAGER_TRAFFIC = 0.853  # of memory bandwidth, for operators run one by one
RESERVED = 1.126  # memory held by the allocator over memory in use at the peak

FUSED_TRAFFIC = 0.8  # of memory bandwidth, for fused operators
CALL_S = 5e-6  # for the host to launch an operator: a step can't be shorter than its launches
UPDATE_PASSES_BYTES = 36  # read and written per weight: clipping, then AdamW in fp32
USABLE = 0.94  # of a device's memory: the driver, the context and NCCL use the rest
