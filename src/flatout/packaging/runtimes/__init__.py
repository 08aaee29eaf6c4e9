"""Ways to run a package's program: each is built on the machine that runs it, compared with the samples, and timed."""
