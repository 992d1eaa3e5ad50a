"""Import Hugging Face folders and GGUF files as runs, and export runs as Hugging Face folders."""
