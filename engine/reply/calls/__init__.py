"""The forms in which models write tool calls; `formats` has the table of them."""
