"""The layers of a model: shapes, parameters, arithmetic, memory and time."""
