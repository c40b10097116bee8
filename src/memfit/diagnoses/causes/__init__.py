"""Facts -> causes: each file knows what speaks for some of them, and how strongly."""
