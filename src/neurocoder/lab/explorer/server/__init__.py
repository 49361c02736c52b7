"""The server that shows a model of your own."""
