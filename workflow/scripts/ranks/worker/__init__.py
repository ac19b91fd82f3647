"""The measured program: one process of it is one rank, in every Python framework.

It runs inside a framework's environment: standard library and NumPy only, apart from what the adapter brings.
"""
