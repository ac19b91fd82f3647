"""Provenance: manifest, archive and its descriptions, citation; bundles for sites without internet."""
