"""Source code -> Lint: patterns that eat memory, found without running or importing anything.

files ──sources──▶ Source ──modules──▶ Module ──rules──▶ Hit ──linting──▶ Lint
"""
