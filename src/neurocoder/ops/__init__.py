"""What every implementation needs: which one serves a call, and how it is launched."""
