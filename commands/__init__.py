"""The command line: one module a command. Each has `add_parser(commands)` and `run(arguments) -> exit code`."""
