"""`python -m playerfl`: the command line, where its script is not on the path."""

from playerfl.cli.main import main

main()
