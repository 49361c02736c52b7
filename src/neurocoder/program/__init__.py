"""The layer of the paper (Figure 2): programs composed from shared slots by attention."""
