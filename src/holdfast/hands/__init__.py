"""Hands for an agent: families of tools that touch files, run commands and read the web, each within its bounds."""
