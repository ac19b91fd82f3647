"""The report, the paper, and what is drawn before a campaign has ended."""
