"""A first look at files and data: `new` drafts a recipe, `data` measures what a recipe reads."""
