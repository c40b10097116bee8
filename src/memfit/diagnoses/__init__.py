"""log | error | source | live process -> Diagnosis: why memory ran out, where it leaks, what will eat it."""
