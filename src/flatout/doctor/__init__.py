"""Why is this script slow? Findings on any training script, none of which has to be changed for it."""

from flatout.doctor.watching import watch as watch
