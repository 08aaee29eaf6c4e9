"""Data: sources, their order, the tiers that serve batches, and transforms on the device."""

from flatout.data.arrays import arrays
from flatout.data.buckets import sequences
from flatout.data.data import Data
from flatout.data.datasets import dataset
from flatout.data.digits import digits
from flatout.data.photos.images import images
from flatout.data.source import Source
from flatout.data.tables.table import table
from flatout.data.text import text

__all__ = ["Data", "Source", "arrays", "dataset", "digits", "images", "sequences", "table", "text"]
