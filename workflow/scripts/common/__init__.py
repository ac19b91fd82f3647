"""Provide what every stage uses: files, one-line errors, schemas, tables and preforked processes."""
