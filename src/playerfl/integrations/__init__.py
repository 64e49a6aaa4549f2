"""The probe inside other trainers; each file needs its own extra.

Each file has a `SensitivityCallback`, as each framework has its own `Callback`; a program imports one of them.
"""
