"""`python -m memfit` is `memfit`."""

from memfit.cli import main

if __name__ == "__main__":
    main()
