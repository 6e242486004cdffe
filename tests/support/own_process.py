"""What a process of its own is told to do: a module that imports nothing which takes long."""

import os


def process_of(argument):
    """Its process' number and the argument; an error is raised, and "killed" ends it at once."""
    if isinstance(argument, BaseException):
        raise argument
    if argument == "killed":
        os._exit(9)
    return {"process": os.getpid(), "argument": argument}
