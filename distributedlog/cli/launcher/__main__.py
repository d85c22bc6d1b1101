"""`python -m distributedlog_launcher`: run `dlog`, also if another package replaced that command."""

from . import main

main()
