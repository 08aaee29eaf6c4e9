"""Equations of einsum that multiply all queries with all keys, or attention weights with values."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def _terms(equation: str) -> tuple[str, str, str] | None:
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    first, comma, second = inputs.partition(",")
    letters = (first, second, result)
    ok = arrow and comma and all(one.isalpha() and len(set(one)) == len(one) for one in letters)
    return letters if ok else None


@lru_cache(maxsize=256)
def of_queries_and_keys(equation: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """How both are permuted to [..., rows, width], if the equation is a product of all queries with all keys."""
    if (terms := _terms(equation)) is None:
        return None
    first, second, result = terms
    width = [one for one in first if one in second and one not in result]
    batch, rows = result[:-2], result[-2:]
    if len(width) != 1 or len(rows) != 2 or any(one not in first or one not in second for one in batch):
        return None
    orders = [f"{batch}{row}{width[0]}" for row in rows]
    if any(sorted(order) != sorted(term) for order, term in zip(orders, (first, second), strict=True)):
        return None
    of_query, of_key = (tuple(term.index(one) for one in order) for order, term in zip(orders, (first, second), strict=True))
    return of_query, of_key


@lru_cache(maxsize=256)
def of_values(equation: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """How the values are permuted to [..., rows, width], and then the result."""
    if (terms := _terms(equation)) is None or len(terms[0]) < 3:
        return None
    weights, values, result = terms
    batch, row, key = weights[:-2], weights[-2], weights[-1]
    width = [one for one in values if one not in weights]
    if len(width) != 1 or sorted(values) != sorted(batch + key + width[0]) or sorted(result) != sorted(batch + row + width[0]):
        return None
    made = batch + row + width[0]
    return tuple(values.index(one) for one in batch + key + width[0]), tuple(made.index(one) for one in result)
