"""Record -> text."""
