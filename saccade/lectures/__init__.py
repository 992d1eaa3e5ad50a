"""The lectures, executable: every claim of the notes as a check that can fail."""
