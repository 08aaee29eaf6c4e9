"""Text: files to tokens, tokens to windows, documents kept apart, rows of differing lengths."""
