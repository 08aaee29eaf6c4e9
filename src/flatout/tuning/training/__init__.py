"""How trials are trained: stacked into one model, or one after another. A trial's result does not depend on which."""
