"""The processes that train a study's trials: they may crash, hang or run out of memory, and the study goes on."""
