"""The network as each framework sees it: all-reduce of growing messages by its own library, timed, and a model of it."""
