"""`python -m memfit` is `memfit`."""

from memfit.commands import main

if __name__ == "__main__":
    main()
