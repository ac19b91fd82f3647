"""Sites: describe one from what a cluster says, check it, and decide whether runs can start there."""
