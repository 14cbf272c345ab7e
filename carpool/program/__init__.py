"""What Carpool's programs share: settings, logs, and memory that is given back.

The library itself imports none of it. `settings` needs pydantic-settings, which the programs bring.
"""
