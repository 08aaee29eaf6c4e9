"""Any torch Dataset: read by worker processes that leak nothing, or as the stream that it is."""
