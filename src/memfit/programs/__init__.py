"""Function and specs -> what it computes, without running it."""
