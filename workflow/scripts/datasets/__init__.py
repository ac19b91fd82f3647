"""Data sets: fetched under checksums, unpacked safely, prepared as arrays that every framework reads."""
