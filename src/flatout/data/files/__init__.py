"""Reading files of others: where they are, unpacked within limits, and what is wrong with them."""
