"""What a client does by itself, as pure code over the same effects: one agent, run by the engine and by the simulator.

`runner` drives protocols, `inboxes` brings messages to those that wait, `renewals` extends what is held, `unconfirmed`
keeps track of releases that are not waited for, `agent` puts them together, and `closing` ends a client.
"""
