"""One folder, safely: paths, locking, protected files, checkpoints, diffs."""
