"""Write log lines for terminals and for machines."""
