"""The turn machine: decides the next step of an agent, without clock, randomness or I/O."""
