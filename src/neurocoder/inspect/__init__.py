"""Looking at what layers did: recorded programs, numbers and figures."""
