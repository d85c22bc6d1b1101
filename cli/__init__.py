"""The command `dlog`: one file a noun; heavy imports stay inside the commands."""
