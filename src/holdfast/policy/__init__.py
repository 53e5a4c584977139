"""What an agent may do: rules, the decision about one call, limits, approvals, hooks and mandates."""
