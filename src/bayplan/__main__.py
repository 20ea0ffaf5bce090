"""`python -m bayplan` is `bayplan`."""

from bayplan.cli.main import main

main(prog_name="bayplan")
