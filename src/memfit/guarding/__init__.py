"""`memfit.fit`, `memfit.protect` and `memfit.step`: steps that survive running out of memory."""
