"""Speeds up a training script without changing it: tries remedies, proves that training stays the same, runs it with them."""

from flatout.boost.keeping import keep as keep
