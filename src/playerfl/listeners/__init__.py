"""Sockets that others connect to: how many connections a listener keeps, and for how long it waits for them."""
