"""Recipes: the schema, and how they are read, changed, checked and written."""
