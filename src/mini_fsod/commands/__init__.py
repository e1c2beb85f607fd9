"""One file a command: reads, calls the rooms that do the work, shows the result."""
