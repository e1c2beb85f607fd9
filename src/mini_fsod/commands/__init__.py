"""One file per command: its options, the calls that do the work, and what it prints."""
