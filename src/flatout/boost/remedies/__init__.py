"""One file each: when it is worth a trial, how it is put in from outside, and how it would be written in the script."""
