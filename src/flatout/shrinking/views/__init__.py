"""How a shrunk package is shown: its receipt and its picture."""
