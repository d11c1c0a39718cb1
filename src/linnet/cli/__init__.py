"""The command line: one file for each verb, imported only when it is called."""
