"""Layer 9: a first look at files and data: `new` drafts a recipe, `data` measures what a recipe reads."""
