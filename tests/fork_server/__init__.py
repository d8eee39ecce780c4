"""Start our programs in a fraction of the time: fork a process that has imported their modules.

Most of what `python -m emulator` does in a test is to import the same 900 modules again: a second
of CPU time, for a test that may take a hundredth. A test process has fork servers (`server`), and
`subprocess.Popen` starts our modules through them (`client`). Such a process is a child of the test
process, has its own id, environment, files and command line, and gets signals, as any other.

A fresh interpreter is started instead if something could differ: for options of Python, for
variables that are read when a module is imported, and while coverage is measured.
"""
