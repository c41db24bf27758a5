"""The benchmark: what the server costs on this machine, beside what the machine and the libraries cost without it.

Owns: starting a server of its own on a temporary data folder, loading it as clients do, the floors measured in the same
run, the report. Does not own: any code of the server; it speaks to it over its socket, and looks at its processes from
outside. `docs/performance.md` says what each figure is and how to read it.
"""
