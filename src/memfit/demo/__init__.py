"""`memfit demo`: the main job on what ships with the package."""
