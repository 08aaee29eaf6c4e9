"""Makes a script fast from outside: tries remedies on it as it is, proves them, runs it with what was kept."""

from flatout.boost.keeping import keep as keep
