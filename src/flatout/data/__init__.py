"""Data: sources, their order, the tiers that serve batches, and transforms on the device."""

from flatout.data.arrays import arrays
from flatout.data.data import Data
from flatout.data.digits import digits
from flatout.data.source import Source
from flatout.data.text import text

__all__ = ["Data", "Source", "arrays", "digits", "text"]
