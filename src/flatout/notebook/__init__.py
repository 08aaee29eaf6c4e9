"""What a notebook or a script calls: `fo.run` with keywords, which drafts what is missing and shows its progress."""
