"""One guarded step: computed on shadow state, then committed or rolled back."""
