"""What a search may change: keys of the recipe with ranges, choices and conditions."""

from flatout.tuning.space.defaults import default_space
from flatout.tuning.space.fitting import check_space
from flatout.tuning.space.own_point import own_point
from flatout.tuning.space.parameter import Parameter
from flatout.tuning.space.reading import parse_words, read_space, space_of
from flatout.tuning.space.space import Space

__all__ = ["Parameter", "Space", "check_space", "default_space", "own_point", "parse_words", "read_space", "space_of"]
