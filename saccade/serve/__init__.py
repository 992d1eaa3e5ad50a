"""HTTP server for models: a JSON API and a web page, for clients on the same machine or with a bearer token."""
