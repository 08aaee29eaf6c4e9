"""Layer 1: clocks, statistics, the ledger of a run's time, and what a step computes and moves."""
