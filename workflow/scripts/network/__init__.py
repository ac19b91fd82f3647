"""The network as each framework sees it: collectives with growing messages by its own library, timed, and a model of them."""
