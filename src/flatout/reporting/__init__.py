"""Pages about runs: how a run was trained, from its folder alone, as one HTML file that needs no network."""
