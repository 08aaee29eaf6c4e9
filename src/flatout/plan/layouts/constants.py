"""What can't be counted. The first five are fitted, on four published rows that published.py names; the rest is assumed.

benchmarks/layouts.py fits them anew and says if these are not what it finds.
"""

from __future__ import annotations

PRODUCT_SHARE = 0.705  # of the best matmul rate, within a step
POWER_500W = 0.865  # of an H100's arithmetic, where it is held to 500 W
FLOAT8_GAIN = 1.511  # of products with scaling each tensor over those in bf16
EAGER_TRAFFIC = 0.853  # of memory bandwidth, for operators that run one by one
RESERVED = 1.126  # what the allocator holds over what is in use at the peak

FUSED_TRAFFIC = 0.8  # of memory bandwidth, for operators that a compiler joined
CALL_S = 5e-6  # for the host to launch an operator: a step can't be shorter than its calls
UPDATE_PASSES_BYTES = 36  # read and written for a weight: AdamW in fp32, and clipping before it
USABLE = 0.94  # of a device's memory: the rest is the driver's, the context's and what NCCL holds
