"""What every stage uses: files, errors in one line, schemas, tables, and processes that are forked with their libraries."""
