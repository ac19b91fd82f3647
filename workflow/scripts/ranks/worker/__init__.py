"""The program that trains: each process is one rank, in every Python framework.

It runs in a framework's environment, and imports only the standard library, NumPy and the adapter's
libraries.
"""
