"""Clocks, statistics, the ledger, counts of work, and the one mechanism: search, proof, receipt, recording."""
