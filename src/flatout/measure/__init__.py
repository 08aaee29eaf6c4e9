"""Clocks, statistics, the ledger, operator counts, and the shared search: trials, proof, receipt, recording."""
