"""Packs: a data set in a few large files that are read in one go, with checksums for each element."""
