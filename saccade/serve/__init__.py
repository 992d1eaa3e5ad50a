"""A model behind HTTP: a JSON API and a page to try it, for people and programs on the same machine or with a token."""
