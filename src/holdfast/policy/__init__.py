"""Rules of an agent and the decision about one call; limits and mandates, approvals, hooks and admission."""
