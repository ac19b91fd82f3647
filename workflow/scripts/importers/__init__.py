"""Import measurements made elsewhere: read files and a statement, check them, write a campaign."""
