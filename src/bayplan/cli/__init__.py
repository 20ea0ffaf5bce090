"""The command line: one function per command. Parse, call, print."""
