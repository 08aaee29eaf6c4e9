"""One folder or file a kind of data: arrays, tables, texts, photos, datasets."""
