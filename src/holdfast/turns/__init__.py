"""The turn machine: what an agent does next, decided without a clock, without I/O, without luck."""
