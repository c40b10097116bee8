"""The parent of `memfit run`: starts the child, and starts it again."""
