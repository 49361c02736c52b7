"""The explorer's page, which needs no server."""
