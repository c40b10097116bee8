"""Log -> facts, one module for each voice in a log."""
