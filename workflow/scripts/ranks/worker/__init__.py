"""The measured program, of which each process is one rank, in every Python framework.

It runs inside a framework's environment: standard library and NumPy only, apart from what the adapter
imports.
"""
