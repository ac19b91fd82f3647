"""What figures were made of: the manifest, the archive that makes them again, and what it says of itself; the bundle for a site without internet."""
