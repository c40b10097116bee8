"""Changes to a real model that save memory, each undone afterwards."""
