"""Kill a run at random, resume it, and compare every bit with a run that was left alone."""
