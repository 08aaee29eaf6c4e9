"""Worker processes that read samples: starting them, giving them jobs, watching them, ending them."""
