"""record -> text, json: what people look at."""
