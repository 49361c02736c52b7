"""What every coded layer is: its interface, its configuration, its control and its geometry."""
