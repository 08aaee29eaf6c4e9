"""Which learning rate: a range test, and short trainings at the rates that it leaves open."""
