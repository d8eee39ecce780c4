"""Record the calls into Rockchip's library and its callbacks; docs/recordings.md has the format."""
