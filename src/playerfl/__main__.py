"""`python -m playerfl`: the command line, for when the `playerfl` script is not on the path."""

from playerfl.cli.main import main

main()
