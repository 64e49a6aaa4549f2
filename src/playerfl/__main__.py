"""`python -m playerfl`: the command line, if its script is not on the path."""

from playerfl.cli.main import main

main()
