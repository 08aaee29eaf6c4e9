"""Finds out why a training script is slow, without changing the script."""

from flatout.doctor.watching import watch as watch
