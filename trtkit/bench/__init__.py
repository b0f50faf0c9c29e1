"""Load from outside: open-loop arrivals through a real client, and the account of what was kept."""
